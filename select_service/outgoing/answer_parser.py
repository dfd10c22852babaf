"""One answer of HTTP/1.1, parsed piece by piece, with bounds on all that is not its body.

Bytes around the body (heads, interim answers, chunks' sizes, trailers) cost more time than those
of the body, and a client sees nothing of most of them.  So they are counted, and an answer that has
too many of them ends with an error.
"""

import httptools

INTERIM_MAX = 16
"""Interim answers (1xx) before an answer."""
HEADERS_MAX = 256
"""Headers of an answer, with those of its interim answers and its trailers."""
FRAMING_BYTES_MAX = 1 << 16
"""Bytes around the body, besides those that the body's own size allows."""
FRAMING_SHARE = 4
"""A byte more around the body for so many bytes of the body: chunks have 20 bytes or more."""
PIECE_BYTES = 1 << 15
"""Parsed at once.  At its costliest, chunks of one byte, a piece takes about a millisecond."""


class UnreadableAnswer(Exception):
    """The answer is not HTTP, or beyond a bound."""


class AnswerParser:
    """Call `close` at the end: the parser and its callbacks know each other."""

    def __init__(self) -> None:
        self.status = 0
        """Zero until the head is complete."""
        self.headers: dict[str, str] = {}
        """Names in lower case; values of one name are joined with commas."""
        self.is_complete = False
        self.keeps_connection = False
        """Whether the connection can have another request after this complete answer."""
        self.parts: list[bytes] = []
        """Of the body, in order, until somebody takes them."""
        self.unread_bytes = 0
        """Size of `parts`."""
        self.body_bytes = 0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_framed = False
        self._fed_bytes = 0
        self._headers_left = HEADERS_MAX
        self._interim_left = INTERIM_MAX
        self._fault: str | None = None

    def close(self) -> None:
        self._parser = None

    @property
    def has_begun(self) -> bool:
        """Has a byte come?"""
        return self._fed_bytes > 0

    def feed(self, piece: memoryview) -> None:
        """piece: about as much as `PIECE_BYTES`.  Raises UnreadableAnswer."""
        if self._parser is None:
            return
        self._fed_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.is_complete:
                raise UnreadableAnswer(self._fault or "the answer is not HTTP") from None
            self.keeps_connection = False  # what follows is no answer to anything
        framing_bytes = self._fed_bytes - self.body_bytes
        if framing_bytes > FRAMING_BYTES_MAX + self.body_bytes // FRAMING_SHARE:
            raise UnreadableAnswer(
                f"the answer has {framing_bytes} bytes around {self.body_bytes} bytes of body: "
                f"at most {FRAMING_BYTES_MAX} and a {FRAMING_SHARE}th of the body are read"
            )

    def end(self) -> bool:
        """Return whether the answer is complete now that its connection has ended."""
        self.is_complete |= bool(self.status) and not self._is_framed
        return self.is_complete

    def take(self) -> bytes:
        """Return what has come of the body since the last call."""
        parts, self.parts, self.unread_bytes = self.parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._refuse("the server answers what was not requested")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_left -= 1
        if self._headers_left < 0:
            self._refuse(f"the answer has more than {HEADERS_MAX} headers")
        if self.status:
            return  # a trailer
        key = name.lower().decode("latin-1")
        self._is_framed |= key in ("content-length", "transfer-encoding")
        text = value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        self._interim_left -= 1
        if self._interim_left < 0:
            self._refuse(f"more than {INTERIM_MAX} interim answers (1xx) come before the answer")
        self.headers, self._is_framed = {}, False

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)
        self.unread_bytes += len(body)
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status:
            self.is_complete = True
            self.keeps_connection = self._parser.should_keep_alive()

    def _refuse(self, fault: str) -> None:
        self._fault = fault
        raise UnreadableAnswer(fault)
