"""Write of a file in the background, at most one at a time."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path

LAST_WRITE_S_MAX = 2.0
"""Time limit for the last write at shutdown, in seconds."""


class BackgroundWrite:
    """Running write of a file.  Belongs to one event loop."""

    def __init__(self, path: Path, log: logging.Logger, late_message: str) -> None:
        """late_message: text of the log line when the file system does not answer"""
        self._path, self._log, self._late_message = path, log, late_message
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, write: Coroutine[None, None, None]) -> None:
        """Start a write; no other may be running."""
        self._task = asyncio.create_task(write)

    async def has_ended(self) -> bool:
        """Wait for the running write; return False if the file system does not answer."""
        if self._task is None:
            return True
        _, late = await asyncio.wait([self._task], timeout=LAST_WRITE_S_MAX)
        if late:
            fields = {"path": str(self._path), "seconds": LAST_WRITE_S_MAX}
            self._log.error(self._late_message, extra={"fields": fields})
        return not late
