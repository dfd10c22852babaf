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
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    IDLE_S_MAX,
    ClientRequest,
    StreamedResponse,
    Transport,
    transport_error,
)

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


SELECTORS_KEPT_MAX = 1024

_SINGLE_CONNECTION = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S_MAX)


class HttpxTransport(Transport):
    """Connections that each serve one exchange at a time; the latest used is the next."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: TLS settings of https; None means public CAs"""
        self._ssl = ssl_context or httpx.create_ssl_context(trust_env=False)
        self._free: dict[str, list[httpx.AsyncHTTPTransport]] = {}
        self._permits = asyncio.Semaphore(CONNECTIONS_MAX)

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, request: ClientRequest, silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        """See `Transport.stream`."""
        try:
            async with self._borrow_connection(url) as http:
                # Below httpx.Client, with its cookies, redirects and authentication, which cost
                # half of a call.
                response = await http.handle_async_request(_make_request(url, request, silence_s))
                try:
                    yield StreamedResponse(
                        response.status_code, response.headers, response.aiter_raw()
                    )
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise transport_error(error, was_sent=not isinstance(error, _UNSENT)) from error

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


def _make_request(url: str, request: ClientRequest, timeout_s: float) -> httpx.Request:
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
        request.method,
        parsed,
        headers=request.headers,
        content=request.content,
        extensions={"timeout": timeout, "target": (prefix + request.target).encode("ascii")},
    )
