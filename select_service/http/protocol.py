"""uvicorn's HTTP protocol with the bounds that it leaves to a proxy in front of it.

The service may stand directly on a network, so a slow or endless request, or a reader that does not
read, must not hold memory or a connection for ever, and every refusal has the JSON body of the
others.

What of a request is bounded: head (bytes, fields), trailers, what a chunked body has around its
chunks, the time until it has come in, what is parsed in one turn of the event loop, and how much is
parsed behind a request that has no answer yet.  Bodies are bounded where they are read (`codec`).

The contract with uvicorn, checked by tests/http/test_uvicorn_contract.py.  Of `HttpToolsProtocol`:

* called by us, wrapped: `connection_made(transport)`, `connection_lost(error)`, the parser's
  callbacks `on_message_begin`, `on_headers_complete`, `on_body(bytes)`, `on_message_complete`, and
  `on_response_complete`, which starts the next of `pipeline`;
* replaced: `data_received`, `eof_received` (True: the transport stays open), `send_400_response`,
  and `parser` and `flow` after they were made;
* `_unset_keepalive_if_required()` stops the timer of an idle connection; only `data_received` and
  `on_response_complete` call it;
* read: `config.app`, `loop`, `connections` (all that are open, this one or who stands before it),
  `transport`, `url` and `headers` (of the head that is being read; `headers` is also the list in
  `scope`), `scope`;
* `cycle`: the newest request whose head has come in, or None.  It is being answered unless it waits
  in `pipeline`, a deque of (cycle, application), newest on the left;
* `logger` is only written to.

Of `RequestResponseCycle`: `response_started`, `response_complete`, `body` (what no handler has
taken yet); `keep_alive` (False: its answer is the last, and closes); `disconnected` and
`message_event`, which together end a `receive()` with `http.disconnect`.  Of `FlowControl`:
`pause_reading()`, `resume_reading()`; uvicorn pauses above `HIGH_WATER_LIMIT` bytes of `body` and
resumes when a handler asks for more or has answered.

Of `uvicorn.Server` (see `server`): `serve` is `capture_signals` around `_serve`, and raises what is
in `_captured_signals` again; `shutdown` comes before the connections are asked to end;
`server_state.connections`, of which it uses `shutdown()`; `on_tick` makes
`server_state.default_headers` anew, the first time before a connection is accepted, and only
`main_loop`, which ends when `should_exit` is set, calls it; `connection: close` among them ends a
connection with its next answer; `servers` are closed by `shutdown`.  Of
`uvicorn.Config`: that `app` is called as it is, and that `http` may be what makes a protocol.

Of httptools: the names of the callbacks and when they are called; an error in one of them is the
`__context__` of the `HttpParserError` that `feed_data` raises; `HttpParserUpgrade` has the place in
the data where the head ends.
"""

import asyncio
import logging
from collections.abc import Callable, Sized
from typing import Protocol

import httptools
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from select_service.bodies.common import ErrorBody
from select_service.errors import CapacityExceeded, SelectError
from select_service.http.coalescing import CoalescingTransport
from select_service.http.connection import EXTENSION, Connection
from select_service.http.endpoint import RequestTimeout
from select_service.http.half_closed import HalfClosed
from select_service.http.head import HeadTooLarge, MalformedHttp, checked_head, without_offer

CONNECTIONS_MAX = 8192
"""More than the default of --queue-max-requests: who waits for a worker holds a connection."""
KEEP_ALIVE_S = 3900
"""How long a connection may be idle, unless a setting says otherwise.  A proxy must be the first
to end it, or a request that it sends at this moment is lost; Envoy keeps them for an hour."""
CROWDED_KEEP_ALIVE_S = 75
"""The same while more than half of the connections are taken, so that idle ones do not lock others
out."""
HEAD_BYTES_MAX = 65_536
"""Request line, headers and trailers of one request, and the lines between the chunks of its body
as far as they are more than the body itself."""
REQUEST_READ_S_MAX = 30.0
"""From the first byte of a request (or the opening of the connection) to its last."""
UNREAD_S_MAX = 30.0
"""How long a client may leave an answer lying without taking any of it."""
WATCH_EVERY_S = 5.0
CALLBACK = "http_connection"
"""Failures of a connection are counted under this name."""

