"""Persistence of the index: recovery at start-up, then periodic snapshots."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from indexer.sockets.ingest import Ingest
from select_service.adapters.catalog_follower import CatalogFollower
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.index_recovery import IndexRecovery
from select_service.adapters.persistence.snapshot_file import SnapshotFile, move_unusable_aside
from select_service.core.registry.fleet.recovered_blocks import RecoveryStatus, SnapshotStatus
from select_service.core.selector import SelectorCore
from select_service.files.atomic_file import PRIVATE_MODE

log = logging.getLogger("select_service.recovery")


class IndexPersistenceSettings(NamedTuple):
    """Settings of index persistence."""

    peers: Sequence[str]
    path: str | None
    interval_s: float
    blocks_max: int
    mode: int = PRIVATE_MODE
    """Permission bits of the file."""


class IndexPersistence:
    """Task that recovers the index and writes snapshots; its failure ends nothing else."""

    def __init__(
        self,
        settings: IndexPersistenceSettings,
        selector: SelectorCore,
        recovery: RecoveryStatus,
        file: SnapshotStatus,
        http: HttpClient,
    ) -> None:
        path = self._path = None if settings.path is None else Path(settings.path)
        self._selector = selector
        self._interval_s = settings.interval_s
        self._status = recovery
        self._file = None if path is None else SnapshotFile(path, file, settings.mode)
        self._recovery = IndexRecovery(settings.peers, path, settings.blocks_max, recovery, http)
        self._task: asyncio.Task[None] | None = None

    def start(self, ingest: Ingest, follower: CatalogFollower) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._recover_and_write(ingest, follower))

    async def stop(self) -> None:
        """Write the last snapshot, in bounded time.

        No snapshot is written before the recovery has ended: the file may contain what the recovery
        was about to restore.
        """
        assert self._task is not None
        was_running = self._status.is_running
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([self._task])
        # A recovery that was cut short has not adopted everything: its index would replace a better
        # file.
        if self._file is not None and not was_running:
            await self._file.write_last(self._selector.inspection.index_dumps())

    async def _recover_and_write(self, ingest: Ingest, follower: CatalogFollower) -> None:
        try:
            await self._recovery.recover(self._selector, ingest, follower)
        except Exception as error:
            log.exception("recovery failed, starting without it")
            if self._path is not None:
                move_unusable_aside(self._path, error)
        if self._file is not None:
            await self._file.write_every(self._selector, follower, self._interval_s)
