"""HTTP transport based on httpx.

Only the transport of httpx is used, not its client: cookies, redirects and authentication are not
needed, and a call costs half as much. Each transport has one connection, because the pool of httpx
compares all pairs of connections for each request, which with many connections costs more than
the request. No other module imports httpx.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from functools import lru_cache

import httpx

from select_service.client.transport import (
    ANSWER_BYTES_MAX,
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    IDLE_S_MAX,
    ClientRequest,
    ClientResponse,
    StreamedResponse,
    TransportError,
    too_large_error,
)

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


SELECTORS_KEPT_MAX = 1024

_SINGLE_CONNECTION = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S_MAX)


class HttpxTransport:
    """Connections that each serve one exchange at a time; the latest used is the next."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: TLS settings of https; None means public CAs"""
        self._ssl = ssl_context or httpx.create_ssl_context(trust_env=False)
        self._free: dict[str, list[httpx.AsyncHTTPTransport]] = {}
        self._permits = asyncio.Semaphore(CONNECTIONS_MAX)

    async def send(self, url: str, asked: ClientRequest, timeout_s: float) -> ClientResponse:
        """See `Transport.send`."""
        try:
            async with self._borrow_connection(url) as http:
                # Below httpx.Client, with its cookies, redirects and authentication, which cost
                # half of a call.
                response = await http.handle_async_request(_make_request(url, asked, timeout_s))
                try:
                    content = await _read_content(response)
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise _transport_error(error) from error
        return ClientResponse(response.status_code, response.headers, content)

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, asked: ClientRequest, silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        """See `Transport.stream`."""
        try:
            async with self._borrow_connection(url) as http:
                response = await http.handle_async_request(_make_request(url, asked, silence_s))
                try:
                    yield StreamedResponse(
                        response.status_code, response.headers, response.aiter_raw()
                    )
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise _transport_error(error) from error

    async def close(self) -> None:
        """See `Transport.close`."""
        for free in self._free.values():
            for http in free:
                await http.aclose()
        self._free.clear()

    @contextlib.asynccontextmanager
    async def _borrow_connection(self, url: str) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        async with self._permits:
            free = self._free.setdefault(url, [])
            # The latest used first, so that surplus connections go idle and are closed.
            http = (
                free.pop()
                if free
                else httpx.AsyncHTTPTransport(self._ssl, limits=_SINGLE_CONNECTION)
            )
            try:
                yield http
            finally:
                free.append(http)


@lru_cache(SELECTORS_KEPT_MAX)
def _parse_url(url: str) -> tuple[httpx.URL, str]:
    """Return the parsed URL of a selector and the path prefix of all its routes."""
    parsed = httpx.URL(url)
    return parsed, parsed.path.rstrip("/")


def _make_request(url: str, asked: ClientRequest, timeout_s: float) -> httpx.Request:
    """Make a request. Only the URL of the selector is parsed, and cached.

    Parsing a URL costs a fifth of a whole exchange.
    """
    parsed, prefix = _parse_url(url)
    timeout = {
        "connect": min(CONNECT_S_MAX, timeout_s),
        "read": timeout_s,
        "write": timeout_s,
        # Never reached: each transport serves one exchange at a time.
        "pool": timeout_s,
    }
    return httpx.Request(
        asked.method,
        parsed,
        headers=asked.headers,
        content=asked.content,
        extensions={"timeout": timeout, "target": (prefix + asked.target).encode("ascii")},
    )


async def _read_content(response: httpx.Response) -> bytes:
    pieces, n_bytes = [], 0
    async for piece in response.aiter_raw():
        n_bytes += len(piece)
        if n_bytes > ANSWER_BYTES_MAX:
            raise too_large_error(ANSWER_BYTES_MAX)
        pieces.append(piece)
    return b"".join(pieces)


def _transport_error(error: httpx.TransportError) -> TransportError:
    text = f"{type(error).__name__} {error}".rstrip()
    return TransportError(text, was_sent=not isinstance(error, _UNSENT))
