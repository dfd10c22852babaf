"""Thread for the operations on a set of files.

A hanging file system blocks a thread for an unlimited time.  With a thread per set of files, the
hang blocks nothing else and is logged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from select_service.base.daemon_threads import DaemonThreads

SLOW_FILE_S = 10.0
"""Seconds a file operation may take before a log line reports the delay."""

T = TypeVar("T")

log = logging.getLogger("select_service.files")


class FileThread:
    """Thread that checks and reads a set of files.  Belongs to one event loop, until `close`."""

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        """name: name of the setting or source that refers to the files"""
        self.name = name
        self._paths = paths
        self._thread: DaemonThreads | None = None

    async def run_on_thread(self, act: Callable[[], T]) -> T:
        """Run `act` on the thread; return or raise its result.

        Calls run one at a time.  A caller may stop waiting (cancellation).
        """
        if self._thread is None:
            self._thread = DaemonThreads(1, f"files-{self.name}")
        waiting = asyncio.wrap_future(self._thread.submit(act))
        # `wait` instead of `wait_for`: a hanging read cannot be cancelled, only reported.
        done, _ = await asyncio.wait([waiting], timeout=SLOW_FILE_S)
        if not done:
            fields = {"files": self.name, "paths": [str(path) for path in self._paths]}
            log.error("followed files not answering", extra={"fields": fields})
            await asyncio.wait([waiting])
            log.info("followed files answering again", extra={"fields": fields})
        return waiting.result()

    def close_thread(self) -> None:
        """Stop the thread after the running call, without waiting."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
