"""Slots of about a second: where each begins and ends, and what was counted in it.

The grid is common to all partitions.  A partition has only those slots in which something was
counted, each as the places of its counts that are not 0.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.observing.counted import (
    NO_SAMPLES,
    Counted,
    Samples,
    Words,
    arrivals_of,
)

WINDOW_S_MAX = 3600
"""The longest window that can be asked for."""
SLOTS_MAX = WINDOW_S_MAX + 200
"""Of the grid; steps that come late make it coarser, and never finer than this."""
SLOT_S_MIN = 0.9
"""A slot that is shorter is not closed yet."""
HALF_S = 0.5
"""By how much a window may differ from what was asked for: slots are not cut."""
TOLERANCE_S = 1.0
"""By how much it may where a slot took longer."""
_SLOT_BYTES = 600
"""Of a slot besides its arrays' contents."""


class Slot(NamedTuple):
    """What was counted between two looks.

    number:   in the grid
    arrivals: on all ranks, and without those that only decode
    at:     uint16[n], rising, places in the array of `counted`;  by: int64[n], the differences
    prefills, decodes: samples, see `Counted.samples`
    """

    number: int
    arrivals: tuple[int, int]
    at: npt.NDArray[np.uint16]
    by: Words
    prefills: Samples
    decodes: Samples

    @property
    def nbytes(self) -> int:
        arrays = self.at, self.by, self.prefills, self.decodes
        return _SLOT_BYTES + sum(array.nbytes for array in arrays)


def slot_of(number: int, difference: Words, samples: tuple[Samples, Samples]) -> Slot:
    """difference: int64[LENGTH]"""
    at = np.flatnonzero(difference)
    prefills, decodes = (each if len(each) else NO_SAMPLES for each in samples)
    arrivals = arrivals_of(difference, False), arrivals_of(difference, True)
    return Slot(number, arrivals, at.astype(np.uint16), difference[at], prefills, decodes)


class Span(NamedTuple):
    """A window as slots cover it: those from a number on, and what has been counted since.

    is_covered: is it as long as was asked for?
    lengths_s:  float64[n] of its closed slots
    """

    first: int
    length_s: float
    is_covered: bool
    lengths_s: npt.NDArray[np.float64]


class Grid:
    """Where slots begin and end.  The one after the last end is open."""

    def __init__(self, now: float) -> None:
        """now: nothing was counted before"""
        self._bounds: deque[float] = deque([now])
        self.first = 0
        """Number of the oldest slot that is known."""

    @property
    def open(self) -> int:
        """Number of the slot in which is counted now."""
        return self.first + len(self._bounds) - 1

    def close(self, now: float) -> bool:
        """The open slot ends, the next one begins.  False: it is too short, or time went back."""
        if now - self._bounds[-1] < SLOT_S_MIN:
            return False
        self._bounds.append(now)
        while len(self._bounds) > 1 and self._is_old(now):
            self._bounds.popleft()
            self.first += 1
        return True

    def _is_old(self, now: float) -> bool:
        return len(self._bounds) > SLOTS_MAX or self._bounds[1] < now - WINDOW_S_MAX - TOLERANCE_S

    def span(self, window_s: float, now: float) -> Span:
        """The slots that cover the last so many seconds best."""
        bounds = np.array(self._bounds)
        index = int(np.searchsorted(bounds, now - window_s - HALF_S))
        index = min(index, len(bounds) - 1)
        length_s = max(0.0, now - float(bounds[index]))
        is_covered = abs(length_s - window_s) <= TOLERANCE_S
        return Span(self.first + index, length_s, is_covered, np.diff(bounds[index:]))


class History:
    """The slots of one partition."""

    def __init__(self) -> None:
        self.counted = Counted()
        self.slots: deque[Slot] = deque()
        self.seen = self.counted.now(0)
        """What the slots have of the counts."""

    def skip(self, queued: int) -> None:
        """No slot will have what was counted until now."""
        self.seen = self.counted.now(queued)
        self.counted.samples(begin_anew=True)

    def fresh(self, number: int, queued: int) -> Slot:
        """What was counted since the last slot; it stays."""
        return slot_of(
            number, self.counted.now(queued) - self.seen, self.counted.samples(begin_anew=False)
        )

    def close(self, number: int, queued: int) -> Slot | None:
        """Make a slot of what was counted since the last one; None: that is nothing."""
        counts = self.counted.now(queued)
        slot = slot_of(number, counts - self.seen, self.counted.samples(begin_anew=True))
        self.seen = counts
        if not len(slot.at):
            return None
        self.slots.append(slot)
        return slot
