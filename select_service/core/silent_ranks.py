"""Ranks that have requests and have stopped sending KV events.

An engine that computes announces blocks.  A rank with requests for long since the last event has
stopped sending: the index becomes stale, and bookings are assumed instead until events come again.
Ranks that never sent an event are left alone, since the engine may have no prefix cache.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from indexer.index.slot_writer import SlotWriter
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout
from select_service.core.periodic_task import SECOND_S
from select_service.core.registry.fleet.partition import Partition

RANKS_PER_STEP = 1024
"""Ranks with requests examined per step, about a microsecond each."""
PAUSE_S_MAX = 2 * SECOND_S
"""Longest time between two looks that counts as time with requests."""


@dataclass(slots=True)
class _BusyTime:
    """Time with requests since the last event, seconds; `live_at` is the time of this event."""

    live_at: float
    seconds: float
    seen_at: float


class SilentRank(NamedTuple):
    """Rank with assumed blocks because no events come.

    live_at: time of the last event, monotonic seconds
    """

    rank: Rank
    key: PartitionKey
    live_at: float


class SilentRanks:
    """Watch over the events of ranks with requests; used by the event loop thread only."""

    def __init__(
        self, partitions: Mapping[PartitionKey, Partition], rules: AssumptionRules
    ) -> None:
        self._partitions = partitions
        self._rules = rules
        self._busy: dict[SlotWriter, _BusyTime] = {}
        self.silent: dict[SlotWriter, SilentRank] = {}
        """Silent ranks by the writer of the rank's events."""
        self.on_assumption_begun: Callable[[], None] = lambda: None
        self._steps: Iterator[None] = iter(())

    def run_turn(self, now: float) -> bool:
        """Examine some ranks; return whether more are left in this round."""
        if not self._rules.use_kv_events or not self._rules.silent_after_s:
            return False
        if next(self._steps, True) is None:
            return True
        self._steps = self._examine_all(now)
        return next(self._steps, True) is None

    def _examine_all(self, now: float) -> Iterator[None]:
        n_examined = 0
        for partition in list(self._partitions.values()):
            busy = np.flatnonzero(partition.load.totals[:, load_layout.REQUESTS])
            for slot in busy.tolist():
                if not partition.table.is_taken(slot):
                    continue  # a rank that has left
                row = partition.table.row_at(slot)
                if row.worker.registration.index not in (None, "auto"):
                    continue
                self._examine_busy(partition, row.rank, row.writer, now)
                n_examined += 1
                if n_examined % RANKS_PER_STEP == 0:
                    yield
        # Time without requests does not count, and does not reset what was counted.
        self._busy = {writer: each for writer, each in self._busy.items() if writer.is_open}
        for writer, each in list(self.silent.items()):
            self._renew_silence(writer, each)

    def _examine_busy(
        self, partition: Partition, rank: Rank, writer: SlotWriter, now: float
    ) -> None:
        live_at = writer.live_at
        if live_at is None or writer in self.silent:
            return
        busy = self._busy.get(writer)
        if busy is None or busy.live_at != live_at:
            self._busy[writer] = _BusyTime(live_at, 0.0, now)
            return
        # A long gap between two looks may have been idle, so only a part of it counts.
        busy.seconds += min(PAUSE_S_MAX, now - busy.seen_at)
        busy.seen_at = now
        if busy.seconds >= self._rules.silent_after_s:
            del self._busy[writer]
            self._begin_silence(partition, SilentRank(rank, partition.key, live_at), writer)

    def _begin_silence(self, partition: Partition, silent: SilentRank, writer: SlotWriter) -> None:
        try:
            partition.prepare_assumed()
        except MemoryError:
            return  # tried again after the same time
        self.silent[writer] = silent
        partition.table.renew_version_of(silent.rank.worker_id)
        self.on_assumption_begun()
        self._renew_silence(writer, silent)

    def _renew_silence(self, writer: SlotWriter, silent: SilentRank) -> None:
        """Let the bookings of a rank be assumed until events come again, or the rank leaves."""
        partition = self._partitions.get(silent.key)
        slot = None if partition is None else partition.table.find_slot(silent.rank)
        if partition is None or partition.assumed is None or slot is None:
            del self.silent[writer]
            return
        row = partition.table.row_at(slot)
        if row.writer is not writer or writer.live_at != silent.live_at:
            del self.silent[writer]
            partition.table.renew_version_of(silent.rank.worker_id)
            partition.assume_bookings(row.worker, self._rules)
            return
        rank = partition.assumed.rank_at(slot)
        # A change of the worker may have ended the assumption.
        if rank is None or rank.is_beside_events:
            blocks = row.worker.registration.total_kv_blocks
            found = self._rules.make_rank("assumed", blocks, partition.block_size)
            partition.assumed.set_rank(slot, found)
