"""Exchanges by httpx; the only module that knows it.

Its transport is used without its client: no cookies, redirects or authentication are wanted, and
each call costs half as much.  Each transport has one connection: its pool looks at all connections
for every request, and at all pairs of them, which costs more than the request when there are many.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from functools import lru_cache

import httpx

from select_service.client.exchange import (
    ANSWER_BYTES_MAX,
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    IDLE_S_MAX,
    Answer,
    Asked,
    Broken,
    Streamed,
    too_large,
)

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


SELECTORS_KEPT_MAX = 1024

_ONE = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S_MAX)


class HttpxTransport:
    """Connections that are lent for one exchange each, those used last first."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: of https; None: public CAs are believed"""
        self._ssl = ssl_context or httpx.create_ssl_context(trust_env=False)
        self._free: dict[str, list[httpx.AsyncHTTPTransport]] = {}
        self._permits = asyncio.Semaphore(CONNECTIONS_MAX)

    async def send(self, url: str, asked: Asked, timeout_s: float) -> Answer:
        """As `Transport.send`."""
        try:
            async with self._lent(url) as http:
                response = await http.handle_async_request(_request(url, asked, timeout_s))
                try:
                    content = await _whole(response)
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise _broken(error) from error
        return Answer(response.status_code, response.headers, content)

    @contextlib.asynccontextmanager
    async def stream(self, url: str, asked: Asked, silence_s: float) -> AsyncIterator[Streamed]:
        """As `Transport.stream`."""
        try:
            async with self._lent(url) as http:
                response = await http.handle_async_request(_request(url, asked, silence_s))
                try:
                    yield Streamed(response.status_code, response.headers, response.aiter_raw())
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """As `Transport.close`."""
        for free in self._free.values():
            for http in free:
                await http.aclose()
        self._free.clear()

    @contextlib.asynccontextmanager
    async def _lent(self, url: str) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        async with self._permits:
            free = self._free.setdefault(url, [])
            http = free.pop() if free else httpx.AsyncHTTPTransport(self._ssl, limits=_ONE)
            try:
                yield http
            finally:
                free.append(http)


@lru_cache(SELECTORS_KEPT_MAX)
def _parsed(url: str) -> tuple[httpx.URL, str]:
    """The URL of a selector, and the path that stands before all of its own."""
    parsed = httpx.URL(url)
    return parsed, parsed.path.rstrip("/")


def _request(url: str, asked: Asked, timeout_s: float) -> httpx.Request:
    """To parse a URL costs as much as a fifth of the whole exchange: only the selector's is."""
    parsed, prefix = _parsed(url)
    timeout = {
        "connect": min(CONNECT_S_MAX, timeout_s),
        "read": timeout_s,
        "write": timeout_s,
        "pool": timeout_s,
    }
    return httpx.Request(
        asked.method,
        parsed,
        headers=asked.headers,
        content=asked.content,
        extensions={"timeout": timeout, "target": (prefix + asked.target).encode("ascii")},
    )


async def _whole(response: httpx.Response) -> bytes:
    pieces, n_bytes = [], 0
    async for piece in response.aiter_raw():
        n_bytes += len(piece)
        if n_bytes > ANSWER_BYTES_MAX:
            raise too_large(ANSWER_BYTES_MAX)
        pieces.append(piece)
    return b"".join(pieces)


def _broken(error: httpx.TransportError) -> Broken:
    text = f"{type(error).__name__} {error}".rstrip()
    return Broken(text, was_sent=not isinstance(error, _UNSENT))
