"""Slots of about one second: bounds, and the counts in each slot.

All partitions share the grid. A partition stores only slots with counts, each as its non-zero
entries.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.traffic.traffic_counters import (
    NO_SAMPLES,
    PartitionTrafficCounter,
    Samples,
    Words,
    count_arrivals,
)

WINDOW_S_MAX = 3600
"""Maximum window of a query, s."""
SLOTS_MAX = WINDOW_S_MAX + 200
"""Maximum number of slots in the grid; late steps make slots longer, never shorter."""
SLOT_S_MIN = 0.9
"""Minimum length of a slot, s."""
USUAL_DEVIATION_S = 0.5
"""Usual deviation of a window from its requested length, s, since slots are not divided."""
MAX_DEVIATION_S = 1.0
"""Maximum deviation of a window with longer slots, s."""
_SLOT_BYTES = 600
"""Memory of a slot besides the contents of its arrays, bytes."""


class TrafficSlot(NamedTuple):
    """Counts between two readings.

    number: index in the grid
    arrivals: on all ranks, and without decode-only ranks
    at: uint16[n], rising, indices in the array of `counted`
    by: int64[n], differences
    prefills, decodes: samples, see `PartitionTrafficCounter.read_samples`
    """

    number: int
    arrivals: tuple[int, int]
    at: npt.NDArray[np.uint16]
    by: Words
    prefills: Samples
    decodes: Samples

    @property
    def memory_bytes(self) -> int:
        arrays = self.at, self.by, self.prefills, self.decodes
        return _SLOT_BYTES + sum(array.nbytes for array in arrays)


def make_slot(number: int, difference: Words, samples: tuple[Samples, Samples]) -> TrafficSlot:
    """Build a slot; difference: int64[LENGTH]"""
    at = np.flatnonzero(difference)
    prefills, decodes = (each if len(each) else NO_SAMPLES for each in samples)
    arrivals = count_arrivals(difference, False), count_arrivals(difference, True)
    return TrafficSlot(number, arrivals, at.astype(np.uint16), difference[at], prefills, decodes)


class WindowSpan(NamedTuple):
    """Window as covered by slots: all slots from `first` on, and the counts since.

    is_covered: whether the window has the requested length
    lengths_s: float64[n], lengths of its closed slots, s
    """

    first: int
    length_s: float
    is_covered: bool
    lengths_s: npt.NDArray[np.float64]


class SlotGrid:
    """Bounds of the slots; the slot after the last bound is open."""

    def __init__(self, now: float) -> None:
        """Create the grid; now is the time from which on counts exist."""
        self._bounds: deque[float] = deque([now])
        self.first = 0
        """Number of the oldest known slot."""

    @property
    def open_number(self) -> int:
        """Number of the open slot."""
        return self.first + len(self._bounds) - 1

    def close_slot(self, now: float) -> bool:
        """Close the open slot. Return False if the slot is too short or time went back."""
        if now - self._bounds[-1] < SLOT_S_MIN:
            return False
        self._bounds.append(now)
        # The last bound is always kept, as the open slot begins there.
        while len(self._bounds) > 1 and self._is_old(now):
            self._bounds.popleft()
            self.first += 1
        return True

    def _is_old(self, now: float) -> bool:
        return (
            len(self._bounds) > SLOTS_MAX or self._bounds[1] < now - WINDOW_S_MAX - MAX_DEVIATION_S
        )

    def find_span(self, window_s: float, now: float) -> WindowSpan:
        """Return the slots that cover the last `window_s` seconds best."""
        bounds = np.array(self._bounds)
        index = int(np.searchsorted(bounds, now - window_s - USUAL_DEVIATION_S))
        index = min(index, len(bounds) - 1)
        length_s = max(0.0, now - float(bounds[index]))
        is_covered = abs(length_s - window_s) <= MAX_DEVIATION_S
        return WindowSpan(self.first + index, length_s, is_covered, np.diff(bounds[index:]))


class SlotHistory:
    """Slots of a partition."""

    def __init__(self) -> None:
        self.counter = PartitionTrafficCounter()
        self.slots: deque[TrafficSlot] = deque()
        self.last_counts = self.counter.read_counters(0)
        """Counters already contained in slots."""

    def skip_counts(self, queued: int) -> None:
        """Ignore all counts made so far."""
        self.last_counts = self.counter.read_counters(queued)
        self.counter.read_samples(resets=True)

    def read_fresh(self, number: int, queued: int) -> TrafficSlot:
        """Return the counts since the last slot, without closing it."""
        return make_slot(
            number,
            self.counter.read_counters(queued) - self.last_counts,
            self.counter.read_samples(resets=False),
        )

    def close_slot(self, number: int, queued: int) -> TrafficSlot | None:
        """Store a slot with the counts since the last slot; None if there are none."""
        counts = self.counter.read_counters(queued)
        slot = make_slot(number, counts - self.last_counts, self.counter.read_samples(resets=True))
        self.last_counts = counts
        if not len(slot.at):
            return None
        self.slots.append(slot)
        return slot
