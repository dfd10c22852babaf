"""Connections of loops become those of the event loop, with what had come in, and loops' again."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.fast.protocol import Lean, LeanProtocol
from select_service.http.protocol import CALLBACK
from select_service.loops.loop import Handed
from select_service.loops.loop_layout import LATE, TOO_MANY

TAKEN_PER_TURN = 64
"""Connections that begin on the event loop before others have their turn."""
RETURN_AFTER = 32
"""Answers of a kind that loops give, one after the other, after which a connection goes back; twice
as many after each time that it did, so that one that mixes requests does not go to and fro."""
RETURNS_MAX = 20
"""From here on it stays."""

GiveBack = Callable[[int, int], bool]
"""A descriptor that is free of the event loop, and how often it has come back -> is it taken?"""


class TakenOver(LeanProtocol):
    """Goes on where the loop stopped, until the connection is one for the loop again.

    _left: answers of the kind that loops give, after which that is so
    """

    __slots__ = ("_give_back", "_handed", "_left")

    def __init__(
        self,
        handed: Handed,
        give_back: GiveBack,
        lean: Lean,
        config: uvicorn.Config,
        state: ServerState,
    ) -> None:
        super().__init__(lean.answerer, lean.watch, config, state)
        self._handed, self._give_back = handed, give_back
        self._answer = self._answered
        self._wait_anew()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._continue(self._handed)
        except Exception:
            self._fail()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._left <= 0 and self._is_idle():
            try:
                self._return()
            except Exception:
                self._fail()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._answer = self._answerer.answer  # no cycle is left

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

    def _wait_anew(self) -> None:
        self._left = RETURN_AFTER << self._handed.returns

    def _answered(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        """As `Answerer.answer`."""
        answer = self._answerer.answer(data, at, file)
        if answer is not None and self._answerer.is_select:
            self._left -= 1
        else:
            self._wait_anew()
        return answer

    def _return(self) -> None:
        """What comes in from now on is for the loop: the socket lives on under another number."""
        self._wait_anew()
        returns = self._handed.returns + 1
        if returns > RETURNS_MAX:
            return
        self._transport.pause_reading()
        try:
            fd = os.dup(self._transport.get_extra_info("socket").fileno())
        except OSError:  # there are too many
            self._transport.resume_reading()
            return
        if self._give_back(fd, returns):
            self._leave()
        else:
            os.close(fd)
            self._transport.resume_reading()


class TakingOver:
    """Of all loops of one server."""

    def __init__(self, lean: Lean, config: uvicorn.Config, state: ServerState) -> None:
        self._lean, self._config, self._state = lean, config, state
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, handed: list[Handed], give_back: GiveBack) -> None:
        """A turn's share now, the others later.  give_back: to the loop from which they are"""
        loop = asyncio.get_running_loop()
        for connection in handed[:TAKEN_PER_TURN]:
            task = loop.create_task(self._take_over(connection, give_back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(handed) > TAKEN_PER_TURN:
            loop.call_soon(self.take, handed[TAKEN_PER_TURN:], give_back)

    async def finish(self) -> None:
        """Until all that was handed over has begun."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_over(self, handed: Handed, give_back: GiveBack) -> None:
        """Raises nothing: what fails is counted, and the connection closed."""
        try:
            connection = socket.socket(fileno=handed.fd)
        except OSError:  # the client has gone
            os.close(handed.fd)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: TakenOver(handed, give_back, self._lean, self._config, self._state),
                connection,
            )
        except Exception:
            self.failed()
            connection.close()

    def failed(self) -> None:
        """Count what is being handled."""
        app: Any = self._config.app
        app.failed(CALLBACK)
