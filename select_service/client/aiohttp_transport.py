"""HTTP transport based on aiohttp, which uses less CPU than httpx.

No other module imports aiohttp.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from select_service.client.transport import (
    CONNECT_S_MAX,
    CONNECTIONS_MAX,
    IDLE_S_MAX,
    ClientRequest,
    StreamedResponse,
    Transport,
    transport_error,
)

_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class AiohttpTransport(Transport):
    """A session that the first exchange opens on the current event loop."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """ssl_context: TLS settings of https; None means the CAs that the system trusts"""
        self._ssl = ssl_context or True
        self._open_session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, request: ClientRequest, silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        """See `Transport.stream`."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S_MAX, silence_s), sock_read=silence_s
        )
        try:
            async with self._ensure_session().request(
                request.method,
                URL(url + request.target, encoded=True),
                data=request.content,
                headers=request.headers,
                timeout=timeout,
                # A redirect could send the API key to another host.
                allow_redirects=False,
            ) as response:
                yield StreamedResponse(
                    response.status, response.headers, response.content.iter_any()
                )
        # Connecting failed, so no selector can have executed the request.
        except _UNSENT as error:
            raise transport_error(error, was_sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise transport_error(error, was_sent=True) from error

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
