"""What a handler may ask of the connection that its request came in on: is the client still there?

ASGI itself can only be waited for.  The protocol puts a `Connection` into every scope; where there
is none, as in an in-process client, nobody ever goes away.
"""

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request

from select_service.access.guard import Grant

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

    __slots__ = ("_told", "gone", "verified")

    def __init__(self) -> None:
        self.gone = False
        self.verified: Verified | None = None
        self._told: Callable[[], None] = _nobody

    def tell(self, told: Callable[[], None]) -> None:
        """Call `told` once the client is gone, at once when it is already.

        For the one request that is being answered; a later call takes the place of this one.
        """
        self._told = told
        if self.gone:
            told()

    def forget(self) -> None:
        """Nobody is to be told any more."""
        self._told = _nobody

    def lost(self) -> None:
        """The protocol's: the connection is closed."""
        self.gone = True
        told, self._told = self._told, _nobody
        told()


def connection_of(request: Request) -> Connection:
    """The connection of a request."""
    extensions = request.scope.get("extensions") or {}
    connection: Connection | None = extensions.get(EXTENSION)
    return Connection() if connection is None else connection


def _nobody() -> None:
    """Who is told when no handler asked for it."""
