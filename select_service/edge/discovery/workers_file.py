"""A file of workers that is read again when it changes.

One that is wrong changes nothing: what it said before goes on counting, and the log, GET /discovery
and a metric say so until it is good again.
"""

import asyncio
from pathlib import Path

from select_service.edge.discovery.source import Readings
from select_service.settings.discovery import read_workers
from select_service.whole_file import Marks, marks_of

LOOK_S = 0.5
"""Between two looks at the file."""


class WorkersFile:
    """Belongs to one event loop.  Looking and reading happen on a thread."""

    def __init__(self, path: Path, readings: Readings) -> None:
        self._readings = readings
        self._path = path

    async def run(self) -> None:
        last: Marks | None = None
        is_first = True
        while True:
            marks = await asyncio.to_thread(marks_of, self._path)
            if is_first or marks != last:
                last, is_first = marks, False
                await self._read()
            await asyncio.sleep(LOOK_S)

    async def _read(self) -> None:
        try:
            desired = await asyncio.to_thread(read_workers, self._path)
        except ValueError as error:
            self._readings.failed(str(error))
        else:
            self._readings.was_read()
            self._readings.says(desired)
