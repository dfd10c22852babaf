"""Decision log files, written by a dedicated thread and bounded in number and size.

The newest lines are in FILE, older lines in FILE.1, FILE.2 and so on.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, Full, Queue

import msgspec

from select_service.core.analysis.decision_log_lines import LoggedFleet, LogHead, LogLine
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.rotating_file import FILE_BYTES_MAX, FILES_MAX, RotatingFile
from select_service.metrics.decision_log import DecisionLogCounts

QUEUE_MAX = 1024
"""Capacity of the queue to the thread, in lines of at most 33 KB; newer lines are dropped."""
FLEETS_MAX = 256
"""Number of (model, tenant) pairs with a fleet line repeated at the start of every file.
"""
CLOSE_S = 5.0
"""Time limit for the last lines at shutdown, in seconds."""

log = logging.getLogger("select_service.decision_log")


class DecisionLogFiles:
    """Writer of decision log files.

    `offer_line` belongs to one thread; only the writer thread touches the files after `start`.
    """

    def __init__(
        self,
        path: Path,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE_MODE,
    ) -> None:
        """Open the log.

        mode: permission bits of the files
        Raises OSError when the file cannot be written.
        """
        self.counts = DecisionLogCounts()
        self._path = path
        self._files = RotatingFile(
            path, self._head_lines, bytes_max=bytes_max, files_max=files_max, mode=mode
        )
        self._lines: Queue[LogLine | None] = Queue(QUEUE_MAX)
        self._fleets: dict[tuple[str, str], LoggedFleet] = {}
        self._encoder = msgspec.json.Encoder()
        self._failing = False
        self._thread = threading.Thread(target=self._run_writer, name="decision-log", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def offer_line(self, line: LogLine) -> bool:
        """Queue a line for the writer.

        Return False when the queue is full and the line was dropped.
        """
        try:
            self._lines.put_nowait(line)
        except Full:
            self.counts.dropped += 1
            return False
        return True

    def close_log(self, rest: Iterable[LogLine]) -> None:
        """Write the queued lines and then `rest`, unless the writer is too slow (CLOSE_S)."""
        try:
            # None marks the end: lines queued before the mark are still written.
            self._lines.put(None, timeout=CLOSE_S)
        except Full:
            return
        self._thread.join(CLOSE_S)
        # A writer that is still alive hangs in the file system and may be inside `_files`.
        if not self._thread.is_alive():
            self._write_lines(rest)
            self._files.close()

    # Methods below run on the writer thread.

    def _run_writer(self) -> None:
        self._write_lines([LogHead()])
        while True:
            lines = self._take_queued()
            ends = None in lines
            self._write_lines([line for line in lines if line is not None])
            if ends:
                break

    def _take_queued(self) -> list[LogLine | None]:
        """Return all queued lines, waiting for the first."""
        # Blocks for the first line only: everything queued behind it shares one flush.
        lines = [self._lines.get()]
        try:
            while len(lines) < QUEUE_MAX:
                lines.append(self._lines.get_nowait())
        except Empty:
            pass
        return lines

    def _write_lines(self, lines: Iterable[LogLine]) -> None:
        try:
            for line in lines:
                self._write_line(line)
            self._files.flush()
        except OSError as error:
            self.counts.failures += 1
            if not self._failing:
                fields = {"path": str(self._path), "error": str(error)}
                log.warning("decision log write failed", extra={"fields": fields})
            self._failing = True
        else:
            self._failing = False

    def _write_line(self, line: LogLine) -> None:
        """Write one line; remember fleet lines for the head of the next file.  Raises OSError."""
        if isinstance(line, LoggedFleet):
            if len(self._fleets) >= FLEETS_MAX:
                # Dropped as a whole: the next change of a fleet writes its line again.
                self._fleets.clear()
            self._fleets[line.model_name, line.tenant_id] = line
        self._files.add_line(self._encoder.encode(line))
        self.counts.lines += 1

    def _head_lines(self) -> Iterator[bytes]:
        """Yield the lines that start every file: the format header and the latest fleets."""
        for line in (LogHead(), *self._fleets.values()):
            yield self._encoder.encode(line)
