"""The root of what is observed: a look at the counts of every partition about once a second.

The memory of all slots together is bounded; where it is used up the oldest slots go first, of
whichever partition, and windows that reach so far back are not complete any more.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

from select_service.core.admission.tally import Reason
from select_service.core.admission.waiting_list import Backlog
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.load.origin_sums import Observed
from select_service.core.observing.counted import has_counted
from select_service.core.observing.slots import Grid, History, Span
from select_service.core.observing.watched import WatchedModels
from select_service.core.observing.window import Window, summed

SLOT_BYTES_MAX = 128 << 20
"""Of all partitions; some 1 to 2 KB each slot with traffic, so an hour of some 25 busy ones."""
PARTITIONS_PER_STEP = 24
FORGOTTEN_PER_STEP = 2048
"""Slots that go in one step, oldest first."""


class Sources(NamedTuple):
    """Where counts are found that are kept anyway.

    observed: of our own reservations;  backlog: what waits;  refused: since it was last asked
    """

    partitions: Mapping[PartitionKey, Partition]
    observed: Callable[[PartitionKey], Observed | None]
    backlog: Callable[[PartitionKey], Backlog]
    refused: Callable[[], Mapping[PartitionKey, Mapping[Reason, int]]]


class Observing:
    """Belongs to the thread that decides."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._histories: dict[PartitionKey, History] = {}
        """Of partitions that had a request; they stay as long as they have slots."""
        self._watched = WatchedModels()
        self._grid: Grid | None = None
        """None: before the first step."""
        self._left: list[PartitionKey] = []
        """Partitions whose slot is not closed yet in this round."""
        self._closing = 0
        """Number of the slot that is closed in this round."""
        self._oldest: deque[History] = deque()
        """Whose slot it is, of all slots in the order of time."""
        self._bytes = 0
        self._lost_to = -1
        """Number of the newest slot that went for lack of memory."""

    # --- once a second

    def step(self, now: float) -> bool:
        """Close the slots of some partitions.  Returns whether there are more."""
        if self._grid is None:
            return self._begin(now)
        if not self._left:
            self._closing = self._grid.open
            if self._grid.close(now):
                self._note_refusals()
                self._meet_new()
                self._left = list(self._histories)
        for _ in range(min(PARTITIONS_PER_STEP, len(self._left))):
            self._close(self._left.pop())
        return self._forget() or bool(self._left)

    def _begin(self, now: float) -> bool:
        """What was counted before is in no window."""
        self._grid = Grid(now)
        self._note_refusals()
        self._meet_new()
        for key, history in self._histories.items():
            history.skip(self._met(key, history))
        return False

    def _close(self, key: PartitionKey) -> None:
        history = self._histories.get(key)
        if history is None:
            return
        slot = history.close(self._closing, self._met(key, history))
        if slot is not None:
            self._oldest.append(history)
            self._bytes += slot.nbytes
        elif not history.slots and key not in self._sources.partitions:
            self._watched.watch(key, 0)  # requests for it still count, should there be any
            del self._histories[key]

    def _met(self, key: PartitionKey, history: History) -> int:
        """Let it read what is written now.  How many requests wait there."""
        sources = self._sources
        history.counted.meet(sources.partitions.get(key), sources.observed(key))
        return sources.backlog(key).requests

    def _meet_new(self) -> None:
        for key, partition in self._sources.partitions.items():
            if key not in self._histories and self._has_requests(key, partition):
                self._histories[key] = History()

    def _has_requests(self, key: PartitionKey, partition: Partition) -> bool:
        has_bookings = self._sources.observed(key) is not None
        return has_bookings or has_counted(partition) or self._sources.backlog(key).requests > 0

    def _note_refusals(self) -> None:
        for key, reasons in self._sources.refused().items():
            history = self._histories.get(key)
            if history is None:
                if not self.counts(key):
                    continue
                history = self._histories[key] = History()
            for reason, n in reasons.items():
                history.counted.refused[reason] += n

    def _forget(self) -> bool:
        """Slots go that are too old, or too many.  Returns whether there are more of them."""
        assert self._grid is not None
        for _ in range(FORGOTTEN_PER_STEP):
            if not self._oldest:
                return False
            slots = self._oldest[0].slots
            is_old = slots[0].number < self._grid.first
            if not is_old and self._bytes <= SLOT_BYTES_MAX:
                return False
            self._oldest.popleft()
            slot = slots.popleft()
            self._bytes -= slot.nbytes
            if not is_old:
                self._lost_to = slot.number
        return True

    # --- reading

    def knows(self, key: PartitionKey) -> bool:
        """Is it there, or were there requests for it within the hour?"""
        return key in self._sources.partitions or key in self._histories

    def counts(self, key: PartitionKey) -> bool:
        """Return whether refused requests for it are kept."""
        return self.knows(key) or key in self._watched

    def watch(self, key: PartitionKey) -> None:
        """Count refused requests for it from now on, whoever serves it or not."""
        since = 0 if self._grid is None or self.knows(key) else self._grid.open + 1
        self._watched.watch(key, since)
        self._note_refusals()

    def partition(self, key: PartitionKey) -> Partition | None:
        """None: nobody serves it now."""
        return self._sources.partitions.get(key)

    def backlog(self, key: PartitionKey) -> Backlog:
        """What waits there now."""
        return self._sources.backlog(key)

    def window(
        self, key: PartitionKey, window_s: float, now: float
    ) -> Generator[None, None, tuple[Span, Window]]:
        """What was counted in the last so many seconds, as well as slots cover them; in steps."""
        if self._grid is None:
            self._begin(now)
        grid = self._grid
        assert grid is not None
        self._note_refusals()
        self._meet_new()
        span = grid.span(window_s, now)
        is_served = key in self._sources.partitions
        has_missed = not is_served and self._watched.has_missed(key, span.first)
        if has_missed or self._lost_to >= span.first:
            span = span._replace(is_covered=False)
        history = self._histories.get(key) or History()
        fresh = history.fresh(grid.open, self._met(key, history))
        slots = [slot for slot in history.slots if slot.number >= span.first]
        yield
        return span, (yield from summed(slots, fresh, span))

    def check_invariants(self) -> None:
        """For tests."""
        self._watched.check_invariants()
        histories = list(self._histories.values())
        assert self._bytes == sum(slot.nbytes for history in histories for slot in history.slots)
        assert len(self._oldest) == sum(len(history.slots) for history in histories)
        numbers = [[slot.number for slot in history.slots] for history in histories]
        assert all(of == sorted(set(of)) for of in numbers)
