"""Connections that are kept from one request to the next, and those that end with their answer."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

from select_service.outgoing.connecting import (
    Origin,
    Resolve,
    Tls,
    open_connection,
    request_message,
    split_url,
)
from select_service.outgoing.http_connection import HttpConnection
from select_service.outgoing.request_error import RequestError

KEEP_S = 15.0
"""How long a connection waits for the next request."""
HEADERS = {"accept-encoding": "identity", "user-agent": "select-service"}
"""Of every request that has no others of these names."""


class Answer:
    """An answer whose status and headers are there, and whose body is being read."""

    def __init__(self, connection: HttpConnection, status: int, headers: Mapping[str, str]) -> None:
        """headers: names in lower case"""
        self.status, self.headers = status, headers
        self._connection = connection

    async def read_some(self) -> bytes:
        """Return what has come of the body; nothing at its end.  Raises RequestError."""
        return await self._connection.read_some()

    async def body(self, bytes_max: int) -> bytes:
        """Return all of the body.  Raises RequestError."""
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > bytes_max:
            raise RequestError("too_large", f"the answer has more than {bytes_max} bytes")
        body = bytearray()
        while part := await self.read_some():
            body += part
            if len(body) > bytes_max:
                raise RequestError("too_large", f"the answer has more than {bytes_max} bytes")
        return bytes(body)


@dataclass(slots=True)
class _Kept:
    """The connection of an origin; `asked_at` is the end of the last request, in monotonic s."""

    connection: HttpConnection | None = None
    tls: Tls | None = None
    is_used: bool = False
    asked_at: float = field(default_factory=monotonic)
    closing: asyncio.TimerHandle | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if self.closing is not None:
            self.closing.cancel()
        if connection is not None:
            connection.close()


class ConnectionPool:
    """At most `connections_max` connections at a time, idle ones included.

    Half of them are kept from one request to the next, one of each origin, for those that were
    asked first and are still asked.  The other half is for what comes besides: further origins,
    requests to one whose connection is in use, and all that is no GET; each on a connection that
    ends with its answer.  So origins that never answer keep no others waiting but such ones.
    """

    def __init__(self, resolve: Resolve, connections_max: int, proxy: str | None = None) -> None:
        """connections_max: at least 2.  proxy: see `open_connection`"""
        assert connections_max >= 2
        self._resolve, self._proxy = resolve, proxy
        self._kept_max = connections_max // 2
        self._kept: OrderedDict[Origin, _Kept] = OrderedDict()
        """Those that were asked longest ago first."""
        self._passing = asyncio.Semaphore(connections_max - self._kept_max)
        self._open: set[HttpConnection] = set()

    async def close(self) -> None:
        """Break off what is under way."""
        for kept in self._kept.values():
            kept.close()
        for connection in tuple(self._open):
            connection.close()
        await asyncio.sleep(0)  # for the transports to close

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        tls: Tls | None = None,
    ) -> AsyncIterator[Answer]:
        """Give an answer with whatever status.  Raises RequestError, inside as well.

        url: with percent signs where they are needed.  headers: names in lower case
        tls: over https; None means whom the system trusts.  Connections with another one are not
        used
        """
        origin, host, target = split_url(url)
        with self._place_of(origin, method) as kept:
            is_kept = kept is not None
            all_headers = {**HEADERS, **({} if is_kept else {"connection": "close"}), **headers}
            message = request_message(method, target, host, list(all_headers.items()), body)
            if kept is None:
                async with self._passing:
                    connection = await self._opened(origin, tls)
                    try:
                        yield await _answered(connection, message)
                    finally:
                        self._open.discard(connection)
                        connection.close()
                return
            try:
                yield await self._answered_kept(kept, origin, tls, message)
            finally:
                self._put_back(kept)

    async def _answered_kept(
        self, kept: _Kept, origin: Origin, tls: Tls | None, message: bytes
    ) -> Answer:
        """Raises RequestError."""
        connection = kept.connection
        if connection is not None and connection.is_reusable and kept.tls == tls:
            try:
                return await _answered(connection, message)
            except RequestError as error:
                if error.failure != "closed" or connection.has_answer_begun:
                    raise
        kept.close()  # the server has closed it meanwhile, or it is of another trust
        kept.connection, kept.tls = (
            await open_connection(origin, self._resolve, tls, self._proxy),
            tls,
        )
        return await _answered(kept.connection, message)

    def _put_back(self, kept: _Kept) -> None:
        if kept.connection is None or not kept.connection.is_reusable:
            kept.close()
            return
        kept.closing = asyncio.get_running_loop().call_later(KEEP_S, kept.close)

    async def _opened(self, origin: Origin, tls: Tls | None) -> HttpConnection:
        connection = await open_connection(origin, self._resolve, tls, self._proxy)
        self._open.add(connection)
        return connection

    @contextlib.contextmanager
    def _place_of(self, origin: Origin, method: str) -> Iterator[_Kept | None]:
        """Give the place of the connection that is kept; None where the request has its own."""
        kept = None
        if method == "GET":
            kept = self._kept.get(origin) or self._newly_kept(origin)
        if kept is None or kept.is_used:
            yield None
            return
        if kept.closing is not None:
            kept.closing.cancel()
        kept.is_used = True
        try:
            yield kept
        finally:
            kept.is_used, kept.asked_at = False, monotonic()
            self._kept.move_to_end(origin)

    def _newly_kept(self, origin: Origin) -> _Kept | None:
        """Make a place where one is free, or where the connection was closed long ago."""
        if len(self._kept) >= self._kept_max:
            oldest, kept = next(iter(self._kept.items()))
            if kept.is_used or monotonic() - kept.asked_at < 2 * KEEP_S + 1.0:
                return None
            kept.close()
            del self._kept[oldest]
        self._kept[origin] = _Kept()
        return self._kept[origin]


async def _answered(connection: HttpConnection, message: bytes) -> Answer:
    """Send the request, and return the answer when its head is there.  Raises RequestError."""
    connection.send(message)
    answer = await connection.head()
    return Answer(connection, answer.status, answer.headers)
