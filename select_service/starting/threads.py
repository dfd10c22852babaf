"""The threads for what would block the event loop.  They begin with the process: once it serves,
the machine may have none left."""

import threading
from concurrent.futures import ThreadPoolExecutor

from select_service.settings.config import Unusable

THREADS = 8
"""For dumps, snapshots, the recovery, what follows a change of workers, metrics, files."""


def begun_threads(count: int = THREADS) -> ThreadPoolExecutor:
    """An executor that never begins a thread again.  Raises Unusable."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="blocking")
    all_begun = threading.Event()
    try:
        for _ in range(count):
            executor.submit(all_begun.wait)
    except RuntimeError as error:
        executor.shutdown(wait=False, cancel_futures=True)
        raise Unusable(f"cannot begin {count} threads: {error}") from None
    finally:
        all_begun.set()
    return executor
