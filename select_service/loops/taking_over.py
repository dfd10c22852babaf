"""A connection of a loop becomes one of the event loop, with what had come in."""

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


async def take_over(handed: Handed, lean: Lean, config: uvicorn.Config, state: ServerState) -> None:
    """Raises nothing: what fails is counted, and the connection closed."""
    try:
        connection = socket.socket(fileno=handed.fd)
    except OSError:  # the client has gone
        os.close(handed.fd)
        return
    try:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: TakenOver(handed, lean, config, state), connection
        )
    except Exception:
        app: Any = config.app
        app.failed(CALLBACK)
        connection.close()
