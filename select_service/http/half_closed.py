"""Finds out whether the client of a half-closed connection still reads.

A client that has closed its sending side waits for its answer.  A client that has closed the whole
connection does not, and until something is written to them both look the same: the system of the
second answers what is written with a reset.  So if an answer takes its time, its first bytes, which
are the same for every answer, are written ahead, and the socket is looked at from time to time.
The event loop does not report a reset, because nothing is read from the socket any more.
"""

import asyncio
import select
from collections.abc import Callable

from select_service.http.coalescing import CoalescingTransport

ANSWER_BEGINS = b"HTTP/1.1 "
"""The first bytes of every answer."""
FIRST_LOOK_S = 0.05
"""An answer that comes earlier is written as a whole."""
LOOK_S_MAX = 1.0
"""The time between two looks doubles up to this."""


class HalfClosed:
    """Looks at one half-closed connection until it is reset, or `stop` is called."""

    def __init__(
        self,
        transport: CoalescingTransport,
        loop: asyncio.AbstractEventLoop,
        supervised: Callable[[Callable[[], None]], None],
        may_begin: Callable[[], bool],
    ) -> None:
        """supervised: calls what the loop shall call, and does not raise
        may_begin: returns whether the next byte that is written begins an answer
        """
        self._transport, self._loop, self._supervised = transport, loop, supervised
        self._may_begin = may_begin
        self._next_s = FIRST_LOOK_S
        self._timer = loop.call_later(self._next_s, supervised, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._is_reset():
            self._transport.abort()
            return
        if self._may_begin():
            self._transport.write_ahead(ANSWER_BEGINS)
        self._next_s = min(2 * self._next_s, LOOK_S_MAX)
        self._timer = self._loop.call_later(self._next_s, self._supervised, self._look)

    def _is_reset(self) -> bool:
        """Return whether the client has closed its receiving side, too."""
        looked_at = select.poll()
        looked_at.register(self._transport.get_extra_info("socket").fileno(), 0)
        return bool(looked_at.poll(0))
