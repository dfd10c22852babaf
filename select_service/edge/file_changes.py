"""EDGE: files that are read again when they change, each set of them on a thread of its own.

A file system that hangs holds up a thread for ever.  So it holds up nothing else, and whoever waits
for files hears of it; the end of the process waits for none of these threads.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeVar

from select_service.daemon_threads import DaemonThreads
from select_service.whole_file import Marks, marks_of

LOOK_S = 1.0
"""Between two looks at the files that `FileWatch` follows."""
ANSWER_S = 10.0
"""How long files may take before that is told."""

T = TypeVar("T")

log = logging.getLogger("select_service.files")


class FileThread:
    """Looks at files and reads them.  Belongs to one event loop, until `close`."""

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        """name: of the setting or source that names the files"""
        self.name = name
        self._paths = paths
        self._thread: DaemonThreads | None = None

    async def run(self, act: Callable[[], T]) -> T:
        """What `act` returns or raises.  One call at a time; a caller may give up to wait."""
        if self._thread is None:
            self._thread = DaemonThreads(1, f"files-{self.name}")
        waiting = asyncio.wrap_future(self._thread.submit(act))
        done, _ = await asyncio.wait([waiting], timeout=ANSWER_S)
        if not done:
            fields = {"files": self.name, "paths": [str(path) for path in self._paths]}
            log.error("followed files do not answer", extra={"fields": fields})
            await asyncio.wait([waiting])
            log.info("followed files answer again", extra={"fields": fields})
        return waiting.result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


class FollowedFiles:
    """When files are to be read again.  Belongs to one event loop, until `close`."""

    def __init__(self, name: str, paths: Sequence[Path], look_s: float) -> None:
        """name: of the setting or source that names them;  look_s: between two looks"""
        self.name = name
        self.paths, self._look_s = paths, look_s
        self._thread = FileThread(name, paths)
        self._asked = asyncio.Event()
        self._looked_at = monotonic()

    def age_s(self) -> float:
        """Seconds since the files were last looked at, and read if they had changed."""
        return monotonic() - self._looked_at

    def look_now(self) -> None:
        """Read the files whether they have changed or not."""
        self._asked.set()

    async def read(self, act: Callable[[], T]) -> T:
        """What `act` returns or raises, on the thread of the files."""
        return await self._thread.run(act)

    async def changes(self) -> AsyncIterator[None]:
        """At once, since they may have changed since the start; then after each change, for ever.

        What is done inside counts as the reading.
        """
        last: list[Marks | None] = []
        is_first = True
        while True:
            marks = await self._thread.run(self._marks)
            if is_first or marks != last or self._asked.is_set():
                last, is_first = marks, False
                self._asked.clear()
                yield
            self._looked_at = monotonic()
            try:
                async with asyncio.timeout(self._look_s):
                    await self._asked.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        """Read nothing any more, and wait for nothing."""
        self._thread.close()

    def _marks(self) -> list[Marks | None]:
        return [marks_of(path) for path in self.paths]


class FileWatch(ABC):
    """Reads files again when they have changed, and when it is asked to.

    Belongs to one event loop.
    """

    def __init__(self, name: str, paths: Sequence[Path], look_s: float = LOOK_S) -> None:
        """name: of the setting or source that names them;  look_s: between two looks"""
        self.files = FollowedFiles(name, paths, look_s)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`."""
        self._task = asyncio.create_task(self.run())
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Follow the files until it is cancelled."""
        try:
            async for _ in self.files.changes():
                await self._read()
        finally:
            self.files.close()

    @abstractmethod
    async def _read(self) -> None:
        """Take what they say now; of files that are wrong nothing."""
