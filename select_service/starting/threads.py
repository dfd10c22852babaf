"""The threads for what would block the event loop.  They begin with the process: once it serves,
the machine may have none left."""

from concurrent.futures import ThreadPoolExecutor

from select_service.daemon_threads import DaemonThreads
from select_service.settings.config import Unusable

THREADS = 8
"""For dumps, snapshots, the recovery, what follows a change of workers, metrics, files."""


def begun_threads(count: int = THREADS) -> ThreadPoolExecutor:
    """An executor that never begins a thread again.  Raises Unusable."""
    try:
        return DaemonThreads(count, "blocking")
    except RuntimeError as error:
        raise Unusable(f"cannot begin {count} threads: {error}") from None
