"""uvicorn's HTTP protocol with the bounds that it leaves to a proxy in front of it.

The service may stand directly on a network, so a slow or endless request, or a reader that does not
read, must not hold memory or a connection for ever, and every refusal has the JSON body of the
others.
"""

import asyncio
import logging
from typing import Any, Protocol

import httptools
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from select_service.bodies.common import ErrorBody
from select_service.http.coalescing import CoalescingTransport

CONNECTIONS_MAX = 8192
"""More than the default of --queue-max-requests: who waits for a worker holds a connection."""
HEAD_BYTES_MAX = 65_536
"""Request line and headers of one request."""
REQUEST_READ_S_MAX = 30.0
"""From the first byte of a request (or the opening of the connection) to its last."""
UNREAD_S_MAX = 30.0
"""How long a client may leave an answer lying without taking any of it."""
WATCH_EVERY_S = 5.0

OFFER_HEADERS = (b"upgrade", b"http2-settings")

_QUIET = logging.getLogger("uvicorn.error.connection")
_QUIET.setLevel(logging.ERROR)
"""Garbage on a connection is the client's affair: it gets an answer, not a line in our log."""


class Application(Protocol):
    """The ASGI application, and what a connection and the server tell it besides requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def refused(self, status: int) -> None:
        """A connection gave an answer before a request had come in."""

    def ending(self) -> None:
        """The process ends: whoever waits is answered now."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection.  `_began` is when the request that is still being read began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self.logger = _QUIET
        self._in_head = False
        self._head_bytes = 0
        self._began: float | None = self.loop.time()
        self._unsent, self._unsent_since = 0, 0.0
        self._watch = self.loop.call_later(WATCH_EVERY_S, self._check_progress)
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(503, f"more than {CONNECTIONS_MAX} connections", "capacity_exceeded")

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            rest: bytes | None = data
            while rest is not None:
                rest = self._feed(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                text = f"request line and headers exceed {HEAD_BYTES_MAX} bytes"
                self._refuse(431, text, "head_too_large")

    def _feed(self, data: bytes) -> bytes | None:
        """Parse.  Returns what is to be parsed anew after a head that offers another protocol.

        The offer is not taken, so the request stands as if it had not been made; the parser though
        would take the body for the other protocol.  Java's HTTP client offers h2c with every first
        request, and the body of that must not be lost.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return head + data[offer.args[0] :]
        return None

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(w for w in words if w.lower() not in OFFER_HEADERS)
            if value and name not in OFFER_HEADERS:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._offers_upgrade = False
        self._began = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offers_upgrade = True
            return
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._began = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "malformed_http")

    def _check_progress(self) -> None:
        self._watch = self.loop.call_later(WATCH_EVERY_S, self._check_progress)
        if self._is_unread():
            self.transport.abort()
        elif self._began is not None and self.loop.time() - self._began > REQUEST_READ_S_MAX:
            self._refuse(408, f"request not complete after {REQUEST_READ_S_MAX:g} s", "timeout")

    def _is_unread(self) -> bool:
        """Has the client taken nothing of an answer for too long?"""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, self.loop.time()
        return unsent > 0 and self.loop.time() - self._unsent_since > UNREAD_S_MAX

    def _refuse(self, status: int, text: str, code: str) -> None:
        """Answer the request that is being read, unless it has an answer, and close."""
        if self.transport.is_closing():
            return
        if self._awaits_answer():
            body = msgspec.json.encode(ErrorBody(error=text, code=code))
            head: list[Any] = [
                STATUS_LINE[status],
                b"content-type: application/json\r\ncontent-length: ",
                str(len(body)).encode(),
                b"\r\nconnection: close\r\n\r\n",
                body,
            ]
            self.transport.write(b"".join(head))
            self.config.app.refused(status)  # type: ignore[union-attr]
        self.transport.close()

    def _awaits_answer(self) -> bool:
        """May an answer be written now without breaking into, or following, another one?"""
        cycle = self.cycle
        if cycle is None:
            return True
        if self._began is None or self._in_head:
            return bool(cycle.response_complete)
        return not cycle.response_started
