"""Index recovery at start-up from peers and the snapshot file; event streams continue afterwards.

The service already answers during the recovery, and workers may be registered.  Their listeners are
connected, so no published event is missed; received events are held back until the start content of
the index is known.

The file and all peers are read concurrently.  After the first peer answer with blocks, slower peers
get CHOICE_S_MAX more, and stalled peers only PAUSE_S_MAX.  A failed peer is retried with growing
delays, the last time at RETRY_S_MAX; the whole recovery ends at TOTAL_S_MAX.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from indexer.dumps.compact_reader import LoadLimits
from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.dumps.source_selection import select_sources
from indexer.sockets.ingest import Ingest
from select_service.adapters.catalog_follower import CatalogFollower
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.peer_dump_download import DownloadedDump
from select_service.adapters.persistence.peer_dump_request import PeerDumpRequest
from select_service.adapters.persistence.recovery_progress import RecoveryProgress
from select_service.adapters.persistence.snapshot_file import read_snapshot
from select_service.core.registry.fleet.recovered_blocks import RecoveryState, RecoveryStatus
from select_service.core.selector import SelectorCore

TOTAL_S_MAX = 60.0
RETRY_S_MAX = 10.0
CHECK_INTERVAL_S = 0.01
STATUS_INTERVAL_S = 0.1
LOG_INTERVAL_S = 5.0

log = logging.getLogger("select_service.recovery")


class IndexRecovery:
    """One-time recovery.  `status` is its public state and is "running" from the start."""

    def __init__(
        self,
        peers: Sequence[str],
        path: Path | None,
        blocks_max: int,
        status: RecoveryStatus,
        http: HttpClient,
    ) -> None:
        assert status.is_running
        self.status = status
        self._urls = peers
        self._http = http
        self._path = path
        self._limits = LoadLimits(blocks_max)
        self._peers: list[PeerDumpRequest] = []
        self._file = None if path is None else RecoveryProgress(str(path))

    async def recover(
        self, selector: SelectorCore, ingest: Ingest, follower: CatalogFollower
    ) -> None:
        """Recover, distribute the blocks found, and release the listeners in any case."""
        log.info("recovery started", extra={"fields": {"peers": list(self._urls)}})
        state: RecoveryState = "failed"
        try:
            async with self._progress_reported():
                # Listeners buffer events from before this moment, so no event is lost between dump
                # and stream.
                state, partitions = await self._collect_partitions()
                selector.fleet.recovered_blocks.store_partitions(partitions, monotonic())
                for _ in selector.fleet.claim_recovered_blocks():
                    await asyncio.sleep(0)
                await follower.wait_until_applied()
        except asyncio.CancelledError:
            state = "cancelled"
            follower.stop_adoptions()
            self._cancel_reads()
            raise
        finally:
            # Shielded: without the release, listeners would hold back their events for ever.
            await asyncio.shield(asyncio.to_thread(ingest.start_held_listeners))
            status = self.status
            status.elapsed_s, status.state = status.elapsed_seconds(monotonic()), state
            fields = self._log_fields() | {"bad_entries": status.bad_entries}
            log.info("recovery ended", extra={"fields": fields})

    def _cancel_reads(self) -> None:
        for peer in self._peers:
            peer.cancel()
        if self._file is not None:
            self._file.is_cancelled = True

    async def _collect_partitions(self) -> tuple[RecoveryState, list[DumpedPartition]]:
        """Return the partitions to restore, with one source per rank.

        The peer with the most blocks has precedence, and the file comes last, as it is the oldest.
        """
        # The file is read even if peers answer: ranks unknown to them come from it.
        old, answers = await asyncio.gather(self._read_file(), self._request_peers())
        dumps = [answer.partitions for answer in answers]
        taken = await asyncio.to_thread(select_sources, dumps, [old])
        readings = [answer.progress for answer in answers]
        readings += [] if self._file is None else [self._file]
        self._peers, self._file = [], None  # no further results from these
        status = self.status
        status.bad_entries = sum(answer.bad_entries for answer in answers)
        self._record_taken(list(zip(readings, taken, strict=False)))
        if status.blocks:
            return "found", list(chain.from_iterable(taken))
        return ("empty" if answers or not self._urls else "failed"), []

    def _record_taken(self, taken: list[tuple[RecoveryProgress, list[DumpedPartition]]]) -> None:
        """Log the blocks taken from each source; the status names the source of most blocks."""
        status, most = self.status, 0
        names = {(part.name, part.block_size) for _, parts in taken for part in parts}
        status.source, status.bytes = None, 0
        status.partitions, status.blocks = len(names), 0
        for reading, parts in taken:
            blocks = sum(part.blocks for part in parts)
            status.blocks += blocks
            if blocks > most:
                most, status.source, status.bytes = blocks, reading.source, reading.bytes
            if blocks:
                ranks = sum(len(part.ranks) for part in parts)
                fields = {"source": reading.source, "ranks": ranks, "blocks": blocks}
                log.info("blocks taken from dump", extra={"fields": fields})

    async def _read_file(self) -> list[DumpedPartition]:
        if self._path is None or self._file is None:
            return []
        return await asyncio.to_thread(read_snapshot, self._path, self._limits, self._file)

    async def _request_peers(self) -> list[DownloadedDump]:
        """Return the complete answers, sorted by decreasing number of blocks."""
        asked = self._peers = [PeerDumpRequest(url, self._limits, self._http) for url in self._urls]
        begun_at = monotonic()
        first_found: float | None = None
        while True:
            now = monotonic()
            for peer in asked:
                peer.check_download(now, begun_at + RETRY_S_MAX)
            answers = [peer.answer for peer in asked if peer.answer is not None]
            # A complete but empty answer, as from a peer that has just started, does not end the
            # wait.
            if first_found is None and any(answer.blocks for answer in answers):
                first_found = now
            if now > begun_at + TOTAL_S_MAX:
                break
            if not any(peer.is_awaited(now, first_found) for peer in asked):
                break
            await asyncio.sleep(CHECK_INTERVAL_S)
        for peer in asked:
            peer.give_up()
        return sorted(answers, key=lambda answer: answer.blocks, reverse=True)

    # Progress for the status and the log.

    @contextlib.asynccontextmanager
    async def _progress_reported(self) -> AsyncIterator[None]:
        """Update the status inside the context, and log progress periodically."""
        watching = asyncio.create_task(self._report_progress())
        try:
            yield
        finally:
            watching.cancel()

    async def _report_progress(self) -> None:
        told_at = self.status.begun_at
        while True:
            self._update_status()
            if monotonic() - told_at >= LOG_INTERVAL_S:
                told_at = monotonic()
                log.info("recovery in progress", extra={"fields": self._log_fields()})
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _update_status(self) -> None:
        """Copy the most advanced reading to the status."""
        readings = [peer.progress for peer in self._peers]
        if self._file is not None:
            readings.append(self._file)
        best = max(readings, key=lambda reading: (reading.blocks, reading.bytes), default=None)
        if best is not None:
            status = self.status
            status.source, status.partitions = best.source, best.partitions
            status.blocks, status.bytes = best.blocks, best.bytes

    def _log_fields(self) -> dict[str, Any]:
        status = self.status
        return {
            "state": status.state,
            "peer": status.source,
            "partitions": status.partitions,
            "blocks": status.blocks,
            "bytes": status.bytes,
            "elapsed_s": round(status.elapsed_seconds(monotonic()), 3),
        }
