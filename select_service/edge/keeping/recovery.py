"""Recovery at the start: the index from peers and the snapshot file; then the streams go on.

The service answers meanwhile, and workers may be registered: their listeners are connected, so that
nothing that is published from then on is missed, but what they receive waits until it is known what
the index begins with.

The file and all peers are read at the same time. Once there is a peer's answer that has any blocks,
slower peers get CHOICE_S_MAX more, and those from which nothing comes only PAUSE_S_MAX. A peer that
fails is asked again after growing pauses, the last time at RETRY_S_MAX; all of it ends at
TOTAL_S_MAX.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from indexer.dumps.choice import best_of
from indexer.dumps.compact_load import LoadLimits
from indexer.dumps.held_blocks import DumpedPartition
from indexer.sockets.ingest import Ingest
from select_service.core.fleet.recovered import RecoveryStatus, State
from select_service.core.selector import Selector
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.asked_peer import AskedPeer
from select_service.edge.keeping.peer_dump import DownloadedDump
from select_service.edge.keeping.reading import Reading
from select_service.edge.keeping.snapshot_file import read_snapshot

TOTAL_S_MAX = 60.0
RETRY_S_MAX = 10.0
LOOK_EVERY_S = 0.01
SHOW_EVERY_S = 0.1
TELL_EVERY_S = 5.0

log = logging.getLogger("select_service.recovery")


class Recovery:
    """Runs once.  `status` is what everybody else looks at; it says "running" from the start."""

    def __init__(
        self,
        peers: Sequence[str],
        path: Path | None,
        blocks_max: int,
        status: RecoveryStatus,
        http: HttpClient,
    ) -> None:
        assert status.running
        self.status = status
        self._urls = peers
        self._http = http
        self._path = path
        self._limits = LoadLimits(blocks_max)
        self._peers: list[AskedPeer] = []
        self._file = None if path is None else Reading(str(path))

    async def run(self, selector: Selector, ingest: Ingest, follower: CatalogFollower) -> None:
        """Recover, hand out what was found, and let the listeners go on in any case."""
        log.info("recovery began", extra={"fields": {"peers": list(self._urls)}})
        state: State = "failed"
        try:
            async with self._watched():
                state, partitions = await self._found()
                selector.fleet.recovered.offer(partitions, monotonic())
                for _ in selector.fleet.claiming():
                    await asyncio.sleep(0)
                await follower.followed()
        except asyncio.CancelledError:
            state = "cancelled"
            follower.break_off_adoptions()
            self._cancel()
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(ingest.release))
            status = self.status
            status.elapsed_s, status.state = status.seconds(monotonic()), state
            fields = self._fields() | {"bad_entries": status.bad_entries}
            log.info("recovery ended", extra={"fields": fields})

    def _cancel(self) -> None:
        for peer in self._peers:
            peer.cancel()
        if self._file is not None:
            self._file.unwanted = True

    async def _found(self) -> tuple[State, list[DumpedPartition]]:
        """Every rank from one source: the peer with most blocks first, the file last (oldest)."""
        old, answers = await asyncio.gather(self._read_file(), self._ask_peers())
        dumps = [answer.partitions for answer in answers]
        taken = await asyncio.to_thread(best_of, dumps, [old])
        readings = [answer.reading for answer in answers]
        readings += [] if self._file is None else [self._file]
        self._peers, self._file = [], None  # nothing more comes from them
        status = self.status
        status.bad_entries = sum(answer.bad_entries for answer in answers)
        self._show_taken(list(zip(readings, taken, strict=False)))
        if status.blocks:
            return "found", list(chain.from_iterable(taken))
        return ("empty" if answers or not self._urls else "failed"), []

    def _show_taken(self, taken: list[tuple[Reading, list[DumpedPartition]]]) -> None:
        """What came from where; the status names the source of most blocks."""
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
                log.info("blocks are taken from a dump", extra={"fields": fields})

    async def _read_file(self) -> list[DumpedPartition]:
        if self._path is None or self._file is None:
            return []
        return await asyncio.to_thread(read_snapshot, self._path, self._limits, self._file)

    async def _ask_peers(self) -> list[DownloadedDump]:
        """The proper answers, the one with most blocks first."""
        asked = self._peers = [AskedPeer(url, self._limits, self._http) for url in self._urls]
        begun_at = monotonic()
        first_found: float | None = None
        while True:
            now = monotonic()
            for peer in asked:
                peer.look(now, begun_at + RETRY_S_MAX)
            answers = [peer.answer for peer in asked if peer.answer is not None]
            if first_found is None and any(answer.blocks for answer in answers):
                first_found = now
            if now > begun_at + TOTAL_S_MAX:
                break
            if not any(peer.is_awaited(now, first_found) for peer in asked):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        for peer in asked:
            peer.give_up()
        return sorted(answers, key=lambda answer: answer.blocks, reverse=True)

    # --- what others see meanwhile

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Keep the status up to date, and write to the log now and then."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        told_at = self.status.begun_at
        while True:
            self._show()
            if monotonic() - told_at >= TELL_EVERY_S:
                told_at = monotonic()
                log.info("recovery goes on", extra={"fields": self._fields()})
            await asyncio.sleep(SHOW_EVERY_S)

    def _show(self) -> None:
        """The reading that has come furthest, of those that are under way or at their end."""
        readings = [peer.reading for peer in self._peers]
        if self._file is not None:
            readings.append(self._file)
        best = max(readings, key=lambda reading: (reading.blocks, reading.bytes), default=None)
        if best is not None:
            status = self.status
            status.source, status.partitions = best.source, best.partitions
            status.blocks, status.bytes = best.blocks, best.bytes

    def _fields(self) -> dict[str, Any]:
        status = self.status
        return {
            "state": status.state,
            "peer": status.source,
            "partitions": status.partitions,
            "blocks": status.blocks,
            "bytes": status.bytes,
            "elapsed_s": round(status.seconds(monotonic()), 3),
        }
