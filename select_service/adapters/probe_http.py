"""Timed POST request over a fresh connection; responses of any status are returned.

`http_client` suits pages; this module suits requests whose time is measured.  A request never waits
for a pooled connection, a stale connection cannot fail it, and the clock starts with the first byte
sent.  Engines close idle connections after some seconds, so reuse would be rare.  The same rules
apply: bounds on time and bytes, no redirects, cookies, proxies or compression.  With https, the
certificate must be valid for the requested host and issued by a trusted CA.
"""

import asyncio
from functools import lru_cache, partial
from typing import NamedTuple

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_error import HttpError
from select_service.adapters.http_get import resolve_allowed, to_http_error
from select_service.net.http_client.connection_opener import (
    ConnectionTls,
    Origin,
    open_connection,
    split_url,
)
from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.request_error import RequestError
from select_service.net.tls.current_tls import ClientTls

URL_CACHE_MAX = 8192
"""Size of the LRU cache of parsed URLs."""


class _ParsedUrl(NamedTuple):
    """Parsed URL.

    head: request head up to the value of content-length
    """

    origin: Origin
    head: bytes


class TimedResponse(NamedTuple):
    """Response with any status."""

    status: int
    retry_after: bool
    """Whether the response has a Retry-After header."""
    body: bytes
    fault: str | None
    """Reason why the body is incomplete; None when complete."""
    seconds: float
    """Seconds from the first byte sent to the last byte received."""


class TimedHttpClient(NamedTuple):
    """Sender of timed POST requests.

    tls: trusted CAs; None means the CAs of the system
    """

    names: Resolver
    tls: ClientTls | None = None

    async def post(
        self, url: str, content: bytes, headers: bytes, *, bytes_max: int, timeout_s: float
    ) -> TimedResponse:
        """Send a POST request and return the response.

        url: URL accepted by `urls.engine_url_error`
        headers: further header lines, each with its CRLF
        bytes_max: size limit of the response body
        timeout_s: time limit from name resolution to the last byte, seconds
        Raises HttpError: `timeout`, `not_allowed` or `unreachable` before a status was received,
        `unreadable` when the response is not HTTP.
        """
        place = _parse_url(url)
        try:
            async with asyncio.timeout(timeout_s):
                message = place.head + b"%d\r\n%b\r\n%b" % (len(content), headers, content)
                used = None if self.tls is None else ConnectionTls(self.tls.context)
                return await _exchange(self.names, place, message, bytes_max, used)
        except TimeoutError:
            raise HttpError("timeout", f"no complete answer within {timeout_s:g} s") from None


@lru_cache(URL_CACHE_MAX)
def _parse_url(url: str) -> _ParsedUrl:
    origin, host, target = split_url(url)
    head = (
        f"POST {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        "accept: application/json\r\naccept-encoding: identity\r\nuser-agent: select-service\r\n"
        "content-type: application/json\r\ncontent-length: "
    )
    return _ParsedUrl(origin, head.encode())


async def _exchange(
    names: Resolver, place: _ParsedUrl, message: bytes, bytes_max: int, tls: ConnectionTls | None
) -> TimedResponse:
    """Send the message over a new connection and read the response.  Raises HttpError."""
    connection = None
    try:
        connection = await open_connection(place.origin, partial(resolve_allowed, names), tls)
        connection.send_request(message)
        return await _read_response(connection, bytes_max)
    except RequestError as error:
        if error.failure == "not_allowed":
            names.egress_guard.count_refusal("canary")
        raise to_http_error(error) from None
    finally:
        if connection is not None:
            connection.close()


async def _read_response(connection: HttpConnection, bytes_max: int) -> TimedResponse:
    """Read a response.  Raises RequestError when no status was received."""
    answer = await connection.read_head()
    body, fault = bytearray(), None
    try:
        while part := await connection.read_some():
            body += part
            if len(body) > bytes_max:
                fault = f"response body has more than {bytes_max} bytes"
                break
    except RequestError as error:
        fault = str(error)
    # Times of the transport, not of this coroutine: a late event loop must not count as engine
    # time.
    seconds = connection.received_at - connection.sent_at
    retry_after = "retry-after" in answer.headers
    return TimedResponse(answer.status, retry_after, bytes(body[:bytes_max]), fault, seconds)
