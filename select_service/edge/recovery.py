"""Recovery at the start: the index from peers, else from the snapshot file; then the streams go on.

The service answers meanwhile, and workers may be registered: their listeners are connected, so that
nothing that is published from then on is missed, but what they receive waits until it is known what
the index begins with.

All peers are asked at the same time. The answer with most blocks wins; once there is one that has
any, slower peers get CHOICE_S_MAX more, and those from which nothing comes only PAUSE_S_MAX. A peer
that fails is asked again after growing pauses, the last time at RETRY_S_MAX; all of it ends at
TOTAL_S_MAX.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from indexer.compact_load import LoadLimits
from indexer.held_blocks import DumpedPartition, adopt
from indexer.ingest import Ingest
from select_service.core.recovered import RecoveryStatus, State
from select_service.core.selector import Selector
from select_service.edge.peer_dump import Answer, Download
from select_service.edge.snapshot_file import read_snapshot

TOTAL_S_MAX = 60.0
RETRY_S_MAX = 10.0
CHOICE_S_MAX = 5.0
PAUSE_S_MAX = 1.0
BACKOFF_S = 0.1
BACKOFF_S_MAX = 1.0
LOOK_EVERY_S = 0.01

log = logging.getLogger("select_service.recovery")


class Recovery:
    """Runs once.  `status` is what everybody else looks at; it says "running" from the start."""

    def __init__(
        self, peers: Sequence[str], path: Path | None, blocks_max: int, status: RecoveryStatus
    ) -> None:
        assert status.running
        self.status = status
        self._peers = peers
        self._path = path
        self._limits = LoadLimits(blocks_max)

    async def run(self, selector: Selector, ingest: Ingest, catalog_lock: asyncio.Lock) -> None:
        """Recover, hand out what was found, and let the listeners go on in any case."""
        log.info("recovery began", extra={"fields": {"peers": list(self._peers)}})
        state: State = "failed"
        try:
            state, partitions = await self._found()
            async with catalog_lock:
                selector.fleet.recovered.offer(partitions, monotonic())
                selector.fleet.claim_recovered()
                await asyncio.to_thread(adopt, selector.fleet.take_adoptions())
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(ingest.release))
            status = self.status
            status.elapsed_s, status.state = status.seconds(monotonic()), state
            fields = {
                "state": state,
                "source": status.source,
                "partitions": status.partitions,
                "blocks": status.blocks,
                "bad_entries": status.bad_entries,
                "seconds": round(status.elapsed_s, 3),
            }
            log.info("recovery ended", extra={"fields": fields})

    async def _found(self) -> tuple[State, list[DumpedPartition]]:
        """Peers first, as they are younger; the file fills in the partitions they do not have."""
        old = await asyncio.to_thread(read_snapshot, self._path, self._limits) if self._path else []
        best, heard = await self._ask_peers() if self._peers else (None, False)
        told = best.partitions if best else []
        # A peer that knows a partition but holds nothing of it has just started itself.
        names = {partition.name for partition in told if partition.blocks}
        partitions = [partition for partition in told if partition.blocks]
        partitions += [partition for partition in old if partition.name not in names]
        status = self.status
        status.partitions = len(partitions)
        status.blocks = sum(partition.blocks for partition in partitions)
        if best is not None:
            status.bad_entries = best.bad_entries
        if best is not None and best.blocks:
            status.source = best.url
        elif status.blocks:
            status.source = str(self._path)
        else:
            return ("empty" if heard or not self._peers else "failed"), partitions
        return "found", partitions

    async def _ask_peers(self) -> tuple[Answer | None, bool]:
        """The best answer, and whether any peer gave a proper one."""
        asked = [_Peer(url, self._limits) for url in self._peers]
        first_found: float | None = None
        while True:
            now = monotonic()
            for peer in asked:
                peer.look(now, self.status.begun_at + RETRY_S_MAX)
            answers = [peer.answer for peer in asked if peer.answer is not None]
            if first_found is None and any(answer.blocks for answer in answers):
                first_found = now
            if not any(peer.is_awaited(now, first_found) for peer in asked):
                break
            if now > self.status.begun_at + TOTAL_S_MAX:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        for peer in asked:
            peer.end()
        return max(answers, key=lambda answer: answer.blocks, default=None), bool(answers)


def backoff_s(failures: int) -> float:
    """The pause after one more failure, `failures` having come before it."""
    return min(BACKOFF_S * 2.0 ** min(failures, 10), BACKOFF_S_MAX)


class _Peer:
    """One peer and the downloads tried from it."""

    def __init__(self, url: str, limits: LoadLimits) -> None:
        self.url = url
        self.answer: Answer | None = None
        self._limits = limits
        self._failures = 0
        self._is_done = False
        self._next_try: float | None = None
        self._download = Download(url, limits)
        self._download.start()

    def look(self, now: float, retry_until: float) -> None:
        """See whether the download has ended, and try again when it is time."""
        if self._next_try is not None:
            if now >= self._next_try:
                self._next_try = None
                self._download = Download(self.url, self._limits)
                self._download.start()
        elif not self._is_done and not self._download.is_alive():
            self.answer = self._download.answer
            if self.answer is None and now < retry_until:
                self._next_try = min(now + backoff_s(self._failures), retry_until)
                self._failures += 1
            else:
                self._is_done = True

    def is_awaited(self, now: float, first_found: float | None) -> bool:
        """May this peer still give the answer that is taken?"""
        if self._next_try is not None:
            return first_found is None
        if self._is_done or first_found is None:
            return not self._is_done
        silent = now - max(self._download.progress_at, first_found)
        return now - first_found < CHOICE_S_MAX and silent < PAUSE_S_MAX

    def end(self) -> None:
        """Nobody wants its answer any more."""
        if self._download.is_alive():
            self._download.cancel()
            self._download.error = "it took too long"
        if self.answer is None:
            fields = {"peer": self.url, "error": self._download.error}
            log.warning("no dump from this peer", extra={"fields": fields})
