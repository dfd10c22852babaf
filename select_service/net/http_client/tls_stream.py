"""TLS of a connection over an in-memory buffer, so that decryption can run in steps.

The TLS of the event loop decrypts all received data at once, and one-byte records cost twenty times
their content.
"""

import contextlib
import ssl

OVERHEAD_BYTES_MAX = 1 << 17
"""Allowed overhead in received bytes (handshake, tickets, records), beyond the payload size."""


class TlsStream:
    """Client side of a TLS connection."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self.is_established = False
        self.has_ended = False
        """Whether the server has closed its side (close_notify)."""
        # Memory buffers: the transport stays plain and its flow control stays ours.
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._received_bytes = self._carried_bytes = 0

    def begin_handshake(self) -> bytes:
        """Return the first bytes of the handshake.  Raises SSLError."""
        self._continue_handshake()
        return self._outgoing.read()

    def decrypt_piece(self, piece: memoryview) -> tuple[bytes, bytes]:
        """Decrypt a piece; return the payload and the bytes to send.  Raises SSLError."""
        self._incoming.write(piece)
        if not self.is_established:
            self._continue_handshake()
        found: list[bytes] = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while self.is_established and not self.has_ended:
                data = self._read_plain()
                found.append(data)
        carried = b"".join(found)
        self._received_bytes += len(piece)
        self._carried_bytes += len(carried)
        # Tiny records cost far more CPU than payload: a server that sends only those is cut off.
        if self._received_bytes > OVERHEAD_BYTES_MAX + 2 * self._carried_bytes:
            raise ssl.SSLError(
                0,
                f"{self._received_bytes} TLS bytes carry {self._carried_bytes} bytes: "
                f"the limit is {OVERHEAD_BYTES_MAX} and twice the content",
            )
        return carried, self._outgoing.read()

    def encrypt_data(self, data: bytes) -> bytes:
        """Return the encrypted bytes of the data.  Raises SSLError."""
        self._tls.write(data)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Return the bytes that close this side (close_notify)."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()

    def _continue_handshake(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.is_established = True

    def _read_plain(self) -> bytes:
        try:
            data = self._tls.read(1 << 16)
        except ssl.SSLZeroReturnError:
            data = b""
        self.has_ended = not data
        return data
