"""Connection pool: keep-alive connections per origin, and one-shot connections."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

from select_service.net.http_client.connection_opener import (
    ConnectionTls,
    Origin,
    Resolve,
    encode_request,
    open_connection,
    split_url,
)
from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.http_error import HttpError

KEEP_ALIVE_S = 15.0
"""Time after which an idle connection is closed, in seconds."""
DEFAULT_HEADERS = {"accept-encoding": "identity", "user-agent": "select-service"}
"""Default headers of every request."""


class HttpResponse:
    """Response with status and headers and an unread body."""

    def __init__(self, connection: HttpConnection, status: int, headers: Mapping[str, str]) -> None:
        """headers: headers by lower-case name"""
        self.status, self.headers = status, headers
        self._connection = connection

    async def read_some(self) -> bytes:
        """Return the next part of the body; empty at its end.  Raises HttpError."""
        return await self._connection.read_some()

    async def read_body(self, bytes_max: int) -> bytes:
        """Return the complete body.  Raises HttpError."""
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > bytes_max:
            raise HttpError("too_large", f"response body has more than {bytes_max} bytes")
        body = bytearray()
        while part := await self.read_some():
            body += part
            if len(body) > bytes_max:
                raise HttpError("too_large", f"response body has more than {bytes_max} bytes")
        return bytes(body)


@dataclass(slots=True)
class _KeptConnection:
    """Keep-alive connection of an origin.

    last_request_at: end of the last request, monotonic clock, seconds
    """

    connection: HttpConnection | None = None
    tls: ConnectionTls | None = None
    is_used: bool = False
    last_request_at: float = field(default_factory=monotonic)
    closing: asyncio.TimerHandle | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if self.closing is not None:
            self.closing.cancel()
        if connection is not None:
            connection.close()


class ConnectionPool:
    """Pool of at most `connections_max` connections, active and idle.

    Half of the connections are kept alive, one per origin, for the origins that were requested
    first and are still in use.  The other half serves everything else on one-shot connections:
    further origins, requests to an origin with its connection in use, and methods other than GET.
    Origins that never answer therefore block only such requests.
    """

    def __init__(self, resolve: Resolve, connections_max: int, proxy: str | None = None) -> None:
        """connections_max: at least 2
        proxy: see `open_connection`
        """
        assert connections_max >= 2
        self._resolve, self._proxy = resolve, proxy
        self._kept_max = connections_max // 2
        self._kept: OrderedDict[Origin, _KeptConnection] = OrderedDict()
        """Keep-alive connections, least recently used first."""
        self._one_shot_permits = asyncio.Semaphore(connections_max - self._kept_max)
        self._open: set[HttpConnection] = set()

    async def close(self) -> None:
        """Cancel running requests and close all connections."""
        for kept in self._kept.values():
            kept.close()
        for connection in tuple(self._open):
            connection.close()
        await asyncio.sleep(0)  # lets the transports close

    @contextlib.asynccontextmanager
    async def open_request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        tls: ConnectionTls | None = None,
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and yield the response, whatever its status.

        url: percent-encoded URL
        headers: headers by lower-case name
        tls: settings for https; None means the CAs of the system.  A connection with other settings
        is not reused.
        Raises HttpError, also while the body is read.
        """
        origin, host, target = split_url(url)
        with self._claim_kept(origin, method) as kept:
            is_kept = kept is not None
            all_headers = {
                **DEFAULT_HEADERS,
                # The server then closes at once instead of waiting for another request.
                **({} if is_kept else {"connection": "close"}),
                **headers,
            }
            message = encode_request(method, target, host, list(all_headers.items()), body)
            if kept is None:
                async with self._one_shot_permits:
                    connection = await self._open_one_shot(origin, tls)
                    try:
                        yield await _send_and_read_head(connection, message)
                    finally:
                        self._open.discard(connection)
                        connection.close()
                return
            try:
                yield await self._send_on_kept(kept, origin, tls, message)
            finally:
                self._return_kept(kept)

    async def _send_on_kept(
        self, kept: _KeptConnection, origin: Origin, tls: ConnectionTls | None, message: bytes
    ) -> HttpResponse:
        """Send a request over the keep-alive connection, reopening it if needed.

        Raises HttpError.
        """
        connection = kept.connection
        if connection is not None and connection.is_reusable and kept.tls == tls:
            try:
                return await _send_and_read_head(connection, message)
            except HttpError as error:
                # A server may close an idle connection at any time: a GET is safe to repeat if
                # nothing came back.
                if error.failure != "closed" or connection.has_answer_begun:
                    raise
        kept.close()  # closed by the server, or opened with other TLS settings
        kept.connection, kept.tls = (
            await open_connection(origin, self._resolve, tls, self._proxy),
            tls,
        )
        return await _send_and_read_head(kept.connection, message)

    def _return_kept(self, kept: _KeptConnection) -> None:
        if kept.connection is None or not kept.connection.is_reusable:
            kept.close()
            return
        kept.closing = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, kept.close)

    async def _open_one_shot(self, origin: Origin, tls: ConnectionTls | None) -> HttpConnection:
        connection = await open_connection(origin, self._resolve, tls, self._proxy)
        self._open.add(connection)
        return connection

    @contextlib.contextmanager
    def _claim_kept(self, origin: Origin, method: str) -> Iterator[_KeptConnection | None]:
        """Yield the keep-alive entry for the request, or None for a one-shot connection."""
        kept = None
        if method == "GET":
            kept = self._kept.get(origin) or self._add_kept(origin)
        if kept is None or kept.is_used:
            yield None
            return
        if kept.closing is not None:
            kept.closing.cancel()
        # Claimed for one request at a time: HTTP/1.1 without pipelining.
        kept.is_used = True
        try:
            yield kept
        finally:
            kept.is_used, kept.last_request_at = False, monotonic()
            self._kept.move_to_end(origin)

    def _add_kept(self, origin: Origin) -> _KeptConnection | None:
        """Add a keep-alive entry if one is free or the oldest is unused for long."""
        if len(self._kept) >= self._kept_max:
            oldest, kept = next(iter(self._kept.items()))
            # Evicted only long after its connection was closed: origins in regular use keep their
            # entry.
            if kept.is_used or monotonic() - kept.last_request_at < 2 * KEEP_ALIVE_S + 1.0:
                return None
            kept.close()
            del self._kept[oldest]
        self._kept[origin] = _KeptConnection()
        return self._kept[origin]


async def _send_and_read_head(connection: HttpConnection, message: bytes) -> HttpResponse:
    """Send a request; return the response when its head is complete.  Raises HttpError."""
    connection.send_request(message)
    answer = await connection.read_head()
    return HttpResponse(connection, answer.status, answer.headers)
