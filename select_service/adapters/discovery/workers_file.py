"""Discovery source for a workers file, reloaded after a change and on SIGHUP.

An invalid file changes nothing: the previous workers are kept, and the log, GET /discovery and a
metric report the error until the file is valid again.
"""

from pathlib import Path

from select_service.adapters.discovery.source_status import SourceStatus
from select_service.adapters.reload.file_watch import FileWatch
from select_service.config.discovery_sources import read_workers

CHECK_INTERVAL_S = 0.5
"""Interval of checks of the file, in seconds."""


class WorkersFileSource(FileWatch):
    """Source for a workers file.  Belongs to one event loop."""

    def __init__(self, path: Path, readings: SourceStatus) -> None:
        super().__init__(readings.name, [path], CHECK_INTERVAL_S)
        self._readings = readings
        self._path = path

    async def _reload_files(self) -> None:
        try:
            desired = await self.files.read_on_thread(lambda: read_workers(self._path))
        except ValueError as error:
            self._readings.record_failure(str(error))
        else:
            self._readings.record_success()
            self._readings.publish_workers(desired)
