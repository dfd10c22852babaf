"""What a handler may ask of the connection that its request came in on: is the client still there?

ASGI itself can only be waited for.  The protocol puts a `Connection` into every scope; where there
is none, as in an in-process client, nobody ever goes away.
"""

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request

from select_service.access.guard import Grant
from select_service.access.shares import Holder, SharedLimit

EXTENSION = "select_service.connection"
"""Its place among the `extensions` of an ASGI scope."""


class ClientGone(Exception):
    """The client closed the connection before it was answered; nobody waits for an answer."""


class Verified(NamedTuple):
    """The value of `authorization` with which a request was let in, and as whom."""

    value: bytes
    grant: Grant


class Connection:
    """One client.  The protocol says when it is gone, a handler may ask for it or be told.

    verified: of the last request that came with a key that is known
    """

    __slots__ = (
        "_counted",
        "_told",
        "_told_of_end",
        "gone",
        "is_half_closed",
        "is_real",
        "verified",
    )

    def __init__(self, *, is_real: bool = True) -> None:
        """is_real: False: it stands for one that nobody tells us of"""
        self.gone, self.is_real = False, is_real
        self.is_half_closed = False
        self.verified: Verified | None = None
        self._told: Callable[[], None] = _nobody
        self._told_of_end: Callable[[], None] = _nobody
        self._counted: tuple[SharedLimit, Holder] | None = None

    def count(self, limit: SharedLimit, holder: Holder) -> None:
        """Count it, while it is open, for whom the request in hand comes from.

        Raises QuotaExceeded.
        """
        if self.gone or (self._counted is not None and self._counted[1] is holder):
            return
        self._uncount()
        limit.take(holder)
        self._counted = limit, holder

    def _uncount(self) -> None:
        if self._counted is not None:
            limit, holder = self._counted
            self._counted = None
            limit.give_back(holder)

    def tell(self, told: Callable[[], None]) -> None:
        """Call `told` once the client is gone, at once when it is already.

        For the one request that is being answered; a later call takes the place of this one.
        """
        self._told = told
        if self.gone:
            told()

    def tell_of_end(self, told: Callable[[], None]) -> None:
        """Call `told` once the client sends nothing more: it is gone, or waits for the rest of an
        answer, which only writing can tell."""
        self._told_of_end = told

    def half_close(self) -> None:
        """The protocol's: the client sends nothing more."""
        self.is_half_closed = True
        told, self._told_of_end = self._told_of_end, _nobody
        told()

    def forget(self) -> None:
        """Nobody is to be told any more."""
        self._told = _nobody

    def lost(self) -> None:
        """The protocol's: the connection is closed."""
        self.gone, self._told_of_end = True, _nobody
        self._uncount()
        told, self._told = self._told, _nobody
        told()


def connection_of(request: Request) -> Connection:
    """The connection of a request."""
    extensions = request.scope.get("extensions") or {}
    connection: Connection | None = extensions.get(EXTENSION)
    return Connection(is_real=False) if connection is None else connection


def _nobody() -> None:
    """Who is told when no handler asked for it."""
