"""What ranks have agreed on to be right, in a file, so that it need not be learnt again.

It is written whole after every change; changes while it is being written are in the next one.  So a
process that comes back to a fleet of which a part has gone wrong meanwhile knows which part.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import msgspec

from select_service.checked_json import CHECKSUM_BYTES
from select_service.core.health.reference_book import (
    REFERENCES_MAX,
    ReferenceBook,
    ReferenceKey,
    StoredReference,
)
from select_service.edge.keeping.kept_file import KeptFile
from select_service.kept_formats import HEALTH
from select_service.whole_file import PRIVATE

STEP_S = 0.1
"""Between two looks for changes."""
REFERENCES_PER_STEP = 64
LAST_WRITE_S_MAX = 2.0
"""How long the end of the process waits for a file system."""
_HEAD = b'{"format":"select-service health","version":1,"references":['

log = logging.getLogger("select_service.health")


class KeptHealth(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds, as JSON."""

    references: list[StoredReference]
    format: Literal["select-service health"] = "select-service health"
    version: Literal[1] = 1


class HealthFile:
    """Belongs to the event loop; `step` is a task that is due every STEP_S."""

    def __init__(self, path: Path, book: ReferenceBook, mode: int = PRIVATE) -> None:
        """mode: of the file"""
        self._file = KeptFile(path, HEALTH, mode, log)
        self.failures = 0
        """How often it could not be written."""
        self._book = book
        self._texts: dict[ReferenceKey, bytes] = {}
        """Each reference as it stands in the file, the oldest first."""
        self._bytes = 0
        self._is_kept = True
        self._writing: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Know what the file holds.  One that cannot be used is moved aside, and told of."""
        try:
            content = self._file.read()
            if content is None:
                return
            references = msgspec.json.decode(content, type=KeptHealth).references
            for reference in references[-REFERENCES_MAX:]:
                _check(reference)
                self._book.restore(reference)
                self._put(reference.key, reference)
        except (OSError, ValueError, RecursionError) as error:
            self._file.refuse(error, "the health file cannot be used")
            return
        fields = {"path": str(self._file.path), "references": str(len(self._texts))}
        log.info("references of canaries are known again", extra={"fields": fields})

    def step(self, now: float) -> bool:
        """Take what has changed, a part at a time, and have it written when that was all."""
        for key, reference in self._book.take_changed(REFERENCES_PER_STEP).items():
            self._put(key, reference)
            self._is_kept = False
        if self._book.has_changed:
            return True
        if not self._is_kept and self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return False

    async def stop(self) -> None:
        """Write what has not been written yet."""
        while self.step(0.0):
            await asyncio.sleep(0)
        while self._writing is not None:
            _, late = await asyncio.wait([self._writing], timeout=LAST_WRITE_S_MAX)
            if late:
                fields = {"path": str(self._file.path), "seconds": LAST_WRITE_S_MAX}
                log.error("health file does not answer; not written", extra={"fields": fields})
                break
            self.step(0.0)

    def _put(self, key: ReferenceKey, reference: StoredReference | None) -> None:
        self._drop(key)
        if reference is None:
            return
        text = msgspec.json.encode(reference)
        self._texts[key] = text
        self._bytes += len(text) + 1
        while self._bytes > HEALTH.bytes_max - len(_HEAD) - CHECKSUM_BYTES - 2:
            self._drop(next(iter(self._texts)))

    def _drop(self, key: ReferenceKey) -> None:
        text = self._texts.pop(key, None)
        self._bytes -= 0 if text is None else len(text) + 1

    async def _write(self) -> None:
        texts = list(self._texts.values())
        self._is_kept = True
        try:
            error = await asyncio.to_thread(_write_references, self._file, texts)
        finally:
            self._writing = None
        if error is not None:
            self.failures += 1
            fields = {"path": str(self._file.path), "error": error}
            log.warning("the health file could not be written", extra={"fields": fields})


def _check(reference: StoredReference) -> None:
    """Raises ValueError for one that nothing could be compared with."""
    if not reference.tokens or len(reference.tokens) != len(reference.logprobs):
        raise ValueError("a reference without tokens, or with log-probabilities of another length")


def _write_references(file: KeptFile, texts: list[bytes]) -> str | None:
    """What went wrong, or None."""
    try:
        file.write(_HEAD + b",".join(texts) + b"]}")
    except OSError as error:
        return str(error)
    return None
