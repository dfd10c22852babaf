"""EDGE: one POST over a connection of its own, with whatever status comes, and its time.

What `http_client` is for pages, this is for requests whose time matters: nobody waits for a place
in a pool, nothing that was left of an older connection can fail it, and the time begins with the
first byte sent.  Engines close a connection that rests for some seconds, so one would rarely be
used again; and to open one this way costs a third of what it costs with the library of
`http_session`.  The same rules hold: bounded in time and in bytes, no redirects, cookies, proxies
or compression, and over https a certificate of the host that was asked, issued by somebody whom
the system trusts.
"""

import asyncio
import ssl
from functools import cache, lru_cache
from time import monotonic
from typing import Literal, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from indexer.sockets.names import Names
from select_service.edge.host_names import looked_up
from select_service.edge.http_error import HttpError
from select_service.tls.kept import ClientTls

HEAD_BYTES_MAX = 1 << 16
"""Of the status and the headers, interim ones included, and of what frames the body."""


PLACES_MAX = 8192
"""That are remembered, those that were asked last."""


class _Place(NamedTuple):
    """What a URL says.  head: of the message, up to the number of its bytes"""

    host: str
    port: int
    is_tls: bool
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
            trust = None
            if place.is_tls:
                trust = _trust() if tls is None else tls.context
            return await _exchanged(names, place, message, bytes_max, trust)
    except TimeoutError:
        raise HttpError("timeout", f"no complete answer within {timeout_s:g} s") from None


@lru_cache(PLACES_MAX)
def _place(url: str) -> _Place:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {target} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        "accept: application/json\r\naccept-encoding: identity\r\nuser-agent: select-service\r\n"
        "content-type: application/json\r\ncontent-length: "
    )
    port = parts.port or (443 if is_tls else 80)
    return _Place(parts.hostname or "", port, is_tls, head.encode())


async def _exchanged(
    names: Names, place: _Place, message: bytes, bytes_max: int, trust: ssl.SSLContext | None
) -> Reply:
    """Raises HttpError."""
    exchange = _Exchange(message, bytes_max)
    try:
        await _connect(names, place, exchange, trust)
        return await exchange.reply
    finally:
        exchange.close()
        del exchange  # an error would know this frame, and the exchange the error


async def _connect(
    names: Names, place: _Place, exchange: "_Exchange", trust: ssl.SSLContext | None
) -> None:
    """To the first address that answers.  Raises HttpError."""
    host, port = place.host, place.port
    addresses = await looked_up(names, host)
    if addresses.is_refused:
        names.boundary.count("canary")
        raise HttpError("not_allowed", addresses.error or "")
    error = f"name not found: {addresses.error}"
    for address in addresses.found:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: exchange,
                address,
                port,
                ssl=trust,
                server_hostname=host if place.is_tls else None,
            )
        except ssl.SSLCertVerificationError as fault:
            error = f"the certificate of {host} is not believed: {fault.verify_message}"
        except OSError as fault:
            error = f"cannot connect to {host}:{port}: {fault.strerror or fault}"
        else:
            return
    raise HttpError("unreachable", error)


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Exchange(asyncio.Protocol):
    """Sends a message as soon as it is connected, and reads one answer."""

    def __init__(self, message: bytes, bytes_max: int) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._message = message
        self._left = bytes_max + HEAD_BYTES_MAX
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sent_at = 0.0
        self._status = 0
        self._retry_after = False
        self._is_framed = False
        self._is_whole = False
        self._bytes_max = bytes_max
        self._body = bytearray()

    def close(self) -> None:
        """Break off what is under way, and let go of what knows this exchange itself."""
        transport, self._transport, self._parser = self._transport, None, None
        if transport is None:
            return
        if self._is_whole:
            transport.close()
        else:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop does not inherit
        self._sent_at = monotonic()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        if self.reply.done() or self._parser is None:
            return
        self._left -= len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("unreadable", "the answer is not HTTP")
        if self._left < 0 or self._is_too_large():
            self._fail("unreadable", self._too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # it never stood, and another address may be tried; or it was closed by us
        if self._status and not self._is_framed and exc is None:
            self._end(None)  # such a body ends with its connection
        self._fail("unreachable", "the connection was closed before the answer was complete")

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        self._retry_after |= key == b"retry-after"
        self._is_framed |= key in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._status < 200:  # interim: the answer comes behind it
            self._status, self._retry_after, self._is_framed = 0, False, False
            return
        self._end(self._too_large() if self._is_too_large() else None)

    def _is_too_large(self) -> bool:
        return len(self._body) > self._bytes_max

    def _too_large(self) -> str:
        return f"the answer has more than {self._bytes_max} bytes"

    def _fail(self, failure: Literal["unreachable", "unreadable"], error: str) -> None:
        """The same end for both: with a status it is an answer whose body is not whole."""
        if self.reply.done():
            return
        if self._status:
            self._end(error)
        else:
            self.reply.set_exception(HttpError(failure, error))

    def _end(self, fault: str | None) -> None:
        if self.reply.done():
            return
        seconds = monotonic() - self._sent_at
        self._is_whole = fault is None
        body = bytes(self._body[: self._bytes_max])
        self.reply.set_result(Reply(self._status, self._retry_after, body, fault, seconds))
