"""A file of workers that is read again when it changes.

One that is wrong changes nothing: what it said before goes on counting, and the log, GET /discovery
and a metric say so until it is good again.
"""

from pathlib import Path

from select_service.edge.discovery.source import Readings
from select_service.edge.file_changes import FollowedFiles
from select_service.settings.discovery import read_workers

LOOK_S = 0.5
"""Between two looks at the file."""


class WorkersFile:
    """Belongs to one event loop."""

    def __init__(self, path: Path, readings: Readings) -> None:
        self.files = FollowedFiles(readings.name, [path], LOOK_S)
        self._readings = readings
        self._path = path

    async def run(self) -> None:
        try:
            async for _ in self.files.changes():
                await self._read()
        finally:
            self.files.close()

    async def _read(self) -> None:
        try:
            desired = await self.files.read(lambda: read_workers(self._path))
        except ValueError as error:
            self._readings.failed(str(error))
        else:
            self._readings.was_read()
            self._readings.says(desired)
