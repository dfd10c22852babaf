"""Connection of a request, as handlers see it: notifications when the client disconnects.

ASGI only offers waiting for messages.  The protocol therefore puts a `ClientConnection` into every
scope; an in-process client has none, and never disconnects.
"""

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request

from select_service.auth.guard import Grant
from select_service.auth.limit_shares import Holder, SharedLimit

EXTENSION_KEY = "select_service.connection"
"""Key of the connection among the `extensions` of an ASGI scope."""


class ClientGone(Exception):
    """The client disconnected before the response; no response is needed."""


class VerifiedCredentials(NamedTuple):
    """Value of the `authorization` header of an accepted request, and its grant."""

    value: bytes
    grant: Grant


class ClientConnection:
    """Client connection.

    The protocol reports its end; handlers query the state or register callbacks.

    verified: credentials of the last request with a known key
    """

    __slots__ = (
        "_counted",
        "_disconnect_callback",
        "_input_end_callback",
        "is_gone",
        "is_half_closed",
        "is_real",
        "verified",
    )

    def __init__(self, *, is_real: bool = True) -> None:
        """is_real: False for a placeholder without notifications"""
        self.is_gone, self.is_real = False, is_real
        self.is_half_closed = False
        self.verified: VerifiedCredentials | None = None
        self._disconnect_callback: Callable[[], None] = _ignore
        self._input_end_callback: Callable[[], None] = _ignore
        self._counted: tuple[SharedLimit, Holder] | None = None

    def count_for(self, limit: SharedLimit, holder: Holder) -> None:
        """Count the connection, while open, for the holder of its current request.

        Raises QuotaExceeded.
        """
        # A connection is usually used by one key: count again only if the key has changed.
        if self.is_gone or (self._counted is not None and self._counted[1] is holder):
            return
        self._remove_count()
        limit.take(holder)
        self._counted = limit, holder

    def _remove_count(self) -> None:
        if self._counted is not None:
            limit, holder = self._counted
            self._counted = None
            limit.give_back(holder)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Set the callback for the end of the connection, called at once if it has ended.

        There is one callback, for the request being answered; a later call replaces the callback.
        """
        self._disconnect_callback = callback
        if self.is_gone:
            callback()

    def on_input_end(self, callback: Callable[[], None]) -> None:
        """Set the callback for the client's last byte.

        The client is then gone, or waits for the rest of a response; only writing can distinguish
        the two.
        """
        self._input_end_callback = callback

    def mark_half_closed(self) -> None:
        """Handle the end of the client's input; called by the protocol."""
        self.is_half_closed = True
        callback, self._input_end_callback = self._input_end_callback, _ignore
        callback()

    def clear_on_disconnect(self) -> None:
        """Remove the callback of `on_disconnect`."""
        self._disconnect_callback = _ignore

    def mark_lost(self) -> None:
        """Handle the end of the connection; called by the protocol."""
        self.is_gone, self._input_end_callback = True, _ignore
        self._remove_count()
        # Reset before the call, so that the callback's references do not outlive the request.
        callback, self._disconnect_callback = self._disconnect_callback, _ignore
        callback()


def connection_of(request: Request) -> ClientConnection:
    """Return the connection of a request, or a placeholder."""
    extensions = request.scope.get("extensions") or {}
    connection: ClientConnection | None = extensions.get(EXTENSION_KEY)
    return ClientConnection(is_real=False) if connection is None else connection


def _ignore() -> None:
    """Default callback, which does nothing."""
