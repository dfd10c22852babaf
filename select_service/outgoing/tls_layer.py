"""TLS of one connection, over bytes that others receive and send: so it can be taken in steps.

The event loop's own TLS decrypts all that has come before anybody is asked, and records of one byte
cost twenty times as much as they carry.
"""

import contextlib
import ssl

OVERHEAD_BYTES_MAX = 1 << 17
"""Received bytes that carry nothing for the reader (handshake, tickets, records' own), besides as
many as do."""


class TlsLayer:
    """The side of the client."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self.is_established = False
        self.has_ended = False
        """Whether the server has said that it sends no more."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._received_bytes = self._carried_bytes = 0

    def begin(self) -> bytes:
        """Return the first bytes of the handshake.  Raises SSLError."""
        self._shake_hands()
        return self._outgoing.read()

    def receive(self, piece: memoryview) -> tuple[bytes, bytes]:
        """Return what the piece carries, and what is to be sent.  Raises SSLError."""
        self._incoming.write(piece)
        if not self.is_established:
            self._shake_hands()
        found: list[bytes] = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while self.is_established and not self.has_ended:
                data = self._read()
                found.append(data)
        carried = b"".join(found)
        self._received_bytes += len(piece)
        self._carried_bytes += len(carried)
        if self._received_bytes > OVERHEAD_BYTES_MAX + 2 * self._carried_bytes:
            raise ssl.SSLError(
                0,
                f"{self._received_bytes} bytes of TLS carry {self._carried_bytes}: "
                f"at most {OVERHEAD_BYTES_MAX} more than twice as many are read",
            )
        return carried, self._outgoing.read()

    def seal(self, data: bytes) -> bytes:
        """Return what is to be sent for the data.  Raises SSLError."""
        self._tls.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Return what says that nothing more is sent."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.is_established = True

    def _read(self) -> bytes:
        try:
            data = self._tls.read(1 << 16)
        except ssl.SSLZeroReturnError:
            data = b""
        self.has_ended = not data
        return data
