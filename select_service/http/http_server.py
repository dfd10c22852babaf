"""HTTP server: from the listening socket to the last connection.

SIGTERM drains: for a while requests are answered as usual, but every response is the last of its
connection, so that clients with persistent connections move elsewhere without losing a request.
SIGINT, and any second signal, ends the process at once.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from select_service.http.bounded_protocol import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_S,
    UNREAD_S_MAX,
    BoundedProtocol,
)
from select_service.http.request_head import Headers
from select_service.net.tls.server_handshakes import HandshakeContext

SHUTDOWN_GRACE_S = 1
"""Time for requests in flight to finish after a signal, seconds."""
HANDSHAKE_S_MAX = 10.0
"""Longest time from the opening of a connection to the end of its TLS handshake, seconds."""
CLOSE_HEADER = (b"connection", b"close")
DRAIN_POLL_S = 0.05
LISTENER_DUPLICATES = 16
"""Number of duplicates of the listening socket given to the event loop.

libuv accepts one connection per listening socket and iteration, and under load every iteration also
serves all existing connections: of many clients connecting at once, the last waited seconds.
"""


class SupervisedApplication(Protocol):
    """ASGI application with notifications from connections and the server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def count_refused(self, status: int) -> None:
        """Handle an error response that a connection sent before a complete request."""

    def report_failure(self, callback: str) -> None:
        """Handle an exception raised by a callback of the event loop."""

    def start_draining(self) -> None:
        """Handle the start of the drain: clients should move away."""

    def start_shutdown(self) -> None:
        """Handle the shutdown: waiting requests must be answered now."""


class ConnectionFactory(Protocol):
    """Factory of protocols that read the bytes of every connection before BoundedProtocol does."""

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection."""

    def set_common_headers(self, headers: Headers) -> None:
        """Set the headers common to all responses from now on, such as the date."""

    def start_accepting(self, state: ServerState) -> None:
        """Start serving a server that accepts connections; `state` has the open ones."""

    def leave_connections(self) -> None:
        """Make every response from now on the last of its connection."""


class DrainPeriod(NamedTuple):
    """Drain parameters.  seconds: duration after SIGTERM;  leave_address: called first"""

    seconds: float
    leave_address: Callable[[], None]


class DrainingServer(uvicorn.Server):
    """uvicorn server that ends with status 0 after a signal, instead of raising the signal
    again.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        application: SupervisedApplication,
        connection_factory: ConnectionFactory | None,
        drain_period: DrainPeriod,
        handshakes: HandshakeContext | None,
    ) -> None:
        super().__init__(config)
        self._handshakes = handshakes
        if handshakes is not None:
            handshakes.is_full = self._is_full
        self._application = application
        self._front = connection_factory
        self._drain_s, self._leave_address = drain_period
        self._common_headers: Headers | None = None

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        headers = self.server_state.default_headers
        if self._front is not None and self._common_headers is not headers:
            self._common_headers = headers
            self._front.set_common_headers(headers)
        return ends

    async def main_loop(self) -> None:
        await super().main_loop()
        # A second signal during the drain must end the process, so look for exactly one.
        if self._drain_s and self._captured_signals == [signal.SIGTERM]:
            await self._drain_connections()

    async def _drain_connections(self) -> None:
        """Drain until the time is over or another signal arrives."""
        self._leave_address()
        # on_tick renews these headers only in main_loop, which has ended: the addition stays.
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        if self._front is not None:
            self._front.leave_connections()
        self._application.start_draining()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._drain_s
        while loop.time() < ends_at and len(self._captured_signals) == 1:
            await asyncio.sleep(DRAIN_POLL_S)

    async def _accept_on(self, listeners: list[socket.socket]) -> None:
        """Accept connections on the sockets, with TLS if configured."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}
            )

        loop = asyncio.get_running_loop()
        is_tls = self._handshakes is not None
        for listener in listeners:
            server = await loop.create_server(
                protocol,
                sock=listener,
                ssl=self._handshakes,
                backlog=self.config.backlog,
                ssl_handshake_timeout=HANDSHAKE_S_MAX if is_tls else None,
                ssl_shutdown_timeout=UNREAD_S_MAX if is_tls else None,
            )
            self.servers.append(server)

    def _is_full(self) -> bool:
        """Return whether all allowed connections are in use, including those in a TLS handshake."""
        assert self._handshakes is not None
        return len(self.server_state.connections) + self._handshakes.open_count >= CONNECTIONS_MAX

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._handshakes is None:
            await super().startup(sockets)
        else:
            # uvicorn's startup would listen without TLS: pass no sockets and accept here.
            await super().startup([])
            await self._accept_on(sockets or [])
        if self._front is not None:
            self._front.start_accepting(self.server_state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Release waiting requests first: uvicorn waits for all requests in flight.
        self._application.start_shutdown()
        if self._handshakes is not None:
            self._handshakes.is_ending = True
        await super().shutdown(sockets)


def duplicate_listener(listener: socket.socket) -> list[socket.socket]:
    """Return the listener and duplicates of it, LISTENER_DUPLICATES in total."""
    return [listener, *(listener.dup() for _ in range(LISTENER_DUPLICATES - 1))]


def make_http_server(
    application: SupervisedApplication,
    connection_factory: ConnectionFactory | None = None,
    drain_period: DrainPeriod = DrainPeriod(0.0, lambda: None),  # noqa: B008  it never changes
    handshakes: HandshakeContext | None = None,
    keep_alive_s: int = KEEP_ALIVE_S,
) -> DrainingServer:
    """Return the HTTP server, with all limits and without unused features of uvicorn.

    handshakes: TLS; None means plain HTTP
    keep_alive_s: idle time before a connection is closed, seconds
    """
    config = uvicorn.Config(
        application,
        http=connection_factory or BoundedProtocol,  # type: ignore[arg-type]
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    return DrainingServer(config, application, connection_factory, drain_period, handshakes)
