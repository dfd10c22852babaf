"""HTTP transport based on aiohttp, which uses less CPU than httpx.

No other module imports aiohttp.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

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

_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class AiohttpTransport:
    """A session that the first exchange opens on the current event loop."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: TLS settings of https; None means the CAs that the system trusts"""
        self._ssl = ssl_context or True
        self._open_session: aiohttp.ClientSession | None = None

    async def send(self, url: str, asked: ClientRequest, timeout_s: float) -> ClientResponse:
        """See `Transport.send`."""
        async with self.stream(url, asked, timeout_s) as answer:
            pieces, n_bytes = [], 0
            async for piece in answer.pieces:
                n_bytes += len(piece)
                if n_bytes > ANSWER_BYTES_MAX:
                    raise too_large_error(ANSWER_BYTES_MAX)
                pieces.append(piece)
        return ClientResponse(answer.status, answer.headers, b"".join(pieces))

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, asked: ClientRequest, silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        """See `Transport.stream`."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S_MAX, silence_s), sock_read=silence_s
        )
        try:
            async with self._ensure_session().request(
                asked.method,
                URL(url + asked.target, encoded=True),
                data=asked.content,
                headers=asked.headers,
                timeout=timeout,
                # A redirect could send the API key to another host.
                allow_redirects=False,
            ) as response:
                yield StreamedResponse(
                    response.status, response.headers, response.content.iter_any()
                )
        # Connecting failed, so no selector can have executed the request.
        except _UNSENT as error:
            raise TransportError(_error_text(error), was_sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(_error_text(error), was_sent=True) from error

    async def close(self) -> None:
        """See `Transport.close`."""
        if self._open_session is not None:
            await self._open_session.close()

    def _ensure_session(self) -> aiohttp.ClientSession:
        if self._open_session is None:
            self._open_session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS_MAX,
                    keepalive_timeout=IDLE_S_MAX,
                    ttl_dns_cache=10,
                    ssl=self._ssl,
                ),
                # Selectors set no cookies; a real jar costs CPU in each exchange.
                cookie_jar=aiohttp.DummyCookieJar(),
                # Decompression would let a small answer grow beyond the bounds of a stream.
                auto_decompress=False,
            )
        return self._open_session


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".rstrip()
