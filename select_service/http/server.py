"""The listening socket and the HTTP server on it, from the first connection to the last.

SIGTERM drains: for a while everything is answered as before, but every answer is the last of its
connection, so that clients that keep connections go elsewhere without losing a request.  SIGINT,
and any second signal, ends at once.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import uvicorn
from uvicorn.server import ServerState

from select_service.http.head import Headers
from select_service.http.protocol import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_S,
    UNREAD_S_MAX,
    Application,
    BoundedProtocol,
)
from select_service.tls.handshakes import Handshakes

GRACE_S = 1
"""How long requests in flight may take to end after a signal."""
HANDSHAKE_S_MAX = 10.0
"""From the opening of a connection to the end of its TLS handshake."""
CLOSE = (b"connection", b"close")
DRAIN_POLL_S = 0.05
ACCEPTS_PER_TURN = 16
"""libuv accepts one connection per listening socket and turn of the event loop, and under load
every turn serves all who are connected already: of many clients that come at once the last waited
seconds.  So the loop gets this many duplicates of the one socket."""

Listeners = list[socket.socket]


class Front(Protocol):
    """Who meets the bytes of every connection before BoundedProtocol does."""

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """The protocol of a new connection."""

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on; the date is one of them."""

    async def begin(self, config: uvicorn.Config, state: ServerState) -> None:
        """The server accepts connections; so may others for it from now on."""

    async def leave(self) -> Listeners:
        """Every answer is the last of its connection from now on.

        Returns the sockets on which the server is to accept connections from now on, besides those
        on which it does.
        """

    async def end(self) -> None:
        """Nobody accepts connections any more; those that there are stand in `state`."""


class Drain(NamedTuple):
    """seconds: how long the server goes on after SIGTERM;  leave_address: what it does first"""

    seconds: float
    leave_address: Callable[[], None]


class Server(uvicorn.Server):
    """Ends with status 0 after a signal; uvicorn would raise the signal again."""

    def __init__(
        self,
        config: uvicorn.Config,
        application: Application,
        front: Front | None,
        drain: Drain,
        handshakes: Handshakes | None,
    ) -> None:
        super().__init__(config)
        self._handshakes = handshakes
        if handshakes is not None:
            handshakes.is_full = self._is_full
        self._application = application
        self._front = front
        self._drain_s, self._leave_address = drain
        self._said: Headers | None = None

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        if self._front is not None and self._said is not self.server_state.default_headers:
            self._said = self.server_state.default_headers
            self._front.say(self._said)
        return ends

    async def main_loop(self) -> None:
        await super().main_loop()
        if self._drain_s and self._captured_signals == [signal.SIGTERM]:
            await self._drain()

    async def _drain(self) -> None:
        """Until the time is over, or another signal comes."""
        self._leave_address()
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        if self._front is not None:
            await self._accept(await self._front.leave())
        self._application.draining()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._drain_s
        while loop.time() < ends_at and len(self._captured_signals) == 1:
            await asyncio.sleep(DRAIN_POLL_S)

    async def _accept(self, listeners: Listeners) -> None:
        """With TLS, where there is TLS."""

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
        """Are there as many connections as there may be, those without a handshake included?"""
        assert self._handshakes is not None
        return len(self.server_state.connections) + self._handshakes.open >= CONNECTIONS_MAX

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._handshakes is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            await self._accept(sockets or [])
        if self._front is not None:
            await self._front.begin(self.config, self.server_state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.ending()
        if self._handshakes is not None:
            self._handshakes.is_ending = True
        if self._front is not None:
            await self._front.end()
        await super().shutdown(sockets)


def duplicates(listener: socket.socket) -> list[socket.socket]:
    """The listener ACCEPTS_PER_TURN times; the first is itself."""
    return [listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


def server_of(
    application: Application,
    front: Front | None = None,
    drain: Drain = Drain(0.0, lambda: None),  # noqa: B008  it never changes
    handshakes: Handshakes | None = None,
    keep_alive_s: int = KEEP_ALIVE_S,
) -> Server:
    """The HTTP server, with every bound and no feature that nobody uses.

    handshakes: None: plain HTTP
    keep_alive_s: how long a connection may be idle, in seconds
    """
    config = uvicorn.Config(
        application,
        http=front or BoundedProtocol,  # type: ignore[arg-type]
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=GRACE_S,
    )
    return Server(config, application, front, drain, handshakes)
