"""EDGE: when a file is to be read again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from select_service.whole_file import Marks, marks_of


async def file_changes(
    path: Path, look_s: float, asked: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """At once, since it may have changed since the start; then after each change, for ever.

    look_s: between two looks at the file, each on a thread
    asked: set: read it whether it has changed or not
    """
    asked = asyncio.Event() if asked is None else asked
    last: Marks | None = None
    is_first = True
    while True:
        marks = await asyncio.to_thread(marks_of, path)
        if is_first or marks != last or asked.is_set():
            last, is_first = marks, False
            asked.clear()
            yield
        try:
            async with asyncio.timeout(look_s):
                await asked.wait()
        except TimeoutError:
            continue
