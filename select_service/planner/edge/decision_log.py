"""EDGE: the file of decisions. What cannot be written costs lines, never a tick."""

import logging
from collections.abc import Iterator
from pathlib import Path

from select_service.numbered_files import FILE_BYTES_MAX, FILES_MAX, NumberedFiles
from select_service.planner.decision_lines import Line, SettingsLine, encoded
from select_service.whole_file import PRIVATE

log = logging.getLogger(__name__)


class DecisionLog:
    """Every file begins with the settings, so that each can be read alone."""

    def __init__(
        self,
        path: Path,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE,
    ) -> None:
        """mode: of the files.  Raises OSError when the file cannot be written to."""
        self.lost = 0
        self._path = path
        self._settings: dict[str, SettingsLine] = {}
        self._files = NumberedFiles(
            path, self._head, bytes_max=bytes_max, files_max=files_max, mode=mode
        )

    def close(self) -> None:
        self._files.close()

    def write(self, line: Line) -> None:
        if isinstance(line, SettingsLine):
            self._settings[line.deployment] = line
        try:
            self._files.write(encoded(line))
            self._files.flush()
        except OSError as error:
            if not self.lost:
                fields = {"path": str(self._path), "error": str(error)}
                log.warning("decisions cannot be logged", extra={"fields": fields})
            self.lost += 1

    def _head(self) -> Iterator[bytes]:
        return map(encoded, self._settings.values())
