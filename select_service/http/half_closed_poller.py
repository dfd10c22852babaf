"""Detection of clients that closed a connection completely, although only one half seems closed.

A client that has closed its sending side waits for the response.  A client that has closed the
whole connection does not, and both look the same until something is written: only the second
client's system responds with a reset.  Therefore, if a response takes long, its first bytes, which
are the same for every response, are sent ahead, and the socket is polled at intervals. The event
loop does not report a reset, because reading has ended.
"""

import asyncio
import select
from collections.abc import Callable

from select_service.http.coalescing_transport import CoalescingTransport

RESPONSE_PREFIX = b"HTTP/1.1 "
"""First bytes of every response."""
FIRST_POLL_S = 0.05
"""Seconds until the first poll; faster responses are sent as a whole."""
POLL_INTERVAL_S_MAX = 1.0
"""Longest interval between two polls, seconds; intervals double up to this."""


class HalfClosedPoller:
    """Poller of a half-closed connection until the connection is reset or `stop_polling` is
    called.
    """

    def __init__(
        self,
        transport: CoalescingTransport,
        loop: asyncio.AbstractEventLoop,
        supervised: Callable[[Callable[[], None]], None],
        may_begin: Callable[[], bool],
    ) -> None:
        """supervised: runs a callback of the loop and handles its exceptions
        may_begin: returns whether the next written byte begins a response
        """
        self._transport, self._loop, self._supervised = transport, loop, supervised
        self._may_begin = may_begin
        self._next_s = FIRST_POLL_S
        self._timer = loop.call_later(self._next_s, supervised, self._poll_socket)

    def stop_polling(self) -> None:
        self._timer.cancel()

    def _poll_socket(self) -> None:
        """Abort a reset connection; otherwise send the first bytes ahead and poll again later."""
        if self._is_reset():
            self._transport.abort()
            return
        if self._may_begin():
            self._transport.write_ahead(RESPONSE_PREFIX)
        self._next_s = min(2 * self._next_s, POLL_INTERVAL_S_MAX)
        self._timer = self._loop.call_later(self._next_s, self._supervised, self._poll_socket)

    def _is_reset(self) -> bool:
        """Return whether the client has closed its receiving side, too."""
        looked_at = select.poll()
        # Event mask 0: poll then reports only errors and hang-ups, which include the reset.
        looked_at.register(self._transport.get_extra_info("socket").fileno(), 0)
        return bool(looked_at.poll(0))
