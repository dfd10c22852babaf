"""EDGE: files of TLS by which the planner asks others, read again when they change."""

from pathlib import Path
from typing import Self

from select_service.edge.tls_watch import TlsWatch
from select_service.tls.files import ClientFiles, Pair
from select_service.tls.kept import ClientTls


class FollowedTls:
    """Of one process: the same files are read and followed once. Belongs to one event loop."""

    def __init__(self) -> None:
        self._watches: dict[ClientFiles, tuple[ClientTls, TlsWatch]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for _, watch in self._watches.values():
            await watch.stop()

    def watches(self) -> list[TlsWatch]:
        """Return all that follow files now."""
        return [watch for _, watch in self._watches.values()]

    def tls_of(self, files: ClientFiles) -> ClientTls | None:
        """None: there are none, and whom the system trusts is believed.

        Raises ValueError with one line for files that are wrong now. Blocks
        """
        if not files.paths():
            return None
        if files not in self._watches:
            tls = ClientTls(files)
            watch = TlsWatch(tls)
            watch.start()
            self._watches[files] = tls, watch
        return self._watches[files][0]


def client_files(
    ca: str | None, certificate: str | None = None, key: str | None = None
) -> ClientFiles:
    """certificate, key: both, or none"""
    pair = None
    if certificate is not None and key is not None:
        pair = Pair(Path(certificate), Path(key))
    return ClientFiles(None if ca is None else Path(ca), pair)
