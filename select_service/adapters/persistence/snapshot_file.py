"""Snapshot file: the compact dump of the index, replaced atomically.

A new snapshot is written to a temporary file, synced and renamed over the old file, so neither a
crash of the process nor of the machine leaves half a file.  An unusable file is moved aside to
`<file>.refused`, or `.refused.2` and so on if such files exist, so that the next snapshot does not
destroy content that another version may still read.  A file that is not a snapshot is neither moved
nor overwritten.
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

from indexer.dumps.compact_head import DumpError
from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import compact_chunks
from indexer.dumps.recovered_blocks import DumpedPartition
from select_service.adapters.catalog_follower import CatalogFollower
from select_service.adapters.logs.log_throttle import LogThrottle
from select_service.adapters.persistence.persisted_file import move_aside
from select_service.adapters.persistence.recovery_progress import RecoveryProgress
from select_service.base.clocks import local_event_time, read_clocks
from select_service.core.registry.fleet.recovered_blocks import SnapshotStatus
from select_service.core.selector import SelectorCore
from select_service.core.views.dump_parts import DumpPart
from select_service.files.atomic_file import (
    PRIVATE_MODE,
    TEMPORARY_SUFFIX,
    check_regular,
    create_file,
    open_regular,
    sync_directory,
)
from select_service.files.persisted_formats import is_snapshot

READ_BYTES = 1 << 20
LAST_WRITE_S_MAX = 0.8
"""Time limit for the snapshot at shutdown, in seconds; after that the previous snapshot remains."""
TOO_LATE = f"not finished within {LAST_WRITE_S_MAX} s at shutdown"


log = logging.getLogger("select_service.snapshot")


class _TooLate(Exception):
    pass


def read_snapshot(
    path: Path, limits: LoadLimits, reading: RecoveryProgress
) -> list[DumpedPartition]:
    """Return the partitions in the file.

    Empty if the file is unusable (logged) or no longer needed.
    """
    loader = CompactReader(limits, local_event_time)
    try:
        with open_regular(path) as file:
            while data := file.read(READ_BYTES):
                loader.feed(data)
                reading.add_bytes(len(data), loader)
                if reading.is_cancelled:
                    return []
        if not reading.bytes:
            log.warning("snapshot file is empty", extra={"fields": {"path": str(path)}})
            return []
        loader.finish()
    except FileNotFoundError:
        return []
    except Exception as error:  # whatever it is, the next snapshot must not destroy the file
        move_unusable_aside(path, error)
        return []
    _log_snapshot_read(path, reading)
    if loader.has_older_salts:
        log.info("snapshot of the older salt rule converted", extra={"fields": {"path": str(path)}})
    return loader.partitions


def _log_snapshot_read(path: Path, reading: RecoveryProgress) -> None:
    fields = {
        "path": str(path),
        "bytes": reading.bytes,
        "partitions": reading.partitions,
        "blocks": reading.blocks,
        "seconds": round(reading.progress_at - reading.begun_at, 3),
    }
    log.info("snapshot file read", extra={"fields": fields})


def move_unusable_aside(path: Path, error: Exception) -> None:
    """Move aside a file that could not be read or distributed, if it exists."""
    if not path.exists():
        return
    is_expected = isinstance(error, DumpError | OSError)
    text = str(error) if is_expected else f"{type(error).__name__}: {error}"
    fields = {"path": str(path), "error": text[:200], "kept_as": str(path)}
    with contextlib.suppress(OSError):  # the file stays in place and is not overwritten
        fields["kept_as"] = str(move_aside(path, is_snapshot))
    log.warning(
        "snapshot file unusable, starting without it",
        extra={"fields": fields},
        exc_info=None if is_expected else error,
    )


class SnapshotFile:
    """Writer of the snapshots of one process, one at a time.

    A waiting caller may be cancelled, but the thread continues.  The last snapshot therefore asks
    the
    previous one to stop and waits for it: two writers at once would use the same file.
    """

    def __init__(self, path: Path, status: SnapshotStatus, mode: int = PRIVATE_MODE) -> None:
        """mode: permission bits of the file"""
        self.status = status
        self._path, self._mode = path, mode
        self._writing = threading.Lock()
        self._is_ending = False
        self._episodes = LogThrottle()

    async def write_every(
        self, selector: SelectorCore, follower: CatalogFollower, interval_s: float
    ) -> None:
        """Write snapshots periodically until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            with self._count_bugs():
                await (
                    follower.wait_until_adopted()
                )  # else the snapshot would miss blocks being attached
                await self.write_snapshot(selector.inspection.index_dumps())

    async def write_snapshot(self, parts: Iterable[DumpPart]) -> None:
        """Write a snapshot; a failure is counted and logged."""
        await self._write_on_thread(parts, lambda: self._is_ending, -1)

    async def write_last(self, parts: Iterable[DumpPart]) -> None:
        """Write the snapshot at shutdown, within LAST_WRITE_S_MAX."""
        # Stops a periodic snapshot between two chunks, so that the last one can start.
        self._is_ending = True
        until = monotonic() + LAST_WRITE_S_MAX
        with self._count_bugs():
            writing = self._write_on_thread(parts, lambda: monotonic() > until, LAST_WRITE_S_MAX)
            try:
                # The thread checks the time only between chunks; a hanging write needs this second
                # limit.
                async with asyncio.timeout(2 * LAST_WRITE_S_MAX):  # the file system may hang
                    await writing
            except TimeoutError:
                self._record_failure(TOO_LATE)

    @contextlib.contextmanager
    def _count_bugs(self) -> Iterator[None]:
        """Count and log an exception (a bug), so that later snapshots are still written."""
        try:
            yield
        except Exception:
            self.status.failures += 1
            if self._episodes.begins_episode("bug", monotonic()):
                fields = {"path": str(self._path)}
                log.exception("snapshot failed, continuing", extra={"fields": fields})

    async def _write_on_thread(
        self, parts: Iterable[DumpPart], is_over: Callable[[], bool], wait_s: float
    ) -> None:
        partitions = (part.take() for part in parts)
        error = await asyncio.to_thread(self._write_alone, partitions, is_over, wait_s)
        if error is not None:
            self._record_failure(error)

    def _record_failure(self, error: str) -> None:
        self.status.failures += 1
        fields = {"path": str(self._path), "error": error}
        log.warning("snapshot write failed", extra={"fields": fields})

    def _write_alone(
        self, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool], wait_s: float
    ) -> str | None:
        """Write when no other writer is active; return the error text, or None.

        wait_s: maximum wait for the previous snapshot, seconds; -1 means no limit
        """
        if not self._writing.acquire(timeout=wait_s):
            return TOO_LATE
        try:
            return self._replace_file(partitions, is_over)
        finally:
            self._writing.release()

    def _replace_file(
        self, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool]
    ) -> str | None:
        temporary = self._path.with_name(self._path.name + TEMPORARY_SUFFIX)
        try:
            # Written and synced first: a crash before the rename leaves the old snapshot intact.
            size = _write_through(temporary, partitions, is_over, self._mode)
            # Checked immediately before the rename: an operator may have put another file there
            # meanwhile.
            _check_replaceable(self._path)
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):  # frees space on a full disk
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
            raise OSError(errno.EEXIST, "existing file is not a snapshot", str(path))


def _write_through(
    path: Path, partitions: Iterable[DumpedPartition], is_over: Callable[[], bool], mode: int
) -> int:
    """Write and sync a snapshot; return its size in bytes.  Raises OSError, _TooLate."""
    size = 0
    with create_file(path, mode) as file:
        for chunk in compact_chunks(partitions, read_clocks):
            size += file.write(chunk)
            if is_over():
                raise _TooLate
        file.flush()
        os.fsync(file.fileno())
    return size
