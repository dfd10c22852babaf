"""A connection to a server: requests go out one after the other, answers are read in steps.

TLS is a part of reading, in the same steps.  The transport receives no more while bytes that came
are not parsed, or while too much of a body has not been taken: then the kernel's own window holds
the server up.
"""

import asyncio
import ssl
from time import monotonic
from typing import cast

from select_service.outgoing.answer_parser import PIECE_BYTES, AnswerParser, UnreadableAnswer
from select_service.outgoing.reading_budget import ReadingBudget
from select_service.outgoing.request_error import RequestError, RequestFailure
from select_service.outgoing.tls_layer import TlsLayer

UNREAD_BYTES_MAX = 1 << 20
"""Of a body, parsed ahead of whatever takes it; what was received with it comes on top."""
RECEIPT_BYTES = 1 << 14
"""Received at once, so that many connections with bytes in one turn do not add up."""
BULK_BYTES = 1 << 20
"""Body after which it is a large one, of which as much is received at once as there is room."""

TLS_PIECE_BYTES = 1 << 15
"""Decrypted at once.  At its costliest, records of one byte, it takes one or two milliseconds."""
UNSENT_BYTES_MAX = 1 << 16
"""That TLS itself has to say, when the server does not listen."""
_EMPTY = memoryview(b"")


