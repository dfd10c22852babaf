"""uvicorn's HTTP protocol with the limits that uvicorn leaves to a proxy in front.

The service may be exposed directly to a network.  A slow or endless request, or a client that does
not read, must not hold memory or a connection forever, and every error needs our JSON body.

Limits on requests: the head (bytes, fields), trailers, the framing around the chunks of a chunked
body, the time until complete, the amount parsed in an iteration of the event loop, and the amount
parsed while an earlier request is unanswered.  Bodies are limited where they are read
(`body_codec`).

The contract with uvicorn, checked by tests/http/test_uvicorn_contract.py.  Of `HttpToolsProtocol`:

* called by us, wrapped: `connection_made(transport)`, `connection_lost(error)`, the parser's
  callbacks `on_message_begin`, `on_headers_complete`, `on_body(bytes)`, `on_message_complete`, and
  `on_response_complete`, which starts the next request of `pipeline`;
* replaced: `data_received`, `eof_received` (True: the transport stays open), `send_400_response`,
  and `parser` and `flow` after their construction;
* `_unset_keepalive_if_required()` stops the timer of an idle connection; only `data_received` and
  `on_response_complete` call this;
* read: `config.app`, `loop`, `connections` (all open connections: this one or its stand-in),
  `transport`, `url` and `headers` (of the head being read; `headers` is also the list in
  `scope`), `scope`;
* `cycle`: the newest request with a complete head, or None.  The request is being answered unless
  queued in `pipeline`, a deque of (cycle, application), newest on the left;
* `logger` is only written to.

Of `RequestResponseCycle`: `response_started`, `response_complete`, `body` (received but not yet
taken by a handler); `keep_alive` (False: its response is the last and closes the connection);
`disconnected` and `message_event`, which together end a `receive()` with `http.disconnect`.  Of
`FlowControl`: `pause_reading()`, `resume_reading()`; uvicorn pauses above `HIGH_WATER_LIMIT` bytes
of `body` and resumes when a handler requests more or has responded.

Of `uvicorn.DrainingServer` (see `server`): `serve` is `capture_signals` around `_serve`, and raises
the signals in `_captured_signals` again; `shutdown` runs before connections are told to end;
`server_state.connections`, of which uvicorn uses `shutdown()`; `on_tick` renews
`server_state.default_headers`, the first time before a connection is accepted, and only
`main_loop`, which ends when `should_exit` is set, calls this; `connection: close` among these
headers ends a connection with its next response; `shutdown` closes `servers`.  Of `uvicorn.Config`:
`app` is called unwrapped, and `http` may be a factory of protocols.

Of httptools: the names and the order of callbacks; an exception in a callback is the
`__context__` of the `HttpParserError` raised by `feed_data`; `HttpParserUpgrade` has the offset in
the data at which the head ends.
"""

import asyncio
import logging
from collections.abc import Callable, Sized

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from select_service.base.errors import CapacityExceeded, SelectError
from select_service.http.client_connection import EXTENSION_KEY, ClientConnection
from select_service.http.coalescing_transport import CoalescingTransport
from select_service.http.endpoint import RequestTimeout
from select_service.http.half_closed_poller import HalfClosedPoller
from select_service.http.request_head import (
    HeadTooLarge,
    MalformedHttp,
    check_head,
    parser_error,
    without_upgrade_headers,
)
from select_service.schemas.common import ErrorBody

CONNECTIONS_MAX = 8192
"""Most open connections.  Above the default of --queue-max-requests: each queued request holds a
connection.
"""
KEEP_ALIVE_S = 3900
"""Default idle time before a connection is closed, seconds.  A proxy must close first, or a request
sent at that moment is lost; Envoy keeps idle connections for an hour.
"""
CROWDED_KEEP_ALIVE_S = 75
"""Idle time while more than half of the connections are in use, seconds, so that idle connections
do not lock others out.
"""
HEAD_BYTES_MAX = 65_536
"""Limit on request line, headers and trailers of a request, and on chunk framing as far as that
exceeds the body itself, bytes.
"""
REQUEST_READ_S_MAX = 30.0
"""Longest time from the first byte of a request (or the opening of the connection) to its last,
seconds.
"""
UNREAD_S_MAX = 30.0
"""Longest time during which a client may take no byte of a pending response, seconds."""
WATCH_EVERY_S = 5.0
FAILURE_NAME = "http_connection"
"""Name under which failures of connections are counted."""

