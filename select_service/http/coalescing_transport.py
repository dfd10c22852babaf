"""Transport that sends each response with a single write to the socket.

uvicorn writes the head and the body of a response separately, and the event loop passes each to the
kernel at once.  For a small response the second system call costs as much as the whole decision.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class CoalescingTransport:
    """Transport wrapper that joins the writes of an iteration of the event loop.

    All methods except writing and closing are those of the wrapped transport.
    """

    __slots__ = ("_loop", "_pending", "_sent_ahead", "_supervised", "_transport", "is_closing")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        supervised: Callable[[Callable[[], None]], None],
    ) -> None:
        """supervised: runs a callback of the loop and handles its exceptions"""
        self._transport = transport
        self._loop = loop
        self._supervised = supervised
        self._pending: list[bytes] = []
        self._sent_ahead = b""
        # Bound here, since it is called for every received part.
        self.is_closing = transport.is_closing

    def write_ahead(self, beginning: bytes) -> None:
        """Write at once the bytes that the next `write` is known to begin with."""
        if not self._sent_ahead and not self._pending and not self._transport.is_closing():
            self._sent_ahead = beginning
            self._transport.write(beginning)

    def write(self, data: bytes) -> None:
        if self._sent_ahead:
            # The bytes already sent must not be sent twice.
            assert data.startswith(self._sent_ahead)
            data, self._sent_ahead = data[len(self._sent_ahead) :], b""
        # One flush per iteration: call_soon runs after the code that writes head and body.
        if not self._pending:
            self._loop.call_soon(self._supervised, self._flush_pending)
        self._pending.append(data)

    def close(self) -> None:
        self._flush_pending()
        self._transport.close()

    def _flush_pending(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._pending.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    def discard_pending(self) -> None:
        """Discard pending writes, because the connection is closed."""
        self._pending.clear()
        self._supervised = _ignore_callback

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._pending))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _ignore_callback(_callback: Callable[[], None]) -> None:
    """Replacement for the protocol's callback runner: a closed transport must not refer to its
    protocol.
    """
