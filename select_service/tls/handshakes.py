"""The handshakes of a server: by which certificate, how many at a time, and how they ended."""

import ssl
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakSet

_GO_ON = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HandshakeCounts(NamedTuple):
    """Since the start.  failed: one side did not accept the other, or what came is not TLS
    refused: there were too many connections;  abandoned: the client left, or took too long
    open: now
    """

    completed: int
    failed: int
    refused: int
    abandoned: int
    open: int


class Handshakes(ssl.SSLContext):
    """What an event loop takes for the context of a server.

    Every new connection gets the context that counts then, so that certificates change without a
    connection being dropped.  A connection that has no handshake behind it is known to nobody else,
    so it is counted here.  Belongs to the thread of the event loop.
    """

    def __new__(cls, current: ssl.SSLContext) -> "Handshakes":
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: ssl.SSLContext) -> None:
        self.is_full: Callable[[], bool] = lambda: False
        """May no connection begin?"""
        self.is_ending = False
        """Does the process end?  Then no connection waits for its client to take leave, too."""
        self._begun = self._completed = self._failed = self._refused = 0
        self._open: WeakSet[_Handshake] = WeakSet()
        self.use(current)

    @property
    def open(self) -> int:
        return len(self._open)

    def use(self, current: ssl.SSLContext) -> None:
        """For connections that begin from now on."""
        current.sslobject_class = _Handshake
        self._current = current

    def counts(self) -> HandshakeCounts:
        n_open = self.open
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
        """The event loop's, for a new connection; what is raised closes it."""
        if self.is_full():
            self._refused += 1
            raise ssl.SSLError("too many connections")
        handshake = self._current.wrap_bio(
            incoming, outgoing, server_side, server_hostname, session
        )
        assert isinstance(handshake, _Handshake)
        handshake.told = self
        self._begun += 1
        self._open.add(handshake)
        return handshake

    def ended(self, handshake: "_Handshake", *, well: bool) -> None:
        """Called by it, once."""
        self._open.discard(handshake)
        if well:
            self._completed += 1
        else:
            self._failed += 1


class _Handshake(ssl.SSLObject):
    """Of one connection, whose side of TLS it is afterwards."""

    told: Handshakes

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except _GO_ON:
            raise
        except ssl.SSLError:
            self.told.ended(self, well=False)
            raise
        self.told.ended(self, well=True)

    def unwrap(self) -> None:
        """Take leave.  A client that waits for nothing does not answer before it is used again."""
        try:
            super().unwrap()
        except ssl.SSLWantReadError:
            if not self.told.is_ending:
                raise
