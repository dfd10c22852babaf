"""File of sessions beside the state file, so that a restart takes no session from its rank.

The file is rewritten while sessions change, less often than the state file, and at shutdown; it is
restored before the first request is answered.
"""

import asyncio
import logging
from pathlib import Path
from time import monotonic, time
from typing import Literal

import msgspec

from select_service.adapters.persistence.background_write import BackgroundWrite
from select_service.adapters.persistence.persisted_file import PersistedFile
from select_service.base.cooperative import collect_cooperatively
from select_service.core.periodic_task import PeriodicTask
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_persistence import (
    ROWS_PER_STEP,
    PersistedSession,
    iterate_persisted,
    restore_sessions,
)
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.json_checksum import CHECKSUM_BYTES
from select_service.files.persisted_formats import SESSIONS

INTERVAL_S = 10.0
"""Time between two writes, in seconds; a process that is killed loses the changes since."""

log = logging.getLogger("select_service.state")


class PersistedSessions(msgspec.Struct, kw_only=True):
    """File content, as JSON.

    written_at: seconds since the epoch
    """

    format: Literal["select-service sessions"] = "select-service sessions"
    version: Literal[1] = 1
    written_at: float
    sessions: list[PersistedSession]


class SessionFile:
    """Store of the sessions.  Belongs to one event loop."""

    def __init__(self, path: Path, directory: SessionDirectory, mode: int = PRIVATE_MODE) -> None:
        """mode: permission bits of the file"""
        self._file = PersistedFile(path, SESSIONS, mode, log)
        self.failures = 0
        """Number of failed writes."""
        self._directory = directory
        self._written_change = directory.changes
        self._writing = BackgroundWrite(path, log, "session file not written, file system hangs")

    async def restore(self) -> None:
        """Restore the sessions of the file.  An unusable file is moved aside and logged."""
        try:
            stored = await asyncio.to_thread(_read_sessions, self._file)
        except (OSError, ValueError, RecursionError) as error:
            await asyncio.to_thread(self._file.move_unusable_aside, error, "session file unusable")
            return
        if stored is None:
            return
        down_s = time() - stored.written_at
        steps = restore_sessions(self._directory, stored.sessions, down_s, monotonic())
        (numbers,) = await collect_cooperatively(steps)
        fields = {"path": str(self._file.path), **numbers._asdict()}
        log.info("sessions restored", extra={"fields": fields})

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks of the file."""
        return [PeriodicTask("session_file", INTERVAL_S, self._write_if_changed)]

    async def stop(self) -> None:
        """Write unsaved changes."""
        if await self._writing.has_ended():
            self._write_if_changed(0.0)
            await self._writing.has_ended()

    def _write_if_changed(self, now: float) -> bool:
        if not self._writing.is_running and self._directory.changes != self._written_change:
            self._writing.start(self._write_file())
        return False

    async def _write_file(self) -> None:
        changes = self._directory.changes
        rows = await collect_cooperatively(iterate_persisted(self._directory, monotonic()))
        content = PersistedSessions(written_at=time(), sessions=rows)
        try:
            await asyncio.to_thread(_write_sessions, self._file, content)
        except OSError as error:
            self.failures += 1
            fields = {"path": str(self._file.path), "error": str(error)}
            log.warning("session file write failed", extra={"fields": fields})
        else:
            self._written_change = changes


def _read_sessions(file: PersistedFile) -> PersistedSessions | None:
    """Return the content of the file, or None if there is none.

    Raises OSError, ValueError, RecursionError.
    """
    content = file.read()
    return None if content is None else msgspec.json.decode(content, type=PersistedSessions)


def _write_sessions(file: PersistedFile, content: PersistedSessions) -> None:
    """Write the sessions.  Raises OSError.

    Encoded in pieces: one long call would hold the interpreter lock against the event loop.
    Sessions beyond the size that a restart reads are left out and logged.
    """
    rows, content.sessions = content.sessions, []
    head = msgspec.json.encode(content)
    assert head.endswith(b"[]}")
    pieces, left = [], SESSIONS.bytes_max - len(head) - CHECKSUM_BYTES
    for begin in range(0, len(rows), ROWS_PER_STEP):
        piece = msgspec.json.encode(rows[begin : begin + ROWS_PER_STEP])[1:-1]
        left -= len(piece) + 1
        if left < 0:
            fields = {"path": str(file.path), "sessions": len(rows) - begin}
            log.warning("session file full, sessions left out", extra={"fields": fields})
            break
        pieces.append(piece)
    file.write(b"%b%b]}" % (head[:-2], b",".join(pieces)))
