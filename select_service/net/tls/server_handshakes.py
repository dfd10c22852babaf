"""Handshakes of a TLS server: current certificate, connection limit, counters."""

import ssl
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakSet

_GO_ON = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HandshakeCounts(NamedTuple):
    """Handshakes since the start.

    failed: rejected by one side, or not TLS
    refused: over the connection limit
    abandoned: client disconnected or timed out
    open: running now
    """

    completed: int
    failed: int
    refused: int
    abandoned: int
    open: int


class HandshakeContext(ssl.SSLContext):
    """SSL context for the event loop that delegates to the current context.

    Every new connection gets the current context, so that certificates change without dropping
    connections.  Connections without a completed handshake are unknown to the HTTP server and are
    counted here.  Belongs to the thread of the event loop.
    """

    def __new__(cls, current: ssl.SSLContext) -> "HandshakeContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: ssl.SSLContext) -> None:
        self.is_full: Callable[[], bool] = lambda: False
        """Function that returns whether the connection limit is reached."""
        self.is_ending = False
        """Whether the process is shutting down.

        Connections then do not wait for the client's close_notify.
        """
        self._begun = self._completed = self._failed = self._refused = 0
        self._open: WeakSet[_Handshake] = WeakSet()
        self.set_context(current)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def set_context(self, current: ssl.SSLContext) -> None:
        """Set the context of new connections."""
        # asyncio calls `wrap_bio` of this context only, so the class must be set on the current
        # one.
        current.sslobject_class = _Handshake
        self._current = current

    def current_counts(self) -> HandshakeCounts:
        """Return the counters."""
        n_open = self.open_count
        abandoned = self._begun - self._completed - self._failed - n_open
        return HandshakeCounts(self._completed, self._failed, self._refused, abandoned, n_open)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a handshake; called by the event loop, which closes the connection on an
        exception.
        """
        if self.is_full():
            self._refused += 1
            raise ssl.SSLError("too many connections")
        handshake = self._current.wrap_bio(
            incoming, outgoing, server_side, server_hostname, session
        )
        assert isinstance(handshake, _Handshake)
        handshake.owner = self
        self._begun += 1
        self._open.add(handshake)
        return handshake

    def record_end(self, handshake: "_Handshake", *, well: bool) -> None:
        """Count the end of a handshake; called once by the handshake."""
        self._open.discard(handshake)
        if well:
            self._completed += 1
        else:
            self._failed += 1


class _Handshake(ssl.SSLObject):
    """Handshake of a connection, afterwards its TLS object."""

    owner: HandshakeContext

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except _GO_ON:
            raise
        except ssl.SSLError:
            self.owner.record_end(self, well=False)
            raise
        self.owner.record_end(self, well=True)

    def unwrap(self) -> None:
        """Send close_notify.  At shutdown, do not wait for the client's reply."""
        try:
            super().unwrap()
        except ssl.SSLWantReadError:
            if not self.owner.is_ending:
                raise
