"""The real command behind TLS, as `Running` is without."""

from tests.process.running import Running
from tests.tls.certificates import Issued, authority, believing
from tests.tls.served import TlsClient


class TlsRunning(Running):
    """trust: of clients"""

    def __init__(self, shown: Issued, *flags: str, **environment: str) -> None:
        self.trust = believing(authority().file)
        files = ("--tls-cert", str(shown.certificate), "--tls-key", str(shown.key))
        super().__init__(*files, *flags, trust=self.trust, **environment)

    def client(self) -> TlsClient:
        return TlsClient(self.port, self.trust)
