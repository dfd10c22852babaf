"""Factory of the protocols of the fast path, one for each connection of a server."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.fastpath.fast_handler import FastHandler, FastHandlerWithHeaders
from select_service.fastpath.fastpath_protocol import FastPathProtocol
from select_service.fastpath.ready_connections import ReadyConnections
from select_service.fastpath.timeout_watch import TimeoutWatch


class FastPath:
    """Factory of the protocols of a server (see `http.http_server.ConnectionFactory`)."""

    def __init__(
        self,
        handler: FastHandlerWithHeaders,
        wrap_handler: Callable[[FastHandler], FastHandler] | None = None,
        ready: ReadyConnections | None = None,
    ) -> None:
        """Initialize without connections.

        wrap_handler: wraps the handler of each connection; None means unwrapped
        ready: watch of connections that have this handler, unwrapped; None means no watch
        """
        self._ready = ready
        self.wrap_handler = wrap_handler
        self.handler: FastHandler = handler if wrap_handler is None else wrap_handler(handler)
        self._is_disabled = False
        self.timeout_watch = TimeoutWatch()
        self.set_common_headers = handler.set_common_headers
        self._connections: set[Any] = set()

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        protocol = self.make_protocol(config, server_state)
        if self._is_disabled:
            protocol.use_handler(self.handler)
        return protocol

    def make_protocol(self, *server: Any) -> "FastPathProtocol":
        """Return a protocol.  server: configuration and state of the server"""
        protocol = FastPathProtocol(self.handler, self.timeout_watch, *server)
        protocol.ready = self._ready
        return protocol

    def start_accepting(self, state: ServerState) -> None:
        """Note the connections of the server."""
        self._connections = state.connections

    def leave_connections(self) -> None:
        """Disable the fast path, so that the ordinary path ends each connection."""
        self._is_disabled, self.handler = True, DeclineAll()
        for connection in self._connections:
            if isinstance(connection, FastPathProtocol):
                connection.use_handler(self.handler)


class DeclineAll:
    """`FastHandler` that declines every request."""

    end = 0

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        """See `FastHandler`."""
        return None
