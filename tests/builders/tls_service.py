"""A service with TLS on a thread of this process, and clients of that service."""

import ssl
from typing import Any

from select_service.net.tls.server_handshakes import HandshakeContext
from tests.builders.certificates import Issued, authority, trusting_context
from tests.builders.in_thread import InThread
from tests.builders.running import Client


class TlsClient(Client):
    """Connection with TLS; after the handshake the client works as without TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        """Connect; raises OSError if a side rejects the other."""
        super().__init__(port)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.socket.close()
            raise

    @property
    def server_certificate(self) -> bytes:
        """Certificate of the server, in DER."""
        found = self.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        assert isinstance(found, bytes)
        return found


class TlsService(InThread):
    """Service with TLS.

    trust: context of clients without a context
    """

    def __init__(self, *flags: str, issued: Issued | None = None, **more: Any) -> None:
        shown = issued or authority().issue()
        self.trust = trusting_context(authority().file)
        files = ("--tls-cert", str(shown.certificate), "--tls-key", str(shown.key))
        super().__init__(*files, *flags, **more)

    @property
    def handshakes(self) -> HandshakeContext:
        found: HandshakeContext = self._servers[0]._handshakes
        return found

    def client(self, trust: ssl.SSLContext | None = None) -> TlsClient:
        return TlsClient(self.port, trust or self.trust)


def replace_pair(issued: Issued, to: Issued) -> None:
    """Replace a pair of files as an operator does: the key first."""
    to.key.write_bytes(issued.key.read_bytes())
    to.certificate.write_bytes(issued.certificate.read_bytes())
