"""Reloading of files that change, with a dedicated thread per set of files.

A hanging file system blocks a thread for an unlimited time.  With a thread per set of files, the
hang blocks nothing else and is logged.  Shutdown waits for none of these threads.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeVar

from select_service.base.file_thread import FileThread
from select_service.files.atomic_file import FileMarks, file_marks

CHECK_INTERVAL_S = 1.0
"""Default interval between two checks of the files followed by `FileWatch`, in seconds."""

T = TypeVar("T")

log = logging.getLogger("select_service.files")


class FollowedFiles:
    """Change notifications for a set of files.  Belongs to one event loop, until `close`."""

    def __init__(self, name: str, paths: Sequence[Path], look_s: float) -> None:
        """name: name of the setting or source that refers to the files
        look_s: interval between two checks, seconds
        """
        self.name = name
        self.paths, self._look_s = paths, look_s
        self._thread = FileThread(name, paths)
        self._read_requested = asyncio.Event()
        self._last_check_at = monotonic()

    def age_s(self) -> float:
        """Return the seconds since the last completed check (including the read after a change)."""
        return monotonic() - self._last_check_at

    def trigger_read(self) -> None:
        """Trigger a read, whether or not the files have changed."""
        self._read_requested.set()

    async def read_on_thread(self, act: Callable[[], T]) -> T:
        """Run `act` on the thread of the files; return or raise its result."""
        return await self._thread.run_on_thread(act)

    async def watch_changes(self) -> AsyncIterator[None]:
        """Yield once at the start, since the files may have changed since start-up, then after each
        change.

        Work done by the loop body counts as part of the read.
        """
        last: list[FileMarks | None] = []
        is_first = True
        while True:
            # Marks are taken before the read: a change during the read is found by the next check.
            marks = await self._thread.run_on_thread(self._current_marks)
            if is_first or marks != last or self._read_requested.is_set():
                last, is_first = marks, False
                # Cleared before the read: a SIGHUP that arrives during the read triggers another
                # read.
                self._read_requested.clear()
                yield
            self._last_check_at = monotonic()
            try:
                async with asyncio.timeout(self._look_s):
                    await self._read_requested.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        """Stop reading, without waiting for the thread."""
        self._thread.close_thread()

    def _current_marks(self) -> list[FileMarks | None]:
        return [file_marks(path) for path in self.paths]


class FileWatch(ABC):
    """Base class of watchers that reload files after a change or on request.

    Belongs to one event loop.
    """

    def __init__(self, name: str, paths: Sequence[Path], look_s: float = CHECK_INTERVAL_S) -> None:
        """name: name of the setting or source that refers to the files
        look_s: interval between two checks, seconds
        """
        self.files = FollowedFiles(name, paths, look_s)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start the task, which ends only by `stop`."""
        self._task = asyncio.create_task(self.run())
        return self._task

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Follow the files until cancelled."""
        try:
            async for _ in self.files.watch_changes():
                await self._reload_files()
        finally:
            self.files.close()

    @abstractmethod
    async def _reload_files(self) -> None:
        """Load the files and apply the content; keep the previous content if a file is invalid."""
