"""TLS files of the planner's client, reloaded on change."""

from pathlib import Path
from typing import Self

from select_service.adapters.reload.tls_watch import TlsFilesWatch
from select_service.net.tls.current_tls import ClientTls
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths


class WatchedTls:
    """Watched TLS files of a process, each set read once. Belongs to one event loop."""

    def __init__(self) -> None:
        self._watches: dict[ClientTlsPaths, tuple[ClientTls, TlsFilesWatch]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for _, watch in self._watches.values():
            await watch.stop()

    def running_watches(self) -> list[TlsFilesWatch]:
        """Return the running watches."""
        return [watch for _, watch in self._watches.values()]

    def tls_for(self, files: ClientTlsPaths) -> ClientTls | None:
        """Return the TLS settings of these files; None without files, which means the system's CAs.

        Raises ValueError with one line for files that are invalid now. Blocks
        """
        if not files.all_paths():
            return None
        if files not in self._watches:
            tls = ClientTls(files)
            watch = TlsFilesWatch(tls)
            watch.start()
            self._watches[files] = tls, watch
        return self._watches[files][0]


def client_files(
    ca: str | None, certificate: str | None = None, key: str | None = None
) -> ClientTlsPaths:
    """Return the set of files. certificate, key: both, or none"""
    pair = None
    if certificate is not None and key is not None:
        pair = CertificatePair(Path(certificate), Path(key))
    return ClientTlsPaths(None if ca is None else Path(ca), pair)
