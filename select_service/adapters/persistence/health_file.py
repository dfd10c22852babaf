"""File of reference answers agreed on by ranks, so that a restart need not learn them again.

The file is rewritten after every change; changes during a write are in the next write.  A process
that restarts with a partly faulty fleet therefore recognises the faulty part.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import msgspec

from select_service.adapters.persistence.persisted_file import PersistedFile
from select_service.core.health.answers.reference_answers import (
    REFERENCES_MAX,
    ReferenceAnswers,
    ReferenceKey,
    StoredReference,
)
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.json_checksum import CHECKSUM_BYTES
from select_service.files.persisted_formats import HEALTH

STEP_S = 0.1
"""Interval of checks for changes, in seconds."""
REFERENCES_PER_STEP = 64
LAST_WRITE_S_MAX = 2.0
"""Time limit for the last write at shutdown, in seconds."""
_HEAD = b'{"format":"select-service health","version":1,"references":['

log = logging.getLogger("select_service.health")


class PersistedHealth(msgspec.Struct, forbid_unknown_fields=True):
    """File content, as JSON."""

    references: list[StoredReference]
    format: Literal["select-service health"] = "select-service health"
    version: Literal[1] = 1


class HealthFile:
    """Store of reference answers.  Belongs to the event loop; `take_changes` is a periodic task."""

    def __init__(self, path: Path, book: ReferenceAnswers, mode: int = PRIVATE_MODE) -> None:
        """mode: permission bits of the file"""
        self._file = PersistedFile(path, HEALTH, mode, log)
        self.failures = 0
        """Number of failed writes."""
        self._book = book
        self._texts: dict[ReferenceKey, bytes] = {}
        """Encoded references, oldest first."""
        self._bytes = 0
        self._is_written = True
        self._writing: asyncio.Task[None] | None = None

    def restore_references(self) -> None:
        """Restore the references of the file.  An unusable file is moved aside and logged."""
        try:
            content = self._file.read()
            if content is None:
                return
            references = msgspec.json.decode(content, type=PersistedHealth).references
            for reference in references[-REFERENCES_MAX:]:
                _check_reference(reference)
                self._book.restore_reference(reference)
                self._put_reference(reference.key, reference)
        except (OSError, ValueError, RecursionError) as error:
            self._file.move_unusable_aside(error, "health file unusable")
            return
        fields = {"path": str(self._file.path), "references": str(len(self._texts))}
        log.info("reference answers restored", extra={"fields": fields})

    def take_changes(self, now: float) -> bool:
        """Take a bounded number of changes; start a write when none are left."""
        for key, reference in self._book.take_changed(REFERENCES_PER_STEP).items():
            self._put_reference(key, reference)
            self._is_written = False
        if self._book.has_changed:
            return True
        if not self._is_written and self._writing is None:
            self._writing = asyncio.create_task(self._write_file())
        return False

    async def stop(self) -> None:
        """Write unsaved changes."""
        while self.take_changes(0.0):
            await asyncio.sleep(0)
        while self._writing is not None:
            _, late = await asyncio.wait([self._writing], timeout=LAST_WRITE_S_MAX)
            if late:
                fields = {"path": str(self._file.path), "seconds": LAST_WRITE_S_MAX}
                log.error("health file not written, file system hangs", extra={"fields": fields})
                break
            self.take_changes(0.0)

    def _put_reference(self, key: ReferenceKey, reference: StoredReference | None) -> None:
        self._drop_reference(key)
        if reference is None:
            return
        text = msgspec.json.encode(reference)
        self._texts[key] = text
        self._bytes += len(text) + 1
        # Oldest references first: a file above the limit could not be read back.
        while self._bytes > HEALTH.bytes_max - len(_HEAD) - CHECKSUM_BYTES - 2:
            self._drop_reference(next(iter(self._texts)))

    def _drop_reference(self, key: ReferenceKey) -> None:
        text = self._texts.pop(key, None)
        self._bytes -= 0 if text is None else len(text) + 1

    async def _write_file(self) -> None:
        texts = list(self._texts.values())
        self._is_written = True
        try:
            error = await asyncio.to_thread(_write_references, self._file, texts)
        finally:
            self._writing = None
        if error is not None:
            self.failures += 1
            fields = {"path": str(self._file.path), "error": error}
            log.warning("health file write failed", extra={"fields": fields})


def _check_reference(reference: StoredReference) -> None:
    """Raise ValueError for a reference that cannot be compared with anything."""
    if not reference.tokens or len(reference.tokens) != len(reference.logprobs):
        raise ValueError("reference has no tokens, or logprobs of a different length")


def _write_references(file: PersistedFile, texts: list[bytes]) -> str | None:
    """Write the file; return the error text, or None."""
    try:
        file.write(_HEAD + b",".join(texts) + b"]}")
    except OSError as error:
        return str(error)
    return None
