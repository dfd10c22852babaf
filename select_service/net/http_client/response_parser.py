"""Incremental parser of one HTTP/1.1 response, with bounds on everything outside of the body.

Framing bytes (heads, interim responses, chunk sizes, trailers) cost more time than body bytes, and
a client never sees most of them.  The parser counts framing bytes and fails above a limit.
"""

import httptools

INTERIM_MAX = 16
"""Maximum number of interim responses (1xx)."""
HEADERS_MAX = 256
"""Maximum number of headers, including those of interim responses and trailers."""
FRAMING_BYTES_MAX = 1 << 16
"""Allowed number of framing bytes, in addition to the share of the body size."""
FRAMING_SHARE = 4
"""Body bytes per further framing byte: real chunks have 20 bytes or more."""
PIECE_BYTES = 1 << 15
"""Size of a piece parsed at once.  In the worst case, one-byte chunks, it takes about 1 ms."""


class UnreadableResponse(Exception):
    """Error for a response that is not HTTP or exceeds a limit."""


class ResponseParser:
    """Response parser.  Call `close` at the end: the parser and its callbacks form a reference
    cycle.
    """

    def __init__(self) -> None:
        self.status = 0
        """HTTP status; zero until the head is complete."""
        self.headers: dict[str, str] = {}
        """Headers by lower-case name; values of repeated headers are joined with commas."""
        self.is_complete = False
        self.keeps_connection = False
        """Whether the connection can be reused after this complete response."""
        self.parts: list[bytes] = []
        """Body parts in order, until taken."""
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
        """Whether any byte was received."""
        return self._fed_bytes > 0

    def feed_piece(self, piece: memoryview) -> None:
        """Parse a piece of about `PIECE_BYTES`.  Raises UnreadableResponse."""
        if self._parser is None:
            return
        self._fed_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.is_complete:
                raise UnreadableResponse(self._fault or "response is not HTTP") from None
            self.keeps_connection = False  # surplus bytes after a complete response
        framing_bytes = self._fed_bytes - self.body_bytes
        if framing_bytes > FRAMING_BYTES_MAX + self.body_bytes // FRAMING_SHARE:
            raise UnreadableResponse(
                f"response has {framing_bytes} framing bytes for {self.body_bytes} body bytes: "
                f"the limit is {FRAMING_BYTES_MAX} and a {FRAMING_SHARE}th of the body"
            )

    def end_of_connection(self) -> bool:
        """Return whether the response is complete after the end of its connection."""
        # Without content-length and chunks, the end of the connection ends the body (HTTP/1.0
        # style).
        self.is_complete |= bool(self.status) and not self._is_framed
        return self.is_complete

    def take_body(self) -> bytes:
        """Return the body received since the last call."""
        parts, self.parts, self.unread_bytes = self.parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._fail("server sent an unrequested response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_left -= 1
        if self._headers_left < 0:
            self._fail(f"response has more than {HEADERS_MAX} headers")
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
            self._fail(f"more than {INTERIM_MAX} interim responses (1xx) before the response")
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

    def _fail(self, fault: str) -> None:
        self._fault = fault
        raise UnreadableResponse(fault)
