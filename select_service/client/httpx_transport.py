"""Exchanges by httpx; the only module that knows it.

Its transport is used without its client: no cookies, redirects or authentication are wanted, and
each call costs half as much.
"""

import contextlib
from collections.abc import AsyncIterator

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


class HttpxTransport:
    """A pool of connections."""

    def __init__(self) -> None:
        self._http = httpx.AsyncHTTPTransport(
            trust_env=False,
            limits=httpx.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=CONNECTIONS_MAX,
                keepalive_expiry=IDLE_S_MAX,
            ),
        )

    async def send(self, url: str, asked: Asked, timeout_s: float) -> Answer:
        """As `Transport.send`."""
        try:
            response = await self._http.handle_async_request(_request(url, asked, timeout_s))
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
            response = await self._http.handle_async_request(_request(url, asked, silence_s))
            try:
                yield Streamed(response.status_code, response.headers, response.aiter_raw())
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """As `Transport.close`."""
        await self._http.aclose()


def _request(url: str, asked: Asked, timeout_s: float) -> httpx.Request:
    timeout = {
        "connect": min(CONNECT_S_MAX, timeout_s),
        "read": timeout_s,
        "write": timeout_s,
        "pool": timeout_s,
    }
    return httpx.Request(
        asked.method,
        url + asked.target,
        headers=asked.headers,
        content=asked.content,
        extensions={"timeout": timeout},
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
