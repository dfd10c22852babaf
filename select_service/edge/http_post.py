"""EDGE: one POST over a connection of its own, with whatever status comes, and its time.

What `http_client` is for pages, this is for requests whose time matters: nobody waits for a place
in a pool, nothing that was left of an older connection can fail it, and the time begins with the
first byte sent.  Engines close a connection that rests for some seconds, so one would rarely be
used again.  The same rules hold: bounded in time and in bytes, no redirects, cookies, proxies or
compression, and over https a certificate of the host that was asked, issued by somebody whom the
system trusts.
"""

import asyncio
from functools import lru_cache, partial
from typing import NamedTuple

from indexer.sockets.names import Names
from select_service.edge.http_client import allowed_addresses, http_error_of
from select_service.edge.http_error import HttpError
from select_service.outgoing.connecting import Origin, Tls, open_connection, split_url
from select_service.outgoing.http_connection import HttpConnection
from select_service.outgoing.request_error import RequestError
from select_service.tls.kept import ClientTls

PLACES_MAX = 8192
"""That are remembered, those that were asked last."""


class _Place(NamedTuple):
    """What a URL says.  head: of the message, up to the number of its bytes"""

    origin: Origin
    head: bytes


class Reply(NamedTuple):
    """What came, with any status."""

    status: int
    retry_after: bool
    """Does it say when to ask again?"""
    body: bytes
    fault: str | None
    """Why the body is not whole; None when it is."""
    seconds: float
    """From the first byte sent to the last one that came."""


async def post(
    names: Names,
    url: str,
    content: bytes,
    headers: bytes,
    *,
    bytes_max: int,
    timeout_s: float,
    tls: ClientTls | None = None,
) -> Reply:
    """url: one that `urls.engine_url_error` admits.  headers: further lines, each with its CRLF.

    bytes_max: of the body.  timeout_s: from the name to the last byte.  tls: None: whom the system
    trusts is believed.  Raises HttpError: `timeout`, `not_allowed` or `unreachable` before a status
    came, `unreadable` when what came is not HTTP.
    """
    place = _place(url)
    try:
        async with asyncio.timeout(timeout_s):
            message = place.head + b"%d\r\n%b\r\n%b" % (len(content), headers, content)
            used = None if tls is None else Tls(tls.context)
            return await _exchanged(names, place, message, bytes_max, used)
    except TimeoutError:
        raise HttpError("timeout", f"no complete answer within {timeout_s:g} s") from None


@lru_cache(PLACES_MAX)
def _place(url: str) -> _Place:
    origin, host, target = split_url(url)
    head = (
        f"POST {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        "accept: application/json\r\naccept-encoding: identity\r\nuser-agent: select-service\r\n"
        "content-type: application/json\r\ncontent-length: "
    )
    return _Place(origin, head.encode())


async def _exchanged(
    names: Names, place: _Place, message: bytes, bytes_max: int, tls: Tls | None
) -> Reply:
    """Raises HttpError."""
    connection = None
    try:
        connection = await open_connection(place.origin, partial(allowed_addresses, names), tls)
        connection.send(message)
        return await _reply(connection, bytes_max)
    except RequestError as error:
        if error.failure == "not_allowed":
            names.boundary.count("canary")
        raise http_error_of(error) from None
    finally:
        if connection is not None:
            connection.close()


async def _reply(connection: HttpConnection, bytes_max: int) -> Reply:
    """Raises RequestError when there is no status."""
    answer = await connection.head()
    body, fault = bytearray(), None
    try:
        while part := await connection.read_some():
            body += part
            if len(body) > bytes_max:
                fault = f"the answer has more than {bytes_max} bytes"
                break
    except RequestError as error:
        fault = str(error)
    seconds = connection.received_at - connection.sent_at
    retry_after = "retry-after" in answer.headers
    return Reply(answer.status, retry_after, bytes(body[:bytes_max]), fault, seconds)
