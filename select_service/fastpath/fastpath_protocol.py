"""Protocol that reads the bytes of a connection first and answers common requests itself.

A common request only costs a call of the handler and a write.  Requests that the handler declines
are passed, as the same bytes, to uvicorn's protocol (`BoundedProtocol`), created on first use.
That protocol reads on until everything received is answered and sent; the next byte is ours again.

The limits of a connection are those of `http.bounded_protocol`, and that protocol sends all errors:
for a
slow request, too many connections, or a body over budget the connection is handed over, to be
refused there.  Only bodies of common requests are collected here, because their end is known.
Connections have no timers of their own: one `TimeoutWatch` checks all of them.
"""

import asyncio
from time import perf_counter
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from select_service.auth.limit_shares import UNKEYED_HOLDER, Holder
from select_service.base.errors import CapacityExceeded, QuotaExceeded
from select_service.fastpath.fast_handler import FastHandler
from select_service.fastpath.ready_connections import ReadyConnections
from select_service.fastpath.timeout_watch import TimeoutWatch
from select_service.http import bounded_protocol as bounds
from select_service.http.body_codec import BODY_BUDGET, BODY_BYTES_FREE, BODY_BYTES_MAX
from select_service.http.bounded_protocol import FAILURE_NAME, BoundedProtocol

REQUESTS_PER_ITERATION = 32
"""Requests of a connection answered per iteration of the event loop ..."""
ITERATION_S = 0.002
"""... or fewer after this many seconds: prompts differ in length by a factor of ten thousand."""
REQUEST_BYTES_MAX = BODY_BYTES_MAX + bounds.HEAD_BYTES_MAX
"""Longest request collected here, bytes."""
REQUEST_PARTS_MAX = 4096
"""Most parts of a collected request; their overhead equals the memory of a long head."""

_NO_SOCKET = -1

_READY, _NEW, _COLLECTING, _WAITING, _ORDINARY, _OVER = range(6)
"""Meaning of the next bytes: beginning of a request; the same for the first time; rest of the
request in `_parts`; bytes to append to `_parts`; input of `_ordinary`; ignored.
"""


