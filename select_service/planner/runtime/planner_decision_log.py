"""File of decisions. A write error loses lines, never a tick."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Raw

from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.rotating_file import FILE_BYTES_MAX, FILES_MAX, RotatingFile
from select_service.planner.connectors.connector import ConnectorDecision
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import TickInput
from select_service.planner.planner_log_lines import LogLine, SettingsLine, TickLine, encode_line

log = logging.getLogger("select_service.planner")


class PlannerDecisionLog:
    """Log of ticks in files that each begin with the settings, so that each can be read alone."""

    def __init__(
        self,
        path: Path,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE_MODE,
    ) -> None:
        """Open the log. mode: mode of the files

        Raises OSError if the file cannot be written.
        """
        self.lost_lines = 0
        self._path = path
        self._settings: dict[str, SettingsLine] = {}
        self._files = RotatingFile(
            path, self._head_lines, bytes_max=bytes_max, files_max=files_max, mode=mode
        )

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def ticked(
        self, name: str, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None:
        """Write a tick."""
        self.write_line(
            TickLine(
                deployment=name,
                tick=tick,
                scale_to=effects.scale_to,
                diagnostics=Raw(msgspec.json.encode(effects.diagnostics)),
                applied=Raw(msgspec.json.encode(applied)),
            )
        )

    def changed(self, name: str, settings: DeploymentSettings, now_s: float) -> None:
        """Write settings; the first call sets the start of the schedule."""
        # Settings change while the planner runs, but its state began only once.
        first = self._settings.get(name)
        started_s = now_s if first is None else first.started_s
        self.write_line(
            SettingsLine(deployment=name, at_s=now_s, settings=settings, started_s=started_s)
        )

    def write_line(self, line: LogLine) -> None:
        """Append a line, or count a lost line."""
        if isinstance(line, SettingsLine):
            self._settings[line.deployment] = line
        try:
            self._files.add_line(encode_line(line))
            # After each line, so that a crash loses at most the line that is being written.
            self._files.flush()
        except OSError as error:
            # Logged once: a full disk would otherwise fill the log with every tick.
            if not self.lost_lines:
                fields = {"path": str(self._path), "error": str(error)}
                log.warning("decision log not written, lines lost", extra={"fields": fields})
            self.lost_lines += 1

    def _head_lines(self) -> Iterator[bytes]:
        """Return the first lines of a file."""
        return map(encode_line, self._settings.values())
