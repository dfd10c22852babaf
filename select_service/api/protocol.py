"""uvicorn's HTTP protocol with the bounds that it leaves to a proxy in front of it.

The service may stand directly on a network, so a slow or endless request must not hold memory or a
connection for ever, and every refusal has the JSON body of the others.
"""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from select_service.schema import ErrorBody

CONNECTIONS_MAX = 2048
HEAD_BYTES_MAX = 65_536
"""Request line and headers of one request."""
REQUEST_READ_S_MAX = 30.0
"""From the first byte of a request (or the opening of the connection) to its last."""
WATCH_EVERY_S = 5.0


class BoundedProtocol(HttpToolsProtocol):
    """One connection.  `_began` is when the request that is still being read began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_head = False
        self._head_bytes = 0
        self._began: float | None = self.loop.time()
        self._watch = self.loop.call_later(WATCH_EVERY_S, self._check_progress)
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(503, f"more than {CONNECTIONS_MAX} connections", "capacity_exceeded")

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                text = f"request line and headers exceed {HEAD_BYTES_MAX} bytes"
                self._refuse(431, text, "head_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._began = self.loop.time()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._began = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "malformed_http")

    def _check_progress(self) -> None:
        if self.transport.is_closing():
            return
        if self._began is not None and self.loop.time() - self._began > REQUEST_READ_S_MAX:
            self._refuse(408, f"request not complete after {REQUEST_READ_S_MAX:g} s", "timeout")
            return
        self._watch = self.loop.call_later(WATCH_EVERY_S, self._check_progress)

    def _refuse(self, status: int, text: str, code: str) -> None:
        """Answer, unless an answer has begun, and close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = msgspec.json.encode(ErrorBody(error=text, code=code))
            head: list[Any] = [
                STATUS_LINE[status],
                b"content-type: application/json\r\ncontent-length: ",
                str(len(body)).encode(),
                b"\r\nconnection: close\r\n\r\n",
                body,
            ]
            self.transport.write(b"".join(head))
        self.transport.close()
