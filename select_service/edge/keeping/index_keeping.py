"""Keeps the index over the end of the process: recovery at the start, then snapshots of it."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from indexer.sockets.ingest import Ingest
from select_service.core.fleet.recovered import RecoveryStatus, SnapshotStatus
from select_service.core.selector import Selector
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.recovery import Recovery
from select_service.edge.keeping.snapshot_file import SnapshotFile, refuse
from select_service.whole_file import PRIVATE

log = logging.getLogger("select_service.recovery")


class Keeping(NamedTuple):
    """What was configured."""

    peers: Sequence[str]
    path: str | None
    interval_s: float
    blocks_max: int
    mode: int = PRIVATE
    """Of the file."""


class IndexKeeping:
    """One task from the start of the process to its end.  A failure of it ends nothing else."""

    def __init__(
        self,
        wanted: Keeping,
        selector: Selector,
        recovery: RecoveryStatus,
        file: SnapshotStatus,
        http: HttpClient,
    ) -> None:
        path = self._path = None if wanted.path is None else Path(wanted.path)
        self._selector = selector
        self._interval_s = wanted.interval_s
        self._status = recovery
        self._file = None if path is None else SnapshotFile(path, file, wanted.mode)
        self._recovery = Recovery(wanted.peers, path, wanted.blocks_max, recovery, http)
        self._task: asyncio.Task[None] | None = None

    def start(self, ingest: Ingest, follower: CatalogFollower) -> None:
        self._task = asyncio.create_task(self._keep(ingest, follower))

    async def stop(self) -> None:
        """Write the last snapshot, in bounded time.

        Not before the recovery has ended: the file may hold what it was about to bring back.
        """
        assert self._task is not None
        was_running = self._status.running
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([self._task])
        if self._file is not None and not was_running:
            await self._file.write_last(self._selector.dumps())

    async def _keep(self, ingest: Ingest, follower: CatalogFollower) -> None:
        try:
            await self._recovery.run(self._selector, ingest, follower)
        except Exception as error:
            log.exception("the recovery failed; going on without")
            if self._path is not None:
                refuse(self._path, error)
        if self._file is not None:
            await self._file.write_every(self._selector, follower, self._interval_s)
