"""What a handler may ask of the connection that its request came in on: is the client still there?

ASGI itself can only be waited for.  The protocol puts a `Connection` into every scope; where there
is none, as in an in-process client, nobody ever goes away.
"""

from collections.abc import Callable

from starlette.requests import Request

EXTENSION = "select_service.connection"
"""Its place among the `extensions` of an ASGI scope."""


class ClientGone(Exception):
    """The client closed the connection before it was answered; nobody waits for an answer."""


class Connection:
    """One client.  The protocol says when it is gone, a handler may ask for it or be told."""

    __slots__ = ("_told", "gone")

    def __init__(self) -> None:
        self.gone = False
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
