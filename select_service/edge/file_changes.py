"""EDGE: when files are to be read again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from select_service.whole_file import Marks, marks_of


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