PARSED_AT_ONCE = 4096
"""Bytes that may hold many small things, such as heads and chunks; a body of known size is one."""
PARTS_PER_TURN = 4
"""How often so much is parsed before others have their turn: 2 ms of CPU for the smallest chunks,
1.5 ms for the smallest requests, of which the second ends the turn."""

_BETWEEN, _HEAD, _BODY = range(3)
"""What a connection is reading."""

_QUIET = logging.getLogger("uvicorn.error.connection")
_QUIET.setLevel(logging.ERROR)
"""Garbage on a connection is the client's affair: it gets an answer, not a line in our log."""


class Application(Protocol):
    """The ASGI application, and what a connection and the server tell it besides requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def refused(self, status: int) -> None:
        """A connection gave an answer before a request had come in."""

    def failed(self, callback: str) -> None:
        """A callback of the event loop raised what is being handled."""

    def draining(self) -> None:
        """The process will end soon: nobody should send more than they must."""

    def ending(self) -> None:
        """The process ends: whoever waits is answered now."""


class _Flow(FlowControl):
    """Reading stays paused while bytes that were read already wait to be parsed."""

    holds = False

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    _stage: what is being read.  _began: when that began, or None when nothing is due.
    _spare: bytes that may still come and are not body.  _body_left: what is still to come of a body
    of known size.  _body_fed: bytes of body in the part that is being parsed.
    _answered: the request that is being answered, or was last; uvicorn tells the newest alone that
    its client has gone.
    _held: bytes that were read and not yet parsed.
    _farewell: the refusal that is the last answer, perhaps after those of the requests before it;
    nothing is parsed any more.
    _idle_since: when the last answer was given, or the connection opened.
    _half_closed: there once the client sends nothing more, and may still read.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._coalescing = CoalescingTransport(transport, self.loop, self._supervised)
        super().connection_made(self._coalescing)  # type: ignore[arg-type]
        self.logger = _QUIET
        self.flow: _Flow = _Flow(self.transport)
        self._connection = Connection()
        self._extensions = {EXTENSION: self._connection}
        self._stage, self._spare = _BETWEEN, HEAD_BYTES_MAX
        self._body_left = self._body_fed = 0
        self._held = memoryview(b"")
        self._farewell: SelectError | None = None
        self._answered: RequestResponseCycle | None = None
        self._began: float | None = self.loop.time()
        self._idle_since = self.loop.time()
        self._unsent, self._unsent_since = 0, 0.0
        self._half_closed: HalfClosed | None = None
        self._watch_on()
        if len(self.connections) > CONNECTIONS_MAX:
            self.turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        if self._half_closed is not None:
            self._half_closed.stop()
            self._half_closed = None
        self._held = memoryview(b"")
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._connection.lost()
        self._let_go()

    def _let_go(self) -> None:
        """Of all that leads back here: a closed connection is not left to the garbage collector."""
        self._unset_keepalive_if_required()
        self._coalescing.lost()
        self.pipeline.clear()  # their turn never comes
        self.cycle = self._answered = None  # type: ignore[assignment]
        self._farewell = None

    # Bytes

    def data_received(self, data: bytes) -> None:
        try:
            if self.pipeline or self._held or len(data) > max(PARSED_AT_ONCE, self._body_left):
                self._held = memoryview(bytes(self._held) + data)  # TLS may have had more already
                self._parse_held()
            elif not self._is_deaf():
                self._parse(data)
        except Exception:
            self._fail()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more.  What it has sent is answered.

        Returns whether the connection stays open, which TLS of asyncio does not know.
        """
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        try:
            if self._half_closed is None:
                self._half_closed = HalfClosed(
                    self._coalescing, self.loop, self._supervised, self._may_begin_answer
                )
                self._connection.half_close()
            self._end_input()
        except Exception:
            self._fail()
        return not self.transport.is_closing()

    def _end_input(self) -> None:
        """Let the newest request be the last, once all that the client has sent is parsed."""
        if self._half_closed is None or self._held or self._is_deaf():
            return
        if self._stage != _BETWEEN:
            self._refuse(MalformedHttp("the client stopped sending in the middle of a request"))
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _may_begin_answer(self) -> bool:
        answered = self._answered
        return answered is not None and not answered.response_started

    def _supervised(self, callback: Callable[[], None]) -> None:
        """What the loop calls: it would print what is raised, and nobody would read on."""
        try:
            callback()
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """A bug.  In what state the connection is nobody knows, so it ends."""
        self.config.app.failed(CALLBACK)  # type: ignore[union-attr]
        self.transport.abort()

    def _parse_soon(self) -> None:
        self.loop.call_soon(self._supervised, self._parse_held)

    def _parse_held(self) -> None:
        """A turn's share of what has been read.  The rest waits for its turn, or for an answer."""
        parts = PARTS_PER_TURN
        while self._held and parts and not self.pipeline and not self._is_deaf():
            size = self._next_part()
            part, self._held = self._held[:size], self._held[size:]
            self._parse(part)
            parts -= 1
        if self._is_deaf():
            self._held = memoryview(b"")
        self.flow.holds = bool(self._held)
        if self._held:
            self.flow.pause_reading()
            if not self.pipeline:
                self._parse_soon()
        else:
            self._end_input()
            if self._takes_more():
                self.flow.resume_reading()

    def _next_part(self) -> int:
        """How much of what is held to parse at once.

        A head alone, so that the body behind it is one part and is copied once.
        """
        if self._stage == _BODY:
            return max(PARSED_AT_ONCE, self._body_left)
        end = bytes(self._held[:PARSED_AT_ONCE]).find(b"\r\n\r\n")
        return end + 4 if end > 0 else PARSED_AT_ONCE

    def _is_deaf(self) -> bool:
        """Is nothing of what comes worth parsing any more?"""
        return self._farewell is not None or self.transport.is_closing()

    def _takes_more(self) -> bool:
        if self.transport.is_closing() or self.pipeline:
            return False
        return self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT

    def _parse(self, data: bytes | memoryview) -> None:
        self._body_fed = 0
        again = b""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            again = self._head_without_offer() + bytes(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            if self._stage != _BETWEEN:
                self._charge(len(data) - self._body_fed)
        if again:
            self._parse(again)  # here, so that the offer is not the context of what is raised

    def _head_without_offer(self) -> bytes:
        """The head that offers another protocol, to be parsed anew without.

        The offer is not taken, so the request stands as if it had not been made; the parser though
        would take the body for the other protocol.  Java's HTTP client offers h2c with every first
        request, and the body of that must not be lost.
        """
        version = self.parser.get_http_version().encode()
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return without_offer(line, self.headers)

    def _charge(self, n_bytes: int) -> None:
        """`n_bytes` of the request that is being read have come that are not body.

        Body makes room for as much else again, never for more than HEAD_BYTES_MAX: long bodies in
        small chunks are fine, and trailers have no more room than a head.
        """
        self._spare = min(self._spare + self._body_fed, HEAD_BYTES_MAX) - n_bytes
        if self._spare < 0:
            what = "request line and headers" if self._stage == _HEAD else "what is around the body"
            self._refuse(HeadTooLarge(f"{what} exceeds {HEAD_BYTES_MAX} bytes"))

    # What the parser finds

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._stage, self._spare = _HEAD, HEAD_BYTES_MAX
        self._offers_upgrade = False
        self._began = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise MalformedHttp("CONNECT is for proxies; this is none")
            self._offers_upgrade = True
            return
        self._body_left = checked_head(self.headers, self.parser)
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle
        self._stage = _BODY
        self.headers = []  # of the trailers, which mean nothing here

    def on_body(self, body: bytes) -> None:
        self._body_fed += len(body)
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._stage, self._began, self._body_left = _BETWEEN, None, 0
        super().on_message_complete()

    # Answers

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        was_last = not self.pipeline
        if not was_last:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if was_last and self._farewell is not None:
            self._say(self._farewell)
        elif self._held and not self.pipeline:
            self._parse_soon()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedHttp(msg))

    def _refuse(self, error: SelectError) -> None:
        """Answer the request that is being read, after those before it, and close."""
        if self._is_deaf():
            return
        self._farewell, self._began = error, None
        if self._stage == _BODY and self.pipeline:
            self.pipeline.popleft()  # its turn never came
        elif self._stage == _BODY:
            if self.cycle.response_started:
                self.transport.close()  # nothing may be written into its answer or behind it
            else:
                self._say(error)
        elif self.cycle is None or self.cycle.response_complete:
            self._say(error)

    def _say(self, error: SelectError) -> None:
        """The last answer of the connection."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorBody(error=str(error), code=error.code))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.config.app.refused(error.status)  # type: ignore[union-attr]
        self.transport.close()

    # Of who meets the bytes before us, where somebody does (select_service.fast)

    def is_between(self) -> bool:
        """Has every request of which a byte came been answered, and every answer been sent?

        Then the next byte begins a request, and may be read by somebody else.
        """
        return (
            self._stage == _BETWEEN
            and (self.cycle is None or self.cycle.response_complete)
            and not self._held
            and not self._is_deaf()
            and not self.transport.get_write_buffer_size()
        )

    def turn_away(self) -> None:
        """There are too many connections."""
        self._refuse(CapacityExceeded(f"more than {CONNECTIONS_MAX} connections"))

    @property
    def connection(self) -> Connection:
        """What handlers say and ask of this connection."""
        return self._connection

    def step_back(self) -> None:
        """Somebody else reads on, and watches the connection until `data_received` is called."""
        self._began = None
        self._unset_keepalive_if_required()

    # Time

    def _watch_on(self) -> None:
        self._watch = self.loop.call_later(WATCH_EVERY_S, self._supervised, self._check_progress)

    def _check_progress(self) -> None:
        self._watch_on()
        if self._is_unread():
            self.transport.abort()
        elif self._began is None:
            self._end_if_idle()
        elif self.pipeline:
            self._began = self.loop.time()  # it is we who do not read on
        elif self.loop.time() - self._began > REQUEST_READ_S_MAX:
            self.time_out()

    def _end_if_idle(self) -> None:
        """Make room where it is scarce; uvicorn's timer ends the others."""
        idle_s = self.loop.time() - self._idle_since
        if idle_s > CROWDED_KEEP_ALIVE_S and is_crowded(self.connections) and self.is_between():
            self.transport.close()

    def time_out(self) -> None:
        """What is being read came too slowly."""
        self._refuse(RequestTimeout(f"request not complete after {REQUEST_READ_S_MAX:g} s"))

    def _is_unread(self) -> bool:
        """Has the client taken nothing of an answer for too long?"""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, self.loop.time()
        return unsent > 0 and self.loop.time() - self._unsent_since > UNREAD_S_MAX


def is_crowded(connections: Sized) -> bool:
    """Return whether more than half of the connections that there may be are open."""
    return 2 * len(connections) > CONNECTIONS_MAX


def _reason(error: httptools.HttpParserError) -> SelectError:
    """What went wrong in the parser, or in what it called."""
    cause = error.__context__
    if isinstance(cause, SelectError):
        return cause
    if isinstance(cause, MemoryError):
        return CapacityExceeded("there is no memory for this request")
    return MalformedHttp("Invalid HTTP request received.")
