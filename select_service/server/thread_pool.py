"""Thread pool for blocking calls, started early: later the machine may have no threads left."""

from concurrent.futures import ThreadPoolExecutor

from select_service.base.daemon_threads import DaemonThreads
from select_service.config.settings_loader import UnusableSetting

THREADS = 8
"""Number of threads, for dumps, snapshots, recovery, catalog changes, metrics and files."""


def start_threads(count: int = THREADS) -> ThreadPoolExecutor:
    """Return an executor with all threads started.  Raises Unusable."""
    try:
        return DaemonThreads(count, "blocking")
    except RuntimeError as error:
        raise UnusableSetting(f"cannot start {count} threads: {error}") from None
