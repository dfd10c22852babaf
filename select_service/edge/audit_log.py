"""EDGE: the audit log: lines of JSON, each in the file before its request is answered."""

import asyncio
import logging
import threading
from pathlib import Path

import msgspec

from select_service.access.audit import AuditLine
from select_service.metrics.access import AuditCounts
from select_service.numbered_files import NumberedFiles

log = logging.getLogger("select_service.audit")


class AuditFiles:
    """The newest lines are in FILE, older ones in FILE.1, FILE.2 and so on."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be written to."""
        self.counts = AuditCounts()
        self._path = path
        self._files = NumberedFiles(path, tuple)
        self._lock = threading.Lock()
        self._failing = False

    async def note(self, line: AuditLine) -> None:
        """Write it, on a thread.  A file system that refuses it is told of, and stops nobody."""
        await asyncio.to_thread(self._write, msgspec.json.encode(line))

    def close(self) -> None:
        with self._lock:
            self._files.close()

    def _write(self, line: bytes) -> None:
        with self._lock:
            try:
                self._files.write(line)
                self._files.flush()
            except OSError as error:
                self.counts.failures += 1
                if not self._failing:
                    fields = {"path": str(self._path), "error": str(error)}
                    log.error("the audit log cannot be written", extra={"fields": fields})
                self._failing = True
            else:
                self.counts.lines += 1
                self._failing = False
