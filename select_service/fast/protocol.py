"""The protocol that meets the bytes of a connection.

For a usual request it does nothing but ask the answerer and write; what the answerer gives up is
fed, the same bytes, to uvicorn's protocol (`BoundedProtocol`), which is made when it is needed
first.  That reads on until all that came in is answered and sent; the next byte is ours again.

The bounds of a connection are those of `http.protocol`, and every refusal is uttered there: a
request that takes too long, a connection too many, a body for which there is no room is handed
over, to be refused.  Only bodies of usual requests are collected here, because only they have an
end that is known.  Nothing has a timer of its own: one `Watch` looks at all connections.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.access.shares import NOBODY, Holder
from select_service.errors import CapacityExceeded, QuotaExceeded
from select_service.fast.answerer import Answerer, HeadedAnswerer
from select_service.http import protocol as bounds
from select_service.http.codec import BODY_BUDGET, BODY_BYTES_FREE, BODY_BYTES_MAX
from select_service.http.protocol import CALLBACK, BoundedProtocol
from select_service.http.server import Listeners

ANSWERS_PER_TURN = 32
"""Requests of one connection that are answered before others have their turn ..."""
TURN_S = 0.002
"""... unless they have taken longer: prompts differ in length by a factor of ten thousand."""
REQUEST_BYTES_MAX = BODY_BYTES_MAX + bounds.HEAD_BYTES_MAX
"""Longer ones are not collected here."""
PARTS_MAX = 4096
"""In which a request may come in here; beside its bytes they take as much memory as a long head."""
LOOKED_AT_ONCE = 1024
"""Connections that the watch looks at in one turn, half a microsecond each."""

_NO_FILE = -1

_READY, _NEW, _COLLECTING, _WAITING, _ORDINARY, _OVER = range(6)
"""What comes in next is: the beginning of a request; that, for the first time; the rest of the
request in `_parts`; to be kept behind what is in `_parts`; for `_ordinary`; of no interest."""


class Lean:
    """Makes the protocol of every connection of one server (see `http.server.Front`)."""

    def __init__(
        self, answerer: HeadedAnswerer, before: Callable[[Answerer], Answerer] | None = None
    ) -> None:
        """before: makes what is asked instead of an answerer, and asks it; None: nothing does"""
        self.before = before
        self.answerer: Answerer = answerer if before is None else before(answerer)
        self._leaves = False
        self.watch = Watch()
        self.say = answerer.say
        self._connections: set[Any] = set()

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        protocol = self.new(config, server_state)
        if self._leaves:
            protocol.leave(self.answerer)
        return protocol

    def new(self, *server: Any) -> "LeanProtocol":
        """server: its configuration and state"""
        return LeanProtocol(self.answerer, self.watch, *server)

    async def begin(self, config: uvicorn.Config, state: ServerState) -> None:
        """See `http.server.Front`: connections come from the server alone."""
        self._connections = state.connections

    async def leave(self) -> Listeners:
        """The ordinary path ends connections."""
        self._leaves, self.answerer = True, GivesUp()
        for connection in self._connections:
            if isinstance(connection, LeanProtocol):
                connection.leave(self.answerer)
        return []

    async def end(self) -> None:
        """See `begin`."""


class GivesUp:
    """The Answerer to whom no request is usual."""

    end = 0
    is_select = False

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        """See `Answerer`."""
        return None


class LeanProtocol(asyncio.Protocol):
    """One connection.

    _mode: what the next bytes are.  _parts: bytes that have come in and are not answered, `_size`
    of them, `_counted` of these in the budget of bodies, for `_holder`; _wanted: how many make a
    request.
    _is_full: the client does not read, so nothing more is answered.
    _quiet: looks of the watch since the last answer, or since what is collected began.
    _unsent: bytes of answers that the watch saw unsent; _unread: how often it was as many.
    _file: the socket, where it is sure that the transport keeps nothing that is to be sent.
    """

    __slots__ = (
        "__weakref__",
        "_answer",
        "_answerer",
        "_config",
        "_connections",
        "_counted",
        "_file",
        "_holder",
        "_is_full",
        "_mode",
        "_ordinary",
        "_parts",
        "_quiet",
        "_size",
        "_state",
        "_transport",
        "_unread",
        "_unsent",
        "_wanted",
        "_watch",
        "_write",
    )

    def __init__(
        self,
        answerer: Answerer,
        watch: "Watch",
        config: uvicorn.Config,
        state: ServerState,
    ) -> None:
        self._answerer, self._answer = answerer, answerer.answer
        self._watch, self._config, self._state = watch, config, state
        self._connections: set[Any] = state.connections
        self._ordinary: BoundedProtocol | None = None
        self._mode, self._is_full = _NEW, False
        self._parts: list[bytes] = []
        self._size = self._counted = self._wanted = 0
        self._holder = NOBODY
        self._quiet = self._unsent = self._unread = 0
        self._file = _NO_FILE

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._write = transport, transport.write
        self._look_at_file()
        self._connections.add(self)
        try:
            self._watch.on(self._connections)
            if len(self._connections) > bounds.CONNECTIONS_MAX:
                self._hand_over()
        except Exception:
            self._fail()

    def data_received(self, data: bytes) -> None:
        try:
            if self._mode:
                self._received(data)
                return
            answer = self._answer(data, 0, self._file)
            if answer is not None and self._answerer.end == len(data):
                self._quiet = 0
                if answer:
                    self._say(answer)
            else:
                self._answer_all(data, answer)
        except Exception:
            self._fail()

    def eof_received(self) -> bool:
        """The client sends nothing more.  What it has sent is answered, and if that is not done yet
        by the ordinary path.

        Returns whether the connection stays open.
        """
        try:
            if self._mode in (_COLLECTING, _WAITING):
                self._hand_over()
            if self._mode == _ORDINARY and self._ordinary is not None:
                return self._ordinary.eof_received()
        except Exception:
            self._fail()
        return False

    def pause_writing(self) -> None:
        self._is_full = True
        if self._ordinary is not None:
            self._ordinary.pause_writing()
        if self._mode == _READY:
            self._wait()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._ordinary is not None:
            self._ordinary.resume_writing()
        if self._mode == _WAITING:
            self._go_on_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mode = _OVER
        self._connections.discard(self)
        self._take_parts()
        ordinary, self._ordinary = self._ordinary, None
        if ordinary is not None:
            ordinary.connection_lost(exc)

    def leave(self, answerer: Answerer) -> None:
        """Another one answers from now on."""
        self._answerer, self._answer = answerer, answerer.answer

    def shutdown(self) -> None:
        """uvicorn's: the server ends.  What has begun to come in is the ordinary path's to end."""
        try:
            if self._parts:
                self._hand_over()
            if self._mode == _ORDINARY and self._ordinary is not None:
                self._ordinary.shutdown()
            else:
                self._end()
        except Exception:
            self._fail()

    # Requests

    def _received(self, data: bytes) -> None:
        """What comes in where it is not simply the beginning of a request."""
        if self._mode == _COLLECTING:
            self._collect(data)
        elif self._mode == _WAITING:
            self._keep(data)
        elif self._mode == _NEW:
            self._mode = _READY
            self._answer_all(data, self._answer(data, 0, self._file))
        elif self._mode == _ORDINARY and self._ordinary is not None:
            self._received_behind(self._ordinary, data)

    def _received_behind(self, ordinary: BoundedProtocol, data: bytes) -> None:
        """What comes in while, or after, the ordinary path has had the connection."""
        if ordinary.is_between():
            answer = self._answer(data, 0)
            if answer is not None or self._answerer.end > len(data):
                ordinary.step_back()
                self._mode = _READY
                self._answer_all(data, answer)
                return
        self._feed(ordinary, data)

    def _answer_all(self, data: bytes, answer: bytes | None) -> None:
        """A turn's share.  answer: what was said of the first request."""
        answers, at, ends_at = [], 0, perf_counter() + TURN_S
        while answer is not None:
            answers.append(answer)
            at = self._answerer.end
            if at == len(data) or len(answers) == ANSWERS_PER_TURN or perf_counter() > ends_at:
                break
            answer = self._answer(data, at)
        wanted = self._answerer.end - at
        if answers:
            self._quiet = 0
            if text := b"".join(answers):
                self._say(text)
        if at < len(data):
            self._set_aside(data[at:], wanted, is_usual=answer is not None)

    def _say(self, answers: bytes) -> None:
        """Through the transport, which keeps what the client does not take at once."""
        self._write(answers)
        self._file = _NO_FILE

    def _set_aside(self, rest: bytes, wanted: int, *, is_usual: bool) -> None:
        """What is not answered in this turn, because the client does not read, because there is
        too much (is_usual), because `wanted` bytes make a request, or because it is not usual."""
        self._keep(rest)
        if self._is_full or is_usual:
            self._wait()
        elif len(rest) < wanted <= REQUEST_BYTES_MAX:
            self._mode, self._wanted, self._quiet = _COLLECTING, wanted, 0
            self._count()
        else:
            self._hand_over()

    def _collect(self, data: bytes) -> None:
        self._keep(data)
        if self._size >= self._wanted:
            self._go_on()
        elif len(self._parts) == PARTS_MAX:
            self._hand_over()
        else:
            self._count()

    def _count(self) -> None:
        """Bodies that are not complete share one bound; beyond it the ordinary path refuses."""
        uncounted = self._size - BODY_BYTES_FREE - self._counted
        if uncounted > 0:
            if not self._counted:
                self._holder = self._who()
            try:
                BODY_BUDGET.take(self._holder, uncounted)
            except (CapacityExceeded, QuotaExceeded):
                self._hand_over()
            else:
                self._counted += uncounted

    def _who(self) -> Holder:
        """Return who sends what is collected."""
        return NOBODY

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    def _take_parts(self) -> bytes:
        """What has come in and is not answered."""
        parts, self._parts = self._parts, []
        BODY_BUDGET.give_back(self._holder, self._counted)
        self._size = self._counted = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Waiting

    def _wait(self) -> None:
        """For the client to read, or for the next turn."""
        self._mode = _WAITING
        self._transport.pause_reading()
        if not self._is_full:
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on_supervised)

    def _go_on_supervised(self) -> None:
        try:
            if self._mode == _WAITING and not self._is_full:
                self._transport.resume_reading()
                self._go_on()
        except Exception:
            self._fail()

    def _go_on(self) -> None:
        self._mode = _READY
        data = self._take_parts()
        if data:
            self._answer_all(data, self._answer(data, 0))

    # Handing over, and the end

    def _is_idle(self) -> bool:
        """Between two requests, with nothing that is unsent."""
        return self._mode == _READY and not self._transport.get_write_buffer_size()

    def _hand_over(self) -> BoundedProtocol:
        """From here the ordinary path reads."""
        if self._mode == _WAITING:
            self._transport.resume_reading()
        self._mode, self._file = _ORDINARY, _NO_FILE
        data = self._take_parts()
        ordinary = self._ordinary or self._new_ordinary()
        if data:
            self._feed(ordinary, data)
        return ordinary

    def _feed(self, ordinary: BoundedProtocol, data: bytes) -> None:
        ordinary.data_received(data)
        if not ordinary.is_between():
            self._quiet = 0  # an empty line begins no request, and keeps no idle connection

    def _new_ordinary(self) -> BoundedProtocol:
        """It counts itself among the connections, where it takes our place meanwhile."""
        ordinary = BoundedProtocol(self._config, self._state, {}, asyncio.get_running_loop())
        self._ordinary = ordinary
        self._connections.discard(self)
        ordinary.connection_made(self._transport)
        self._connections.discard(ordinary)
        self._connections.add(self)
        if self._is_full:
            ordinary.pause_writing()
        return ordinary

    def _end(self) -> None:
        self._mode = _OVER
        self._transport.close()

    def _leave(self) -> None:
        """Let go of the transport at once; whoever has the socket beside it goes on."""
        self._mode = _OVER
        self._transport.abort()

    def _fail(self) -> None:
        """A bug.  In what state the connection is nobody knows, so it ends."""
        self._mode = _OVER
        self._config.app.failed(CALLBACK)  # type: ignore[union-attr]
        self._transport.abort()

    # Time

    def look(self) -> None:
        """The watch's, every WATCH_EVERY_S."""
        try:
            if self._is_unread():
                self._transport.abort()
            elif self._is_busy():
                self._quiet = 0
            else:
                self._look_how_quiet()
        except Exception:
            self._fail()

    def _look_at_file(self) -> None:
        """Nothing waits to be sent.  Behind TLS only the transport may write to the socket."""
        of_transport = self._transport.get_extra_info("socket")
        is_plain = self._transport.get_extra_info("sslcontext") is None
        self._file = of_transport.fileno() if is_plain and of_transport is not None else _NO_FILE

    def _is_unread(self) -> bool:
        """Has the client taken nothing of an answer for too long?"""
        unsent = self._transport.get_write_buffer_size()
        self._unread = self._unread + 1 if unsent == self._unsent else 0
        self._unsent = unsent
        if not unsent and self._mode == _READY and self._file == _NO_FILE:
            self._look_at_file()
        return unsent > 0 and self._unread * bounds.WATCH_EVERY_S > bounds.UNREAD_S_MAX

    def _is_busy(self) -> bool:
        """Is it not for the client that we wait, or does the ordinary path do that?"""
        if self._mode == _ORDINARY and self._ordinary is not None:
            return not self._ordinary.is_between()
        return self._mode in (_WAITING, _OVER)

    def _look_how_quiet(self) -> None:
        """At the first look after an answer nobody knows how long ago that was."""
        quiet_s = self._quiet * bounds.WATCH_EVERY_S
        self._quiet += 1
        if self._mode in (_NEW, _COLLECTING):
            if quiet_s >= bounds.REQUEST_READ_S_MAX:
                self._hand_over().time_out()
        elif quiet_s >= self._idle_s_max():
            self._end()

    def _idle_s_max(self) -> float:
        idle_s: float = self._config.timeout_keep_alive
        if bounds.is_crowded(self._connections):
            return min(idle_s, bounds.CROWDED_KEEP_ALIVE_S)
        return idle_s


class Watch:
    """Looks at all connections every WATCH_EVERY_S, while there are any."""

    def __init__(self) -> None:
        self._is_on = False
        self._connections: set[LeanProtocol] = set()
        self._left: list[LeanProtocol] = []

    def on(self, connections: set[LeanProtocol]) -> None:
        """There is one; connections: all that are open, now and later."""
        if not self._is_on:
            self._is_on, self._connections = True, connections
            self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(bounds.WATCH_EVERY_S, self._begin)

    def _begin(self) -> None:
        self._left = list(self._connections)
        self._look()

    def _look(self) -> None:
        """A turn's share."""
        for _ in range(min(LOOKED_AT_ONCE, len(self._left))):
            self._left.pop().look()
        if self._left:
            asyncio.get_running_loop().call_soon(self._look)
        elif self._connections:
            self._later()
        else:
            self._is_on = False
