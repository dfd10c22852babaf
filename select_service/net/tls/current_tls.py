"""Current TLS state loaded from files that may change while the process runs."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from select_service.net.tls.server_handshakes import HandshakeContext
from select_service.net.tls.ssl_contexts import LoadedTls, client_context, server_context
from select_service.net.tls.tls_paths import ClientTlsPaths, ServerTlsPaths


class TlsReport(NamedTuple):
    """Figures for the metrics.

    ends_at: expiry of the own certificate, seconds since 1970; None without one
    readings, failures: number of reloads and of failed reloads since the start
    is_stale: whether the current files are invalid and older content is in use
    """

    ends_at: float | None
    readings: int
    failures: int
    is_stale: bool


class CurrentTls:
    """Last valid content of TLS files.

    `read` blocks and runs on any thread; the rest belongs to the thread of the event loop.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], LoadedTls]) -> None:
        """Load the files.  Raises ValueError."""
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

    def apply_loaded(self, loaded: LoadedTls) -> bool:
        """Use newly loaded content; return False if it is unchanged."""
        self.fault = None
        # Touched but unchanged files (Kubernetes re-links secrets) are no reload.
        if loaded.content == self._loaded.content:
            return False
        self._loaded = loaded
        self._readings += 1
        return True

    def record_invalid(self, fault: str) -> None:
        """Record that the files are invalid; the previous content stays in use."""
        self._failures += 1
        self.fault = fault

    def tls_report(self) -> TlsReport:
        """Return the figures for the metrics."""
        return TlsReport(self.ends_at, self._readings, self._failures, self.fault is not None)


class ServerTls(CurrentTls):
    """TLS of the server.

    handshakes: SSL context for the event loop
    """

    def __init__(self, files: ServerTlsPaths) -> None:
        """Load the files.  Raises ValueError."""
        super().__init__(files.all_paths(), lambda: server_context(files))
        self.handshakes = HandshakeContext(self.context)

    def apply_loaded(self, loaded: LoadedTls) -> bool:
        """Use newly loaded content for new connections; see `CurrentTls.apply_loaded`."""
        is_new = super().apply_loaded(loaded)
        if is_new:
            self.handshakes.set_context(loaded.context)
        return is_new


class ClientTls(CurrentTls):
    """TLS of all outgoing https requests."""

    def __init__(self, files: ClientTlsPaths) -> None:
        """Load the files.  Raises ValueError."""
        super().__init__(files.all_paths(), lambda: client_context(files))