class HttpConnection(asyncio.BufferedProtocol):
    """Belongs to one event loop.  Whoever opened it closes it."""

    def __init__(self, budget: ReadingBudget) -> None:
        self.sent_at = self.received_at = 0.0
        """Of the last request, and of the last bytes since then; monotonic, in seconds."""
        self.is_open = False
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._tls: TlsLayer | None = None
        self._answer: AnswerParser | None = None
        self._backlog = _EMPTY
        self._at = 0
        """Place in the backlog up to which it is parsed."""
        self._has_ended = False
        """Whether the connection has ended, from whichever side."""
        self._is_broken = False
        """Whether it ended by an error."""
        self._fault: RequestError | None = None
        self._change: asyncio.Future[None] | None = None
        """Done when the answer has gone on."""

    def send(self, message: bytes) -> None:
        """Send a request.  The answer to the one before is complete."""
        assert self._tls is not None or not self._backlog  # of TLS there may be tickets
        self._answer, self._fault = AnswerParser(), None
        self.received_at = 0.0
        self.sent_at = monotonic()
        if self._transport is None or self._has_ended or self._transport.is_closing():
            self._end("closed", "the connection was closed before an answer came")
            return
        self._transport.write(message if self._tls is None else self._tls.seal(message))

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Shake hands, with nothing under way.  Raises RequestError."""
        self._fault, self._answer = None, None
        tls = self._tls = TlsLayer(context, server_name)
        if self._transport is None:
            self._end("closed", "the connection was closed")
        else:
            self._transport.write(tls.begin())
        while not tls.is_established:
            await self._changed()

    async def head(self) -> AnswerParser:
        """Return the answer once its status and headers are there.  Raises RequestError."""
        answer = self._answer
        assert answer is not None
        while not answer.status:
            await self._changed()
        return answer

    async def read_some(self) -> bytes:
        """Return what has come of the body; nothing at its end.  Raises RequestError."""
        answer = self._answer
        assert answer is not None
        while not answer.parts and not answer.is_complete:
            await self._changed()
        part = answer.take()
        self._resume()
        return part

    @property
    def is_reusable(self) -> bool:
        """Can another request be sent?"""
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
        """Break off what is under way.  Nothing of this connection knows it afterwards."""
        transport, self._transport, self.is_open = self._transport, None, False
        if self._answer is not None:
            self._answer.close()
            if not self._answer.is_complete and self._fault is None:
                self._end("closed", "the request was broken off")
        self._backlog, self._has_ended = _EMPTY, True
        if transport is None:
            return
        if self._answer is not None and self._answer.is_complete:
            if self._tls is not None:
                transport.write(self._tls.farewell())
            transport.close()
        else:
            transport.abort()

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop does not inherit
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        is_bulk = self._answer is not None and self._answer.body_bytes > BULK_BYTES
        return self._budget.buffer if is_bulk else self._budget.buffer[:RECEIPT_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        if self._fault is not None or (self._tls is None and not self._is_awaited):
            self.close()  # nothing was requested
            return
        self.received_at = monotonic()
        self._backlog, self._at = memoryview(bytes(self._budget.buffer[:nbytes])), 0
        self._transport.pause_reading()
        self._budget.add(self._step)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self._transport = False, None
        self._has_ended, self._is_broken = True, exc is not None
        if not self._backlog:
            self._finish()

    # Reading

    def _step(self) -> bool:
        """Parse a piece.  See `reading_budget.Step`."""
        if not self._backlog:
            return False  # closed meanwhile
        size = PIECE_BYTES if self._tls is None else TLS_PIECE_BYTES
        piece = self._backlog[self._at : self._at + size]
        self._at += len(piece)
        try:
            plain = piece if self._tls is None else self._decrypted(self._tls, piece)
            if plain:
                self._feed(plain)
        except UnreadableAnswer as error:
            self._backlog = _EMPTY
            self._end("unreadable", str(error))
            return False
        except ssl.SSLError as error:
            self._backlog = _EMPTY
            self._end("unreachable", _in_words(error))
            return False
        if self._at < len(self._backlog):
            self._note_change()
            return True
        self._backlog = _EMPTY
        if self._has_ended or (self._tls is not None and self._tls.has_ended):
            self._has_ended = True
            self._finish()
        self._note_change()
        self._resume()
        return False

    def _decrypted(self, tls: TlsLayer, piece: memoryview) -> memoryview:
        """Raises SSLError."""
        carried, to_send = tls.receive(piece)
        if to_send and self._transport is not None:
            if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                raise ssl.SSLError(0, "the server reads no answers to what it asks in TLS")
            self._transport.write(to_send)
        return memoryview(carried)

    def _feed(self, plain: memoryview) -> None:
        """Raises UnreadableAnswer."""
        if self._answer is None or not self._is_awaited:
            raise UnreadableAnswer("the server sends what was not requested")
        self._answer.feed(plain)
        if self._answer.is_complete and self._at < len(self._backlog) and self._tls is None:
            self._answer.keeps_connection = False
            self._at = len(self._backlog)

    @property
    def _is_awaited(self) -> bool:
        return self._answer is not None and not self._answer.is_complete

    def _resume(self) -> None:
        answer, transport = self._answer, self._transport
        if transport is None or self._backlog or transport.is_closing():
            return
        unread_bytes = 0 if answer is None else answer.unread_bytes
        if unread_bytes <= UNREAD_BYTES_MAX and self._fault is None:
            transport.resume_reading()

    def _finish(self) -> None:
        """Nothing comes any more."""
        answer = self._answer
        if answer is None:
            self._end("closed", "the connection was closed")
        elif answer.is_complete or (not self._is_broken and answer.end()):
            self._note_change()
        elif answer.status:
            self._end("unreadable", "the answer breaks off: the connection was closed")
        else:
            self._end("closed", "the connection was closed before an answer came")

    def _end(self, failure: RequestFailure, text: str) -> None:
        if self._fault is None:
            self._fault = RequestError(failure, text)
        self._note_change()

    async def _changed(self) -> None:
        """Wait until the answer has gone on.  Raises RequestError."""
        if self._fault is not None:
            raise RequestError(self._fault.failure, str(self._fault))
        self._change = asyncio.get_running_loop().create_future()
        try:
            await self._change
        finally:
            self._change = None

    def _note_change(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


def _in_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not believed: {error.verify_message}"
    return f"TLS fails: {getattr(error, 'reason', None) or error.strerror or error}"
