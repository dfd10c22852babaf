"""One write to the socket per answer.

uvicorn writes the head and the body of an answer one by one, and the event loop hands each to the
kernel at once.  On a small answer the second system call costs as much as the whole decision.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class CoalescingTransport:
    """A transport that joins what is written within one turn of the event loop.

    Everything but writing and closing is the wrapped transport's own.
    """

    __slots__ = ("_ahead", "_held", "_loop", "_supervised", "_transport", "is_closing")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        supervised: Callable[[Callable[[], None]], None],
    ) -> None:
        """supervised: calls what the loop shall call, and does not raise"""
        self._transport = transport
        self._loop = loop
        self._supervised = supervised
        self._held: list[bytes] = []
        self._ahead = b""
        self.is_closing = transport.is_closing  # asked for every part that comes in

    def write_ahead(self, beginning: bytes) -> None:
        """Write at once the bytes with which the next `write` begins, whatever follows them."""
        if not self._ahead and not self._held and not self._transport.is_closing():
            self._ahead = beginning
            self._transport.write(beginning)

    def write(self, data: bytes) -> None:
        if self._ahead:
            assert data.startswith(self._ahead)
            data, self._ahead = data[len(self._ahead) :], b""
        if not self._held:
            self._loop.call_soon(self._supervised, self._flush)
        self._held.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    def lost(self) -> None:
        """The connection is closed: what is written from now on nobody reads."""
        self._held.clear()
        self._supervised = _nobody_reads

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _nobody_reads(_callback: Callable[[], None]) -> None:
    """Takes the place of the protocol, which a closed transport shall not refer to."""
