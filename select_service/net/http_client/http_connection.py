"""HTTP/1.1 client connection: one request at a time, responses parsed in steps.

TLS is part of the parsing, in the same steps.  The transport stops receiving while received bytes
are unparsed or too much of a body is untaken; TCP flow control then slows the server down.
"""

import asyncio
import ssl
from time import monotonic
from typing import cast

from select_service.net.http_client.http_error import HttpError, HttpFailure
from select_service.net.http_client.reading_budget import ReadingBudget
from select_service.net.http_client.response_parser import (
    PIECE_BYTES,
    ResponseParser,
    UnreadableResponse,
)
from select_service.net.http_client.tls_stream import TlsStream

UNREAD_BYTES_MAX = 1 << 20
"""Maximum size of parsed but untaken body; the last received piece may exceed it."""
RECEIPT_BYTES = 1 << 14
"""Receive size, small so that many connections do not add up in one iteration."""
BULK_BYTES = 1 << 20
"""Body size above which the whole buffer is used to receive."""

TLS_PIECE_BYTES = 1 << 15
"""Size of a piece decrypted at once.  In the worst case, one-byte records, it takes 1 to 2 ms."""
UNSENT_BYTES_MAX = 1 << 16
"""Maximum size of unsent TLS protocol data when the server does not read."""
_EMPTY = memoryview(b"")


