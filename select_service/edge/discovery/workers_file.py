"""A file of workers that is read again when it changes, and on SIGHUP.

One that is wrong changes nothing: what it said before goes on counting, and the log, GET /discovery
and a metric say so until it is good again.
"""

from pathlib import Path

from select_service.edge.discovery.source import Readings
from select_service.edge.file_changes import FileWatch
from select_service.settings.discovery import read_workers

LOOK_S = 0.5
"""Between two looks at the file."""


class WorkersFile(FileWatch):
    """Belongs to one event loop."""

    def __init__(self, path: Path, readings: Readings) -> None:
        super().__init__(readings.name, [path], LOOK_S)
        self._readings = readings
        self._path = path

    async def _read(self) -> None:
        try:
            desired = await self.files.read(lambda: read_workers(self._path))
        except ValueError as error:
            self._readings.failed(str(error))
        else:
            self._readings.was_read()
            self._readings.says(desired)