class FastPathProtocol(asyncio.Protocol):
    """Protocol of a connection.

    _mode: meaning of the next bytes.  _parts: received bytes not yet answered, `_size` in total,
    `_charged` of these charged to the budget of bodies, for `_holder`; _request_size: size of the
    complete
    request.
    _is_write_paused: the client does not read, so answering pauses.
    _quiet_checks: checks by the watch since the last response, or since collecting began.
    _unsent: unsent response bytes at the last check; _unread_checks: number of checks with the same
    count.
    _socket_fd: the socket, set only while the transport surely has no pending output.
    ready: watch of connections; None means no watch.  _watched_fd: the socket while it is watched.
    """

    __slots__ = (
        "__weakref__",
        "_answer_request",
        "_charged",
        "_config",
        "_connections",
        "_handler",
        "_holder",
        "_is_write_paused",
        "_mode",
        "_ordinary",
        "_parts",
        "_quiet_checks",
        "_request_size",
        "_size",
        "_socket_fd",
        "_state",
        "_transport",
        "_unread_checks",
        "_unsent",
        "_watch",
        "_watched_fd",
        "_write",
        "ready",
    )

    def __init__(
        self,
        handler: FastHandler,
        watch: TimeoutWatch,
        config: uvicorn.Config,
        state: ServerState,
    ) -> None:
        self._handler, self._answer_request = handler, handler.answer_request
        self._watch, self._config, self._state = watch, config, state
        self._connections: set[Any] = state.connections
        self._ordinary: BoundedProtocol | None = None
        self._mode, self._is_write_paused = _NEW, False
        self._parts: list[bytes] = []
        self._size = self._charged = self._request_size = 0
        self._holder = UNKEYED_HOLDER
        self._quiet_checks = self._unsent = self._unread_checks = 0
        self._socket_fd = self._watched_fd = _NO_SOCKET
        self.ready: ReadyConnections | None = None

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._write = transport, transport.write
        self._allow_direct_write()
        self._connections.add(self)
        try:
            self._watch.on(self._connections)
            if len(self._connections) > bounds.CONNECTIONS_MAX:
                self._hand_over()
        except Exception:
            self.abort_after_bug()

    def data_received(self, data: bytes) -> None:
        try:
            # _READY is 0: the common case costs a single test.
            if self._mode:
                self._handle_bytes(data)
                return
            self.handle_answer(data, self._answer_request(data, 0, self._socket_fd))
        except Exception:
            self.abort_after_bug()

    def handle_answer(self, data: bytes, answer: bytes | None) -> None:
        """Handle received bytes after `FastHandler.answer_request` for their first request."""
        if answer is not None and self._handler.end == len(data):
            self._quiet_checks = 0
            if answer:
                self._write_responses(answer)
        else:
            self._answer_all(data, answer)

    def eof_received(self) -> bool:
        """Handle the end of the client's input.  Unanswered requests go to the ordinary path.

        Returns whether the connection stays open.
        """
        try:
            if self._mode in (_COLLECTING, _WAITING):
                self._hand_over()
            if self._mode == _ORDINARY and self._ordinary is not None:
                return self._ordinary.eof_received()
        except Exception:
            self.abort_after_bug()
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._ordinary is not None:
            self._ordinary.pause_writing()
        if self._mode == _READY:
            self._pause_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._ordinary is not None:
            self._ordinary.resume_writing()
        if self._mode == _WAITING:
            self._schedule_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mode = _OVER
        self.stop_watching()
        self._connections.discard(self)
        self._take_parts()
        ordinary, self._ordinary = self._ordinary, None
        if ordinary is not None:
            ordinary.connection_lost(exc)

    def use_handler(self, handler: FastHandler) -> None:
        """Use another handler from now on."""
        self.stop_watching()
        self.ready = None
        self._handler, self._answer_request = handler, handler.answer_request

    def shutdown(self) -> None:
        """End the connection, called by uvicorn.

        The ordinary path finishes a partially received request.
        """
        try:
            if self._parts:
                self._hand_over()
            if self._mode == _ORDINARY and self._ordinary is not None:
                self._ordinary.shutdown()
            else:
                self._close_connection()
        except Exception:
            self.abort_after_bug()

    # Requests.

    def _handle_bytes(self, data: bytes) -> None:
        """Handle bytes other than the plain beginning of a request."""
        if self._mode == _COLLECTING:
            self._collect_request(data)
        elif self._mode == _WAITING:
            self._append_part(data)
        elif self._mode == _NEW:
            self._mode = _READY
            self._answer_all(data, self._answer_request(data, 0, self._socket_fd))
            self._start_watching()
        elif self._mode == _ORDINARY and self._ordinary is not None:
            self._handle_bytes_after_handover(self._ordinary, data)

    def _handle_bytes_after_handover(self, ordinary: BoundedProtocol, data: bytes) -> None:
        """Handle bytes while, or after, the ordinary path reads the connection."""
        if ordinary.is_between_requests():
            self._allow_direct_write()
            answer = self._answer_request(data, 0, self._socket_fd)
            if answer is not None or self._handler.end > len(data):
                # The ordinary protocol stays, idle: another handover must not pay for a new
                # transport.
                ordinary.release_reading()
                self._mode = _READY
                self._answer_all(data, answer)
                self._start_watching()
                return
            self._socket_fd = _NO_SOCKET
        self._feed_ordinary(ordinary, data)

    def _answer_all(self, data: bytes, answer: bytes | None) -> None:
        """Answer one iteration's share of requests.  answer: result for the first request"""
        # Pipelined requests are answered together with a single write.
        answers, at, ends_at = [], 0, perf_counter() + ITERATION_S
        while answer is not None:
            answers.append(answer)
            at = self._handler.end
            if (
                at == len(data)
                or len(answers) == REQUESTS_PER_ITERATION
                or perf_counter() > ends_at
            ):
                break
            answer = self._answer_request(data, at)
        request_size = self._handler.end - at
        if answers:
            self._quiet_checks = 0
            if text := b"".join(answers):
                self._write_responses(text)
        if at < len(data):
            self._defer_rest(data[at:], request_size, is_usual=answer is not None)

    def _write_responses(self, answers: bytes) -> None:
        """Write through the transport, which buffers what the client does not accept at once."""
        self._write(answers)
        self._socket_fd = _NO_SOCKET
        self.stop_watching()

    def _defer_rest(self, rest: bytes, request_size: int, *, is_usual: bool) -> None:
        """Keep the rest for later or hand over.

        Reasons: the client does not read, the share is used up (is_usual), the request needs
        `request_size` bytes, or the request is not common.
        """
        self.stop_watching()
        self._append_part(rest)
        if self._is_write_paused or is_usual:
            self._pause_reading()
        elif len(rest) < request_size <= REQUEST_BYTES_MAX:
            self._mode, self._request_size, self._quiet_checks = _COLLECTING, request_size, 0
            self._charge_budget()
        else:
            self._hand_over()

    def _collect_request(self, data: bytes) -> None:
        self._append_part(data)
        if self._size >= self._request_size:
            self._resume_answering()
        elif len(self._parts) == REQUEST_PARTS_MAX:
            self._hand_over()
        else:
            self._charge_budget()

    def _charge_budget(self) -> None:
        """Charge incomplete bodies to a shared budget; beyond the budget the ordinary path refuses
        requests.
        """
        uncounted = self._size - BODY_BYTES_FREE - self._charged
        if uncounted > 0:
            # The holder stays the same while bytes are charged, even if the keys change meanwhile.
            if not self._charged:
                self._holder = self._holder_of_parts()
            try:
                BODY_BUDGET.take(self._holder, uncounted)
            except (CapacityExceeded, QuotaExceeded):
                self._hand_over()
            else:
                self._charged += uncounted

    def _holder_of_parts(self) -> Holder:
        """Return the holder of the collected bytes."""
        return UNKEYED_HOLDER

    def _append_part(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    def _take_parts(self) -> bytes:
        """Return and remove the received bytes not yet answered."""
        parts, self._parts = self._parts, []
        BODY_BUDGET.give_back(self._holder, self._charged)
        self._size = self._charged = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Waiting.

    def _pause_reading(self) -> None:
        """Wait for the client to read, or for the next iteration."""
        self.stop_watching()
        self._mode = _WAITING
        self._transport.pause_reading()
        if not self._is_write_paused:
            self._schedule_resume()

    def _schedule_resume(self) -> None:
        asyncio.get_running_loop().call_soon(self._resume_supervised)

    def _resume_supervised(self) -> None:
        try:
            if self._mode == _WAITING and not self._is_write_paused:
                self._transport.resume_reading()
                self._resume_answering()
        except Exception:
            self.abort_after_bug()

    def _resume_answering(self) -> None:
        self._mode = _READY
        data = self._take_parts()
        if data:
            self._answer_all(data, self._answer_request(data, 0))
        self._start_watching()

    # Watching.

    def _start_watching(self) -> None:
        """Let the kernel receive the next requests, if nothing is pending."""
        ready, socket_fd = self.ready, self._socket_fd
        is_idle = self._mode == _READY and socket_fd != _NO_SOCKET
        if ready is None or not is_idle or self._watched_fd != _NO_SOCKET:
            return
        if ready.watch(self, socket_fd):
            self._transport.pause_reading()
            self._watched_fd = socket_fd

    def stop_watching(self) -> None:
        """Let the transport read again, if the kernel received so far."""
        socket_fd, self._watched_fd = self._watched_fd, _NO_SOCKET
        if socket_fd != _NO_SOCKET and self.ready is not None:
            self.ready.unwatch(socket_fd)
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # Handover and end.

    def _hand_over(self) -> BoundedProtocol:
        """Let the ordinary path read from here on."""
        self.stop_watching()
        if self._mode == _WAITING:
            self._transport.resume_reading()
        self._mode, self._socket_fd = _ORDINARY, _NO_SOCKET
        data = self._take_parts()
        ordinary = self._ordinary or self._new_ordinary()
        if data:
            self._feed_ordinary(ordinary, data)
        return ordinary

    def _feed_ordinary(self, ordinary: BoundedProtocol, data: bytes) -> None:
        ordinary.data_received(data)
        if not ordinary.is_between_requests():
            # an empty line begins no request and must not keep an idle connection alive
            self._quiet_checks = 0

    def _new_ordinary(self) -> BoundedProtocol:
        """Create the ordinary protocol, which registers itself; our entry takes its place again."""
        ordinary = BoundedProtocol(self._config, self._state, {}, asyncio.get_running_loop())
        self._ordinary = ordinary
        self._connections.discard(self)
        ordinary.connection_made(self._transport)
        self._connections.discard(ordinary)
        self._connections.add(self)
        if self._is_write_paused:
            ordinary.pause_writing()
        return ordinary

    def _close_connection(self) -> None:
        self.stop_watching()
        self._mode = _OVER
        self._transport.close()

    def abort_after_bug(self) -> None:
        """Abort the connection after a bug: its state is unknown."""
        self.stop_watching()
        self._mode = _OVER
        self._config.app.report_failure(FAILURE_NAME)  # type: ignore[union-attr]
        self._transport.abort()

    # Timeouts.

    def check_timeouts(self) -> None:
        """Check the timeouts; called by the watch every WATCH_EVERY_S."""
        try:
            if self._was_active():
                self._quiet_checks = 0
            if self._is_unread():
                self.stop_watching()
                self._transport.abort()
            elif self._is_busy():
                self._quiet_checks = 0
            else:
                self._close_if_quiet()
        except Exception:
            self.abort_after_bug()

    def _was_active(self) -> bool:
        """Return whether the kernel has answered here since the last check."""
        ready, socket_fd = self.ready, self._watched_fd
        return ready is not None and socket_fd != _NO_SOCKET and ready.take_activity(socket_fd)

    def _allow_direct_write(self) -> None:
        """Allow direct writes to the socket, since no output is pending.

        TLS needs the transport.
        """
        of_transport = self._transport.get_extra_info("socket")
        is_plain = self._transport.get_extra_info("sslcontext") is None
        self._socket_fd = (
            of_transport.fileno() if is_plain and of_transport is not None else _NO_SOCKET
        )

    def _is_unread(self) -> bool:
        """Return whether the client has read nothing of a pending response for too long."""
        unsent = self._transport.get_write_buffer_size()
        self._unread_checks = self._unread_checks + 1 if unsent == self._unsent else 0
        self._unsent = unsent
        if not unsent and self._mode == _READY and self._socket_fd == _NO_SOCKET:
            self._allow_direct_write()
            self._start_watching()
        # Counting checks instead of reading a clock: a check costs half a microsecond.
        return unsent > 0 and self._unread_checks * bounds.WATCH_EVERY_S > bounds.UNREAD_S_MAX

    def _is_busy(self) -> bool:
        """Return whether the wait is ours and not the client's, or the ordinary path keeps the
        time.
        """
        if self._mode == _ORDINARY and self._ordinary is not None:
            return not self._ordinary.is_between_requests()
        return self._mode in (_WAITING, _OVER)

    def _close_if_quiet(self) -> None:
        """Close a connection that was quiet for too long.

        The first check only starts the count.
        """
        quiet_s = self._quiet_checks * bounds.WATCH_EVERY_S
        self._quiet_checks += 1
        if self._mode in (_NEW, _COLLECTING):
            if quiet_s >= bounds.REQUEST_READ_S_MAX:
                self._hand_over().refuse_slow_request()
        elif quiet_s >= self._idle_s_max():
            self._close_connection()

    def _idle_s_max(self) -> float:
        idle_s: float = self._config.timeout_keep_alive
        if bounds.is_crowded(self._connections):
            return min(idle_s, bounds.CROWDED_KEEP_ALIVE_S)
        return idle_s