class HttpConnection(asyncio.BufferedProtocol):
    """HTTP/1.1 client connection.  Belongs to one event loop; closed by its opener."""

    def __init__(self, budget: ReadingBudget) -> None:
        self.sent_at = self.received_at = 0.0
        """Times of the last request and of the last bytes since, monotonic clock, seconds."""
        self.is_open = False
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._tls: TlsStream | None = None
        self._answer: ResponseParser | None = None
        self._backlog = _EMPTY
        self._parsed_offset = 0
        """Offset in the backlog up to which it is parsed."""
        self._has_ended = False
        """Whether either side has closed the connection."""
        self._is_broken = False
        """Whether the connection ended with an error."""
        self._fault: HttpError | None = None
        self._change: asyncio.Future[None] | None = None
        """Future that is done when the response has progressed."""

    def send_request(self, message: bytes) -> None:
        """Send a request.  The previous response must be complete."""
        assert self._tls is not None or not self._backlog  # TLS may have session tickets here
        self._answer, self._fault = ResponseParser(), None
        self.received_at = 0.0
        self.sent_at = monotonic()
        if self._transport is None or self._has_ended or self._transport.is_closing():
            self._end_with_error("closed", "the connection was closed before an answer came")
            return
        self._transport.write(message if self._tls is None else self._tls.encrypt_data(message))

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Perform the TLS handshake while no request is running.  Raises HttpError."""
        self._fault, self._answer = None, None
        tls = self._tls = TlsStream(context, server_name)
        if self._transport is None:
            self._end_with_error("closed", "the connection was closed")
        else:
            self._transport.write(tls.begin_handshake())
        while not tls.is_established:
            await self._wait_for_change()

    async def read_head(self) -> ResponseParser:
        """Return the response when its status and headers are complete.  Raises HttpError."""
        answer = self._answer
        assert answer is not None
        while not answer.status:
            await self._wait_for_change()
        return answer

    async def read_some(self) -> bytes:
        """Return the next part of the body; empty at its end.  Raises HttpError."""
        answer = self._answer
        assert answer is not None
        while not answer.parts and not answer.is_complete:
            await self._wait_for_change()
        part = answer.take_body()
        self._resume_reading()
        return part

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent."""
        return (
            self.is_open
            and not self._has_ended
            and not self._backlog
            and self._fault is None
            and self._answer is not None
            and self._answer.is_complete
            and self._answer.keeps_connection
        )

    @property
    def has_answer_begun(self) -> bool:
        return self._answer is not None and self._answer.has_begun

    def close(self) -> None:
        """Cancel the running request, close the connection and drop all references to it."""
        transport, self._transport, self.is_open = self._transport, None, False
        if self._answer is not None:
            self._answer.close()
            if not self._answer.is_complete and self._fault is None:
                self._end_with_error("closed", "the request was cancelled")
        self._backlog, self._has_ended = _EMPTY, True
        if transport is None:
            return
        if self._answer is not None and self._answer.is_complete:
            if self._tls is not None:
                transport.write(self._tls.close_notify())
            transport.close()
        else:
            # An unfinished response has data in flight: `close` would wait for the peer.
            transport.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        is_bulk = self._answer is not None and self._answer.body_bytes > BULK_BYTES
        # Small receives by default; a large body uses the whole buffer, since fewer calls cost less
        # CPU.
        return self._budget.buffer if is_bulk else self._budget.buffer[:RECEIPT_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        if self._fault is not None or (self._tls is None and not self._is_awaited):
            self.close()  # unrequested data
            return
        self.received_at = monotonic()
        self._backlog, self._parsed_offset = memoryview(bytes(self._budget.buffer[:nbytes])), 0
        # The shared buffer is free again after the copy; the next receive waits until this is
        # parsed.
        self._transport.pause_reading()
        # Parsed later, in the queue of all readers: a flood on one connection cannot stall the
        # loop.
        self._budget.add_step(self._parse_step)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self._transport = False, None
        self._has_ended, self._is_broken = True, exc is not None
        if not self._backlog:
            self._handle_end()

    # Reading.

    def _parse_step(self) -> bool:
        """Parse a piece; see `reading_budget.Step`."""
        if not self._backlog:
            return False  # closed meanwhile
        size = PIECE_BYTES if self._tls is None else TLS_PIECE_BYTES
        piece = self._backlog[self._parsed_offset : self._parsed_offset + size]
        self._parsed_offset += len(piece)
        try:
            plain = piece if self._tls is None else self._decrypt_piece(self._tls, piece)
            if plain:
                self._feed_parser(plain)
        except UnreadableResponse as error:
            self._backlog = _EMPTY
            self._end_with_error("unreadable", str(error))
            return False
        except ssl.SSLError as error:
            self._backlog = _EMPTY
            self._end_with_error("unreachable", _tls_error_text(error))
            return False
        if self._parsed_offset < len(self._backlog):
            self._note_change()
            return True
        self._backlog = _EMPTY
        if self._has_ended or (self._tls is not None and self._tls.has_ended):
            self._has_ended = True
            self._handle_end()
        self._note_change()
        self._resume_reading()
        return False

    def _decrypt_piece(self, tls: TlsStream, piece: memoryview) -> memoryview:
        """Decrypt a piece.  Raises SSLError."""
        carried, to_send = tls.decrypt_piece(piece)
        if to_send and self._transport is not None:
            if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                raise ssl.SSLError(0, "server does not read TLS protocol data")
            self._transport.write(to_send)
        return memoryview(carried)

    def _feed_parser(self, plain: memoryview) -> None:
        """Parse decrypted bytes.  Raises UnreadableResponse."""
        if self._answer is None or not self._is_awaited:
            raise UnreadableResponse("server sent unrequested data")
        self._answer.feed_piece(plain)
        if (
            self._answer.is_complete
            and self._parsed_offset < len(self._backlog)
            and self._tls is None
        ):
            # Surplus bytes after a response: the connection is out of step and must not be reused.
            self._answer.keeps_connection = False
            self._parsed_offset = len(self._backlog)

    @property
    def _is_awaited(self) -> bool:
        return self._answer is not None and not self._answer.is_complete

    def _resume_reading(self) -> None:
        answer, transport = self._answer, self._transport
        if transport is None or self._backlog or transport.is_closing():
            return
        unread_bytes = 0 if answer is None else answer.unread_bytes
        if unread_bytes <= UNREAD_BYTES_MAX and self._fault is None:
            transport.resume_reading()

    def _handle_end(self) -> None:
        """Handle the end of the connection."""
        answer = self._answer
        if answer is None:
            self._end_with_error("closed", "the connection was closed")
        elif answer.is_complete or (not self._is_broken and answer.end_of_connection()):
            self._note_change()
        elif answer.status:
            self._end_with_error("unreadable", "response incomplete: the connection was closed")
        else:
            self._end_with_error("closed", "the connection was closed before an answer came")

    def _end_with_error(self, failure: HttpFailure, text: str) -> None:
        # The first error wins: later ones are its consequences.
        if self._fault is None:
            self._fault = HttpError(failure, text)
        self._note_change()

    async def _wait_for_change(self) -> None:
        """Wait until the response progresses.  Raises HttpError."""
        if self._fault is not None:
            raise HttpError(self._fault.failure, str(self._fault))
        self._change = asyncio.get_running_loop().create_future()
        try:
            await self._change
        finally:
            self._change = None

    def _note_change(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


def _tls_error_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate is not trusted: {error.verify_message}"
    return f"TLS failed: {getattr(error, 'reason', None) or error.strerror or error}"
