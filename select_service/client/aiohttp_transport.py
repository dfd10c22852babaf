"""Exchanges by aiohttp, which costs less CPU than httpx; the only module that knows it."""

import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

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

_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class AiohttpTransport:
    """A session, opened by the first exchange on the event loop that it belongs to."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: of https; None: those are believed whom the system trusts"""
        self._ssl = ssl_context or True
        self._opened: aiohttp.ClientSession | None = None

    async def send(self, url: str, asked: Asked, timeout_s: float) -> Answer:
        """As `Transport.send`."""
        async with self.stream(url, asked, timeout_s) as answer:
            pieces, n_bytes = [], 0
            async for piece in answer.pieces:
                n_bytes += len(piece)
                if n_bytes > ANSWER_BYTES_MAX:
                    raise too_large(ANSWER_BYTES_MAX)
                pieces.append(piece)
        return Answer(answer.status, answer.headers, b"".join(pieces))

    @contextlib.asynccontextmanager
    async def stream(self, url: str, asked: Asked, silence_s: float) -> AsyncIterator[Streamed]:
        """As `Transport.stream`."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S_MAX, silence_s), sock_read=silence_s
        )
        try:
            async with self._session().request(
                asked.method,
                URL(url + asked.target, encoded=True),
                data=asked.content,
                headers=asked.headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                yield Streamed(response.status, response.headers, response.content.iter_any())
        except _UNSENT as error:
            raise Broken(_text(error), was_sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Broken(_text(error), was_sent=True) from error

    async def close(self) -> None:
        """As `Transport.close`."""
        if self._opened is not None:
            await self._opened.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS_MAX,
                    keepalive_timeout=IDLE_S_MAX,
                    ttl_dns_cache=10,
                    ssl=self._ssl,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._opened


def _text(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".rstrip()
