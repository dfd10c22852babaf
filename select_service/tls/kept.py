"""What counts of files that may change while the process runs."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from select_service.tls.contexts import Loaded, asking, serving
from select_service.tls.files import ClientFiles, ServerFiles
from select_service.tls.handshakes import Handshakes


class TlsReport(NamedTuple):
    """ends_at: of the certificate, in seconds since 1970; None: there is none of our own
    readings, failures: since the start;  is_stale: are the files wrong now, so that older ones
    count?
    """

    ends_at: float | None
    readings: int
    failures: int
    is_stale: bool


class Kept:
    """What was loaded last from files that were good.

    read: blocks, on whatever thread;  the rest belongs to the thread of the event loop
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Loaded]) -> None:
        """Raises ValueError."""
        self.paths, self.read = paths, read
        self._loaded = read()
        self.fault: str | None = None
        self._readings = self._failures = 0

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.context

    @property
    def ends_at(self) -> float | None:
        return self._loaded.ends_at

    def take(self, loaded: Loaded) -> bool:
        """It counts from now on.  False: nothing has changed."""
        self.fault = None
        if loaded.content == self._loaded.content:
            return False
        self._loaded = loaded
        self._readings += 1
        return True

    def keep(self, fault: str) -> None:
        """The files are wrong: what there is goes on counting."""
        self._failures += 1
        self.fault = fault

    def report(self) -> TlsReport:
        return TlsReport(self.ends_at, self._readings, self._failures, self.fault is not None)


class ServerTls(Kept):
    """Of a server.  handshakes: what its event loop takes for its context"""

    def __init__(self, files: ServerFiles) -> None:
        """Raises ValueError."""
        super().__init__(files.paths(), lambda: serving(files))
        self.handshakes = Handshakes(self.context)

    def take(self, loaded: Loaded) -> bool:
        """See `Kept.take`; connections that there are stay as they are."""
        is_new = super().take(loaded)
        if is_new:
            self.handshakes.use(loaded.context)
        return is_new


class ClientTls(Kept):
    """Of all that this process asks over https."""

    def __init__(self, files: ClientFiles) -> None:
        """Raises ValueError."""
        super().__init__(files.paths(), lambda: asking(files))
