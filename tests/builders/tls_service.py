"""A service that speaks TLS, on a thread of this process, and clients of it."""

import ssl
from typing import Any

from select_service.net.tls.server_handshakes import HandshakeContext
from tests.builders.certificates import Issued, authority, believing
from tests.builders.in_thread import InThread
from tests.builders.running import Client


class TlsClient(Client):
    """One connection.  What comes behind the certificate is as without."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        """Raises OSError when one side does not accept the other."""
        super().__init__(port)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.socket.close()
            raise

    @property
    def shown(self) -> bytes:
        """The certificate of the server, in DER."""
        found = self.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        assert isinstance(found, bytes)
        return found


class TlsService(InThread):
    """trust: of clients that say nothing else"""

    def __init__(self, *flags: str, issued: Issued | None = None, **more: Any) -> None:
        shown = issued or authority().issue()
        self.trust = believing(authority().file)
        files = ("--tls-cert", str(shown.certificate), "--tls-key", str(shown.key))
        super().__init__(*files, *flags, **more)

    @property
    def handshakes(self) -> HandshakeContext:
        found: HandshakeContext = self._servers[0]._handshakes
        return found

    def client(self, trust: ssl.SSLContext | None = None) -> TlsClient:
        return TlsClient(self.port, trust or self.trust)


def copied(issued: Issued, to: Issued) -> None:
    """As an operator replaces a pair: the key first."""
    to.key.write_bytes(issued.key.read_bytes())
    to.certificate.write_bytes(issued.certificate.read_bytes())
