"""Root of traffic observation: reads the counters of every partition about once a second.

The memory of all slots is bounded. At the limit the oldest slots of any partition are dropped, and
windows that include them are incomplete.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

from select_service.core.admission.outcome_counters import RefusalReason
from select_service.core.admission.waiting_list import Backlog
from select_service.core.identity import PartitionKey
from select_service.core.load.origin_sums import ObservedCounters
from select_service.core.pairs.pair_traffic import PairTraffic
from select_service.core.registry.fleet.partition import Partition
from select_service.core.traffic.time_slots import SlotGrid, SlotHistory, WindowSpan
from select_service.core.traffic.traffic_counters import has_counted
from select_service.core.traffic.watched_models import WatchedModels
from select_service.core.traffic.window_sums import ObservationWindow, sum_slots

SLOT_BYTES_MAX = 128 << 20
"""Memory limit of all slots; 1 to 2 KB per slot with traffic, so one hour of about 25 busy
partitions.
"""
PARTITIONS_PER_STEP = 24
FORGOTTEN_PER_STEP = 2048
"""Maximum number of slots dropped per step, oldest first."""


class CounterSources(NamedTuple):
    """Sources of existing counters.

    observed: counters of our own reservations
    backlog: waiting requests
    refused: refusals since the last call
    pairs: counters of the pairs of a partition
    current_pairs: the same, with the links of the present ranks
    """

    partitions: Mapping[PartitionKey, Partition]
    observed: Callable[[PartitionKey], ObservedCounters | None]
    backlog: Callable[[PartitionKey], Backlog]
    refused: Callable[[], Mapping[PartitionKey, Mapping[RefusalReason, int]]]
    pairs: Callable[[Partition], PairTraffic | None]
    current_pairs: Callable[[Partition], PairTraffic | None]


class TrafficObserver:
    """Traffic observation; used by the event loop thread only."""

    def __init__(self, sources: CounterSources) -> None:
        self._sources = sources
        self._histories: dict[PartitionKey, SlotHistory] = {}
        """Histories of partitions with requests, kept while slots remain."""
        self._watched = WatchedModels()
        self._grid: SlotGrid | None = None
        """Grid of slots; None before the first step."""
        self._unclosed: list[PartitionKey] = []
        """Partitions with a slot still open in this round."""
        self._closing = 0
        """Number of the slot being closed in this round."""
        self._oldest: deque[SlotHistory] = deque()
        """Owners of all slots, in order of time."""
        self._bytes = 0
        self._lost_to = -1
        """Number of the newest slot dropped because of the memory limit."""

    def close_slots(self, now: float) -> bool:
        """Close the slots of some partitions. Return whether more are left."""
        if self._grid is None:
            return self._start_grid(now)
        if not self._unclosed:
            self._closing = self._grid.open_number
            if self._grid.close_slot(now):
                self._collect_refusals()
                self._add_histories()
                self._unclosed = list(self._histories)
        for _ in range(min(PARTITIONS_PER_STEP, len(self._unclosed))):
            self._close_slot(self._unclosed.pop())
        return self._drop_slots() or bool(self._unclosed)

    def _start_grid(self, now: float) -> bool:
        """Start the grid; earlier counts belong to no window."""
        self._grid = SlotGrid(now)
        self._collect_refusals()
        self._add_histories()
        for key, history in self._histories.items():
            # Counters since process start would appear as one huge burst in the first slot.
            history.skip_counts(self._update_sources(key, history))
        return False

    def _close_slot(self, key: PartitionKey) -> None:
        history = self._histories.get(key)
        if history is None:
            return
        slot = history.close_slot(self._closing, self._update_sources(key, history))
        if slot is not None:
            self._oldest.append(history)
            self._bytes += slot.memory_bytes
        elif not history.slots and key not in self._sources.partitions:
            self._watched.watch_model(key, 0)  # further requests still count
            del self._histories[key]

    def _update_sources(self, key: PartitionKey, history: SlotHistory) -> int:
        """Update the sources of a history, and return the number of waiting requests."""
        sources = self._sources
        partition = sources.partitions.get(key)
        pairs = None if partition is None else sources.pairs(partition)
        words = None if pairs is None else pairs.words
        history.counter.set_sources(partition, sources.observed(key), words)
        return sources.backlog(key).requests

    def _add_histories(self) -> None:
        for key, partition in self._sources.partitions.items():
            if key not in self._histories and self._has_requests(key, partition):
                self._histories[key] = SlotHistory()

    def _has_requests(self, key: PartitionKey, partition: Partition) -> bool:
        has_bookings = self._sources.observed(key) is not None
        return has_bookings or has_counted(partition) or self._sources.backlog(key).requests > 0

    def _collect_refusals(self) -> None:
        for key, reasons in self._sources.refused().items():
            history = self._histories.get(key)
            if history is None:
                if not self.counts_refusals(key):
                    continue
                history = self._histories[key] = SlotHistory()
            for reason, n in reasons.items():
                history.counter.refused[reason] += n

    def _drop_slots(self) -> bool:
        """Drop slots above the age or memory limit. Return whether more are left."""
        assert self._grid is not None
        for _ in range(FORGOTTEN_PER_STEP):
            if not self._oldest:
                return False
            slots = self._oldest[0].slots
            # Slots beyond the longest window are dropped without making any window incomplete.
            is_old = slots[0].number < self._grid.first
            if not is_old and self._bytes <= SLOT_BYTES_MAX:
                return False
            self._oldest.popleft()
            slot = slots.popleft()
            self._bytes -= slot.memory_bytes
            if not is_old:
                self._lost_to = slot.number
        return True

    def is_known(self, key: PartitionKey) -> bool:
        """Return whether the partition exists or had requests within the last hour."""
        return key in self._sources.partitions or key in self._histories

    def counts_refusals(self, key: PartitionKey) -> bool:
        """Return whether refused requests of this model and tenant are counted."""
        return self.is_known(key) or key in self._watched

    def watch_refusals(self, key: PartitionKey) -> None:
        """Count refused requests of this model and tenant from now on, with or without workers."""
        since = 0 if self._grid is None or self.is_known(key) else self._grid.open_number + 1
        self._watched.watch_model(key, since)
        self._collect_refusals()

    def find_partition(self, key: PartitionKey) -> Partition | None:
        """Return the partition; None without workers."""
        return self._sources.partitions.get(key)

    def find_pairs(self, key: PartitionKey) -> PairTraffic | None:
        """Return the counters of the pairs, with the present links; None if no pair was chosen."""
        partition = self.find_partition(key)
        return None if partition is None else self._sources.current_pairs(partition)

    def backlog_of(self, key: PartitionKey) -> Backlog:
        """Return the waiting requests."""
        return self._sources.backlog(key)

    def read_window(
        self, key: PartitionKey, window_s: float, now: float
    ) -> Generator[None, None, tuple[WindowSpan, ObservationWindow]]:
        """Return the counts of the last `window_s` seconds, to slot precision, in steps."""
        if self._grid is None:
            self._start_grid(now)
        grid = self._grid
        assert grid is not None
        self._collect_refusals()
        self._add_histories()
        span = grid.find_span(window_s, now)
        is_served = key in self._sources.partitions
        # Refusals of an unserved model before the first query were not counted.
        has_missed = not is_served and self._watched.has_missed(key, span.first)
        if has_missed or self._lost_to >= span.first:
            span = span._replace(is_covered=False)
        history = self._histories.get(key) or SlotHistory()
        fresh = history.read_fresh(grid.open_number, self._update_sources(key, history))
        slots = [slot for slot in history.slots if slot.number >= span.first]
        yield
        return span, (yield from sum_slots(slots, fresh, span))

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self._watched.check_invariants()
        histories = list(self._histories.values())
        assert self._bytes == sum(
            slot.memory_bytes for history in histories for slot in history.slots
        )
        assert len(self._oldest) == sum(len(history.slots) for history in histories)
        numbers = [[slot.number for slot in history.slots] for history in histories]
        assert all(of == sorted(set(of)) for of in numbers)
