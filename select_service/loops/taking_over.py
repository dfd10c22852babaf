"""Connections of loops become those of the event loop, with what had come in."""

import asyncio
import os
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.fast.protocol import Lean, LeanProtocol
from select_service.http.protocol import CALLBACK
from select_service.loops.loop import Handed
from select_service.loops.loop_layout import LATE, TOO_MANY

TAKEN_PER_TURN = 64
"""Connections that begin on the event loop before others have their turn."""


class TakenOver(LeanProtocol):
    """Goes on where the loop stopped."""

    __slots__ = ("_handed",)

    def __init__(
        self, handed: Handed, lean: Lean, config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__(lean.answerer, lean.watch, config, state)
        self._handed = handed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._continue(self._handed)
        except Exception:
            self._fail()

    def _continue(self, handed: Handed) -> None:
        self._handed = handed._replace(received=b"", unsent=b"")
        if handed.unsent:
            self._write(handed.unsent)
        if handed.why == TOO_MANY:
            self._hand_over().turn_away()
        elif handed.why == LATE:
            self._keep(handed.received)
            self._hand_over().time_out()
        elif handed.received:
            self.data_received(handed.received)


class TakingOver:
    """Of all loops of one server."""

    def __init__(self, lean: Lean, config: uvicorn.Config, state: ServerState) -> None:
        self._lean, self._config, self._state = lean, config, state
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, handed: list[Handed]) -> None:
        """A turn's share now, the others later."""
        loop = asyncio.get_running_loop()
        for connection in handed[:TAKEN_PER_TURN]:
            task = loop.create_task(self._take_over(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(handed) > TAKEN_PER_TURN:
            loop.call_soon(self.take, handed[TAKEN_PER_TURN:])

    async def finish(self) -> None:
        """Until all that was handed over has begun."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_over(self, handed: Handed) -> None:
        """Raises nothing: what fails is counted, and the connection closed."""
        try:
            connection = socket.socket(fileno=handed.fd)
        except OSError:  # the client has gone
            os.close(handed.fd)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: TakenOver(handed, self._lean, self._config, self._state), connection
            )
        except Exception:
            self.failed()
            connection.close()

    def failed(self) -> None:
        """Count what is being handled."""
        app: Any = self._config.app
        app.failed(CALLBACK)
