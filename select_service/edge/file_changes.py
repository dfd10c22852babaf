"""EDGE: when files are to be read again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from select_service.whole_file import Marks, marks_of

LOOK_S = 1.0
"""Between two looks at the files that `FileWatch` follows."""


class FileWatch(ABC):
    """Reads files again when they have changed, and when it is asked to.

    Belongs to one event loop.  Looking and reading happen on a thread.
    """

    def __init__(self, paths: Sequence[Path], look_s: float = LOOK_S) -> None:
        """look_s: the time between two looks at the files"""
        self.paths = paths
        self._look_s = look_s
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`."""
        self._task = asyncio.create_task(self.run())
        return self._task

    def look_now(self) -> None:
        """Read the files whether they have changed or not."""
        self._asked.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Follow the files until it is cancelled."""
        async for _ in file_changes(self.paths, self._look_s, self._asked):
            await self._read()

    @abstractmethod
    async def _read(self) -> None:
        """Take what they say now; of files that are wrong nothing."""


async def file_changes(
    paths: Sequence[Path], look_s: float, asked: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """At once, since they may have changed since the start; then after each change, for ever.

    look_s: between two looks at the files, each on a thread
    asked: set: read them whether they have changed or not
    """
    asked = asyncio.Event() if asked is None else asked
    last: list[Marks | None] = []
    is_first = True
    while True:
        marks = await asyncio.to_thread(_marks, paths)
        if is_first or marks != last or asked.is_set():
            last, is_first = marks, False
            asked.clear()
            yield
        try:
            async with asyncio.timeout(look_s):
                await asked.wait()
        except TimeoutError:
            continue


def _marks(paths: Sequence[Path]) -> list[Marks | None]:
    return [marks_of(path) for path in paths]
