"""The real command behind TLS, the counterpart of `Running`, with or without keys."""

from typing import Any

from tests.builders.certificates import Issued, authority, trusting_context
from tests.builders.running import Answer, Running
from tests.builders.tls_service import TlsClient
from tests.process.access import Secured


class TlsRunning(Running):
    """Service behind TLS.

    trust: TLS context of clients
    """

    def __init__(self, shown: Issued, *flags: str, **environment: str) -> None:
        self.trust = trusting_context(authority().file)
        files = ("--tls-cert", str(shown.certificate), "--tls-key", str(shown.key))
        super().__init__(*files, *flags, trust=self.trust, **environment)

    def client(self) -> TlsClient:
        return TlsClient(self.port, self.trust)


class SecuredRunning(Running):
    """Service behind TLS, called with a key for every route except those of replicas."""

    def __init__(self, how: Secured, *flags: str, **environment: str) -> None:
        self._how = how
        super().__init__(*how.flags, *flags, trust=how.trust, **environment)

    def client(self) -> TlsClient:
        assert self._how.trust is not None
        return TlsClient(self.port, self._how.trust)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return super().call(method, path, body, **self._how.headers, **headers)
