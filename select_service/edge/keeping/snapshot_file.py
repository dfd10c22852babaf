"""The snapshot file: the compact dump, written so that a whole one is there at any moment.

A new one is written beside the old one, forced to disk and renamed over it, so neither the end of
the process nor that of the machine leaves half a file. A file that cannot be used is moved aside to
`<file>.refused`, or `.refused.2` and so on when there are such files already, so that the next one
does not destroy what another version may still read. What is no snapshot is neither moved nor
written over.
"""

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic

from indexer.dumps.compact_dump import compact_chunks
from indexer.dumps.compact_load import CompactLoader, DumpError, LoadLimits
from indexer.dumps.held_blocks import DumpedPartition
from select_service.clocks import heard_by_this_machine, now
from select_service.core.fleet.recovered import SnapshotStatus
from select_service.core.selector import Selector
from select_service.core.views.dump_parts import DumpPart
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.episodes import Episodes
from select_service.edge.keeping.kept_file import move_aside
from select_service.edge.keeping.reading import Reading
from select_service.kept_formats import is_snapshot
from select_service.whole_file import (
    PRIVATE,
    TEMPORARY_ENDING,
    check_regular,
    create_file,
    open_regular,
    sync_directory,
)

READ_BYTES = 1 << 20
LAST_WRITE_S_MAX = 0.8
"""For the snapshot at the end of the process; one that takes longer is given up, and the one of
the last interval stays."""
TOO_LATE = f"not done within {LAST_WRITE_S_MAX} s at the end of the process"


log = logging.getLogger("select_service.snapshot")


class _TooLate(Exception):
    pass


def read_snapshot(path: Path, limits: LoadLimits, reading: Reading) -> list[DumpedPartition]:
    """What the file holds; nothing, and a warning, when it cannot be used, or is not wanted."""
    loader = CompactLoader(limits, heard_by_this_machine)
    try:
        with open_regular(path) as file:
            while data := file.read(READ_BYTES):
                loader.feed(data)
                reading.note(len(data), loader)
                if reading.unwanted:
                    return []
        if not reading.bytes:
            log.warning("snapshot file is empty", extra={"fields": {"path": str(path)}})
            return []
        loader.finish()
    except FileNotFoundError:
        return []
    except Exception as error:  # whatever it is, the next snapshot must not destroy the file
        refuse(path, error)
        return []
    _tell(path, reading)
    return loader.partitions


def _tell(path: Path, reading: Reading) -> None:
    fields = {
        "path": str(path),
        "bytes": reading.bytes,
        "partitions": reading.partitions,
        "blocks": reading.blocks,
        "seconds": round(reading.progress_at - reading.begun_at, 3),
    }
    log.info("the snapshot file was read", extra={"fields": fields})


def refuse(path: Path, error: Exception) -> None:
    """Move a file aside that was not read, or whose blocks were not handed out; if it is there."""
    if not path.exists():
        return
    is_expected = isinstance(error, DumpError | OSError)
    text = str(error) if is_expected else f"{type(error).__name__}: {error}"
    fields = {"path": str(path), "error": text[:200], "kept_as": str(path)}
    with contextlib.suppress(OSError):  # it stays, and is not written over: see SnapshotFile
        fields["kept_as"] = str(move_aside(path, is_snapshot))
    log.warning(
        "the snapshot file cannot be used; starting without it",
        extra={"fields": fields},
        exc_info=None if is_expected else error,
    )


class SnapshotFile:
    """Writes the snapshots of one process, one at a time.

    Whoever waits for a snapshot may stop to wait, but its thread goes on: so the last one asks the
    one before it to end, and waits for that.  Two at once would write into the same file.
    """

    def __init__(self, path: Path, status: SnapshotStatus, mode: int = PRIVATE) -> None:
        """mode: of the file"""
        self.status = status
        self._path, self._mode = path, mode
        self._writing = threading.Lock()
        self._is_ending = False
        self._episodes = Episodes()

    async def write_every(
        self, selector: Selector, follower: CatalogFollower, interval_s: float
    ) -> None:
        """Ends only by cancellation."""
        while True:
            await asyncio.sleep(interval_s)
            with self._guarded():
                await follower.adopted()  # or a rank would be neither waiting nor having
                await self.write(selector.dumps())

    async def write(self, parts: Iterable[DumpPart]) -> None:
        """One snapshot; a failure is counted and told of."""
        await self._write_on_thread(parts, lambda: self._is_ending, -1)

    async def write_last(self, parts: Iterable[DumpPart]) -> None:
        """The same at the end of the process, within LAST_WRITE_S_MAX."""
        self._is_ending = True
        until = monotonic() + LAST_WRITE_S_MAX
        with self._guarded():
            writing = self._write_on_thread(parts, lambda: monotonic() > until, LAST_WRITE_S_MAX)
            try:
                await asyncio.wait_for(writing, 2 * LAST_WRITE_S_MAX)  # a file system may hang
            except TimeoutError:
                self._failed(TOO_LATE)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A snapshot that fails for a bug is one that failed: the next one is made all the same."""
        try:
            yield
        except Exception:
            self.status.failures += 1
            if self._episodes.begins("bug", monotonic()):
                fields = {"path": str(self._path)}
                log.exception("the snapshot failed; going on", extra={"fields": fields})

    async def _write_on_thread(
        self, parts: Iterable[DumpPart], is_over: Callable[[], bool], wait_s: float
    ) -> None:
        partitions = (part.take() for part in parts)
        error = await asyncio.to_thread(self._write_alone, partitions, is_over, wait_s)
        if error is not None:
            self._failed(error)

    def _failed(self, error: str) -> None:
        self.status.failures += 1
        fields = {"path": str(self._path), "error": error}
        log.warning("the snapshot could not be written", extra={"fields": fields})

    def _write_alone(
        self, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool], wait_s: float
    ) -> str | None:
        """What went wrong, or None.  wait_s: for the snapshot before; -1 = as long as it takes."""
        if not self._writing.acquire(timeout=wait_s):
            return TOO_LATE
        try:
            return self._write(partitions, is_over)
        finally:
            self._writing.release()

    def _write(
        self, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool]
    ) -> str | None:
        temporary = self._path.with_name(self._path.name + TEMPORARY_ENDING)
        try:
            size = _write_through(temporary, partitions, is_over, self._mode)
            _check_replaceable(self._path)
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):  # a full disk needs the room
                temporary.unlink()
            if isinstance(error, OSError):
                return str(error)
            if isinstance(error, _TooLate):
                return TOO_LATE
            raise
        self.status.written_at, self.status.bytes = monotonic(), size
        return None


def _check_replaceable(path: Path) -> None:
    """Raise OSError for a file that is neither empty nor a snapshot."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        check_regular(found.st_mode, path)
        if found.st_size and not is_snapshot(path):
            raise OSError(errno.EEXIST, "the file that is there is no snapshot", str(path))


def _write_through(
    path: Path, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool], mode: int
) -> int:
    """Returns the size.  Raises OSError, _TooLate."""
    size = 0
    with create_file(path, mode) as file:
        for chunk in compact_chunks(partitions, now):
            size += file.write(chunk)
            if is_over():
                raise _TooLate
        file.flush()
        os.fsync(file.fileno())
    return size
