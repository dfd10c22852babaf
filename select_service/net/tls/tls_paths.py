"""Paths of TLS files, all in PEM format."""

from pathlib import Path
from typing import NamedTuple


class CertificatePair(NamedTuple):
    """Certificate and key of this process.

    certificate: certificate followed by its intermediate certificates
    key: private key
    """

    certificate: Path
    key: Path


class ServerTlsPaths(NamedTuple):
    """Files of a server.

    client_ca: CA that must have issued the certificates of clients; None means no client
    certificate
    """

    pair: CertificatePair
    client_ca: Path | None = None

    def all_paths(self) -> list[Path]:
        """Return all paths."""
        return [*self.pair, *([] if self.client_ca is None else [self.client_ca])]


class ClientTlsPaths(NamedTuple):
    """Files of a client.

    ca: CA trusted in addition to those of the system
    pair: client certificate, for servers that request one
    """

    ca: Path | None = None
    pair: CertificatePair | None = None

    def all_paths(self) -> list[Path]:
        """Return all paths."""
        return [*([] if self.ca is None else [self.ca]), *(self.pair or ())]
