"""The files of the decision log: written by a thread of their own, bounded in number and size.

The newest lines are in FILE, older ones in FILE.1, FILE.2 and so on.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, Full, Queue

import msgspec

from select_service.core.decision_lines import LoggedFleet, LogHead, LogLine
from select_service.metrics.decision_log import LogCounts
from select_service.numbered_files import FILE_BYTES_MAX, FILES_MAX, NumberedFiles
from select_service.whole_file import PRIVATE

QUEUE_MAX = 1024
"""Lines that wait for the thread, of 33 KB at most; of more the newest are dropped."""
FLEETS_MAX = 256
"""Models and tenants whose last fleet is written again at the begin of every file."""
CLOSE_S = 5.0
"""How long the end of the service waits for the last lines."""

log = logging.getLogger("select_service.decision_log")


class DecisionFiles:
    """`offer` belongs to one thread; only the writer touches the files after `start`."""

    def __init__(
        self,
        path: Path,
        bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
        mode: int = PRIVATE,
    ) -> None:
        """mode: of the files.  Raises OSError when the file cannot be written to."""
        self.counts = LogCounts()
        self._path = path
        self._files = NumberedFiles(
            path, self._head, bytes_max=bytes_max, files_max=files_max, mode=mode
        )
        self._lines: Queue[LogLine | None] = Queue(QUEUE_MAX)
        self._fleets: dict[tuple[str, str], LoggedFleet] = {}
        self._encoder = msgspec.json.Encoder()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="decision-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, line: LogLine) -> bool:
        """Hand a line over.  False: the thread is behind, and it is dropped."""
        try:
            self._lines.put_nowait(line)
        except Full:
            self.counts.dropped += 1
            return False
        return True

    def close(self, rest: Iterable[LogLine]) -> None:
        """Write what was handed over and then the rest, if the thread is not behind for long."""
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except Full:
            return
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._write(rest)
            self._files.close()

    # --- the thread

    def _work(self) -> None:
        self._write([LogHead()])
        while True:
            lines = self._waiting()
            ends = None in lines
            self._write([line for line in lines if line is not None])
            if ends:
                break

    def _waiting(self) -> list[LogLine | None]:
        """At least one line, and those behind it."""
        lines = [self._lines.get()]
        try:
            while len(lines) < QUEUE_MAX:
                lines.append(self._lines.get_nowait())
        except Empty:
            pass
        return lines

    def _write(self, lines: Iterable[LogLine]) -> None:
        try:
            for line in lines:
                self._write_line(line)
            self._files.flush()
        except OSError as error:
            self.counts.failures += 1
            if not self._failing:
                fields = {"path": str(self._path), "error": str(error)}
                log.warning("the decision log cannot be written", extra={"fields": fields})
            self._failing = True
        else:
            self._failing = False

    def _write_line(self, line: LogLine) -> None:
        """Raises OSError."""
        if isinstance(line, LoggedFleet):
            if len(self._fleets) >= FLEETS_MAX:
                self._fleets.clear()
            self._fleets[line.model_name, line.tenant_id] = line
        self._files.write(self._encoder.encode(line))
        self.counts.lines += 1

    def _head(self) -> Iterator[bytes]:
        """What says who is there."""
        for line in (LogHead(), *self._fleets.values()):
            yield self._encoder.encode(line)