PARSE_STEP_BYTES = 4096
"""Bytes per parsing step with possibly many small items, such as heads and chunks; a body of known
length is a single item.
"""
PARSE_STEPS_PER_ITERATION = 4
"""Parsing steps per iteration of the event loop: 2 ms of CPU for the smallest chunks, 1.5 ms for
the smallest requests, the second of which ends the iteration.
"""

_BETWEEN, _HEAD, _BODY = range(3)
"""Part of a request being read."""

_ERRORS_ONLY = logging.getLogger("uvicorn.error.connection")
_ERRORS_ONLY.setLevel(logging.ERROR)
"""Logger of connections.  Malformed input is answered, not logged."""


class _PausedFlow(FlowControl):
    """Flow control that keeps reading paused while received bytes wait to be parsed."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """HTTP protocol of a connection.

    _stage: part of the request being read
    _deadline_from: start time of the request, or None without a deadline
    _overhead_left: bytes still allowed outside of bodies
    _body_left: bytes still to come of a body of known length
    _body_fed: body bytes in the part being parsed
    _current_cycle: request being answered, or answered last; uvicorn notifies only the newest
        request that its client has gone
    _unparsed: bytes received but not yet parsed
    _final_error: error to send as the last response; parsing has ended
    _idle_since: time of the last response, or of the opening
    _half_closed: poller, once the client has ended its input but may still read.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._coalescing = CoalescingTransport(transport, self.loop, self._run_supervised)
        super().connection_made(self._coalescing)  # type: ignore[arg-type]
        self.logger = _ERRORS_ONLY
        self.flow: _PausedFlow = _PausedFlow(self.transport)
        self._connection = ClientConnection()
        self._extensions = {EXTENSION_KEY: self._connection}
        self._stage, self._overhead_left = _BETWEEN, HEAD_BYTES_MAX
        self._body_left = self._body_fed = 0
        self._unparsed = memoryview(b"")
        self._final_error: SelectError | None = None
        self._current_cycle: RequestResponseCycle | None = None
        self._deadline_from: float | None = self.loop.time()
        self._idle_since = self.loop.time()
        self._unsent, self._unsent_since = 0, 0.0
        self._half_closed: HalfClosedPoller | None = None
        self._schedule_watch()
        # Refused with a response instead of not accepting, so that the client learns why.
        if len(self.connections) > CONNECTIONS_MAX:
            self.refuse_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        if self._half_closed is not None:
            self._half_closed.stop_polling()
            self._half_closed = None
        self._unparsed = memoryview(b"")
        super().connection_lost(exc)
        # uvicorn notifies only the newest request; with pipelining an earlier request is being
        # answered.
        if self._current_cycle is not None and not self._current_cycle.response_complete:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()
        self._connection.mark_lost()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break all reference cycles, so that closed connections do not wait for the garbage
        collector.
        """
        self._unset_keepalive_if_required()
        self._coalescing.discard_pending()
        self.pipeline.clear()  # queued requests will not be answered
        self.cycle = self._current_cycle = None  # type: ignore[assignment]
        self._final_error = None

    # Received bytes.

    def data_received(self, data: bytes) -> None:
        try:
            if (
                self.pipeline
                or self._unparsed
                or len(data) > max(PARSE_STEP_BYTES, self._body_left)
            ):
                self._unparsed = memoryview(
                    bytes(self._unparsed) + data
                )  # TLS may have received more already
                self._parse_held()
            elif not self._ignores_input():
                self._parse_part(data)
        except Exception:
            self._abort_after_bug()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of the client's input; complete requests are still answered.

        Returns whether the connection stays open, which asyncio's TLS does not support.
        """
        # asyncio closes a TLS transport on EOF whatever this returns.
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        try:
            if self._half_closed is None:
                self._half_closed = HalfClosedPoller(
                    self._coalescing, self.loop, self._run_supervised, self._may_begin_answer
                )
                self._connection.mark_half_closed()
            self._end_input()
        except Exception:
            self._abort_after_bug()
        return not self.transport.is_closing()

    def _end_input(self) -> None:
        """Make the newest request the last, once all received bytes are parsed."""
        if self._half_closed is None or self._unparsed or self._ignores_input():
            return
        if self._stage != _BETWEEN:
            self._refuse_request(MalformedHttp("incomplete request: the client stopped sending"))
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _may_begin_answer(self) -> bool:
        answered = self._current_cycle
        return answered is not None and not answered.response_started

    def _run_supervised(self, callback: Callable[[], None]) -> None:
        """Run a callback of the loop, which would only print an exception and leave the connection
        stuck.
        """
        try:
            callback()
        except Exception:
            self._abort_after_bug()

    def _abort_after_bug(self) -> None:
        """Abort the connection after a bug: its state is unknown."""
        self.config.app.report_failure(FAILURE_NAME)  # type: ignore[union-attr]
        self.transport.abort()

    def _parse_soon(self) -> None:
        self.loop.call_soon(self._run_supervised, self._parse_held)

    def _parse_held(self) -> None:
        """Parse one iteration's share of the received bytes.

        The rest waits for the next, or for a response.
        """
        parts = PARSE_STEPS_PER_ITERATION
        # Stop at a pipelined request: parsing on would queue unanswered requests without limit.
        while self._unparsed and parts and not self.pipeline and not self._ignores_input():
            size = self._next_part()
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._parse_part(part)
            parts -= 1
        if self._ignores_input():
            self._unparsed = memoryview(b"")
        # Otherwise uvicorn would resume reading as soon as a handler takes a body.
        self.flow.is_held = bool(self._unparsed)
        if self._unparsed:
            self.flow.pause_reading()
            if not self.pipeline:
                self._parse_soon()
        else:
            self._end_input()
            if self._takes_more():
                self.flow.resume_reading()

    def _next_part(self) -> int:
        """Return the number of held bytes to parse in the next step.

        A head is parsed alone, so that the body after it is one part and is copied once.
        """
        if self._stage == _BODY:
            return max(PARSE_STEP_BYTES, self._body_left)
        end = bytes(self._unparsed[:PARSE_STEP_BYTES]).find(b"\r\n\r\n")
        return end + 4 if end > 0 else PARSE_STEP_BYTES

    def _ignores_input(self) -> bool:
        """Return whether all further input is to be ignored."""
        return self._final_error is not None or self.transport.is_closing()

    def _takes_more(self) -> bool:
        if self.transport.is_closing() or self.pipeline:
            return False
        return self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT

    def _parse_part(self, data: bytes | memoryview) -> None:
        self._body_fed = 0
        again = b""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            again = self._head_without_upgrade() + bytes(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse_request(parser_error(error))
        else:
            if self._stage != _BETWEEN:
                self._charge_overhead(len(data) - self._body_fed)
        if again:
            self._parse_part(
                again
            )  # here, so that the upgrade exception is not the context of later exceptions

    def _head_without_upgrade(self) -> bytes:
        """Return the head without the upgrade offer, for a new parser.

        The offer is declined, so the request is handled as if there were none; the parser, however,
        would treat the body as data of the other protocol.  Java's HTTP client offers h2c with
        every first request, and the body of that request must not be lost.
        """
        version = self.parser.get_http_version().encode()
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return without_upgrade_headers(line, self.headers)

    def _charge_overhead(self, n_bytes: int) -> None:
        """Count `n_bytes` of the current request outside of its body.

        Body bytes allow as many other bytes, up to HEAD_BYTES_MAX: long bodies in small chunks are
        fine, and trailers are limited like a head.
        """
        # Chunk framing may exceed a fixed limit in a long body of small chunks, so the allowance
        # grows with the body; the cap keeps trailers within the size of a head.
        self._overhead_left = min(self._overhead_left + self._body_fed, HEAD_BYTES_MAX) - n_bytes
        if self._overhead_left < 0:
            what = (
                "request line and headers" if self._stage == _HEAD else "chunk framing and trailers"
            )
            self._refuse_request(HeadTooLarge(f"{what} exceed {HEAD_BYTES_MAX} bytes"))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        # uvicorn creates a new scope for each request; the extensions are per connection.
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._stage, self._overhead_left = _HEAD, HEAD_BYTES_MAX
        self._offers_upgrade = False
        self._deadline_from = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise MalformedHttp("CONNECT is not supported: the service is not a proxy")
            # Do not start a request yet: the head is parsed again without the offer.
            self._offers_upgrade = True
            return
        self._body_left = check_head(self.headers, self.parser)
        super().on_headers_complete()
        if not self.pipeline:
            self._current_cycle = self.cycle
        self._stage = _BODY
        self.headers = []  # for trailers, which are ignored

    def on_body(self, body: bytes) -> None:
        self._body_fed += len(body)
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._stage, self._deadline_from, self._body_left = _BETWEEN, None, 0
        super().on_message_complete()

    # Responses.

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        was_last = not self.pipeline
        if not was_last:
            self._current_cycle = self.pipeline[-1][0]
        super().on_response_complete()
        if was_last and self._final_error is not None:
            self._send_final_error(self._final_error)
        elif self._unparsed and not self.pipeline:
            self._parse_soon()

    def send_400_response(self, msg: str) -> None:
        self._refuse_request(MalformedHttp(msg))

    def _refuse_request(self, error: SelectError) -> None:
        """Respond to the current request with an error, after earlier responses, and close."""
        if self._ignores_input():
            return
        self._final_error, self._deadline_from = error, None
        if self._stage == _BODY and self.pipeline:
            self.pipeline.popleft()  # drop the unfinished request from the queue
        elif self._stage == _BODY:
            if self.cycle.response_started:
                self.transport.close()  # a second response would corrupt the one in progress
            else:
                self._send_final_error(error)
        elif self.cycle is None or self.cycle.response_complete:
            self._send_final_error(error)

    def _send_final_error(self, error: SelectError) -> None:
        """Send an error as the last response of the connection."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorBody(error=str(error), code=error.code))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.config.app.count_refused(error.status)  # type: ignore[union-attr]
        self.transport.close()

    # Interface for a protocol that reads the bytes first (select_service.fastpath).

    def is_between_requests(self) -> bool:
        """Return whether all requests were answered and all responses were sent.

        The next byte then begins a request, and another protocol may read on.
        """
        return (
            self._stage == _BETWEEN
            and (self.cycle is None or self.cycle.response_complete)
            and not self._unparsed
            and not self._ignores_input()
            and not self.transport.get_write_buffer_size()
        )

    def refuse_connection(self) -> None:
        """Refuse the connection, because there are too many."""
        self._refuse_request(
            CapacityExceeded(f"more than {CONNECTIONS_MAX} connections are open; retry later")
        )

    @property
    def connection(self) -> ClientConnection:
        """Connection object of the handlers."""
        return self._connection

    def release_reading(self) -> None:
        """Leave reading and supervision to another protocol until `data_received` is called."""
        self._deadline_from = None
        self._unset_keepalive_if_required()

    # Timeouts.

    def _schedule_watch(self) -> None:
        self._watch = self.loop.call_later(
            WATCH_EVERY_S, self._run_supervised, self._check_progress
        )

    def _check_progress(self) -> None:
        self._schedule_watch()
        if self._is_unread():
            self.transport.abort()
        elif self._deadline_from is None:
            self._end_if_idle()
        elif self.pipeline:
            self._deadline_from = self.loop.time()  # the wait is ours, not the client's
        elif self.loop.time() - self._deadline_from > REQUEST_READ_S_MAX:
            self.refuse_slow_request()

    def _end_if_idle(self) -> None:
        """Close an idle connection if connections are scarce; otherwise uvicorn's timer does."""
        idle_s = self.loop.time() - self._idle_since
        if (
            idle_s > CROWDED_KEEP_ALIVE_S
            and is_crowded(self.connections)
            and self.is_between_requests()
        ):
            self.transport.close()

    def refuse_slow_request(self) -> None:
        """Refuse a request that arrives too slowly."""
        self._refuse_request(RequestTimeout(f"request incomplete after {REQUEST_READ_S_MAX:g} s"))

    def _is_unread(self) -> bool:
        """Return whether the client has read nothing of a pending response for too long."""
        unsent = self.transport.get_write_buffer_size()
        # Any change means that the client reads, or that a new response was written.
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, self.loop.time()
        return unsent > 0 and self.loop.time() - self._unsent_since > UNREAD_S_MAX


def is_crowded(connections: Sized) -> bool:
    """Return whether more than half of the allowed connections are open."""
    return 2 * len(connections) > CONNECTIONS_MAX
