"""Timers of the listeners of a thread, at a cost that does not grow with the other listeners.

A listener has at most one time. Setting an earlier time is O(log n), and a later one O(1): then the
earlier entry stays in the heap and is moved when it is due.
"""

import heapq
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class ListenerTimers(Generic[T]):
    """Times by listener, in monotonic seconds.  Belongs to one thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._entry: dict[T, tuple[float, int]] = {}
        """Time and number of the valid heap entry per owner."""
        self._due: dict[T, float] = {}
        self._numbers = count()

    def set_time(self, owner: T, due: float | None) -> None:
        """Call `owner` at `due` and at no other time; None cancels."""
        if due is None:
            self.discard(owner)
            return
        self._due[owner] = due
        entry = self._entry.get(owner)
        if entry is None or due < entry[0]:
            self._push_entry(owner, due)

    def discard(self, owner: T) -> None:
        self._due.pop(owner, None)
        self._entry.pop(owner, None)

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until a listener may be due; None without any."""
        heap = self._heap
        while heap and self._entry.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        return max(0.0, heap[0][0] - now) if heap else None

    def take_due(self, now: float, at_most: int) -> list[T]:
        """Remove and return some due owners, the earliest first."""
        taken: list[T] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < at_most:
            due, number, owner = heapq.heappop(self._heap)
            # An outdated entry: the owner got an earlier time, or none.
            if self._entry.get(owner) != (due, number):
                continue
            if self._due[owner] > due:
                self._push_entry(owner, self._due[owner])
            else:
                self.discard(owner)
                taken.append(owner)
        return taken

    def _push_entry(self, owner: T, due: float) -> None:
        number = next(self._numbers)
        self._entry[owner] = (due, number)
        heapq.heappush(self._heap, (due, number, owner))

    def check_invariants(self) -> None:
        assert self._entry.keys() == self._due.keys()
        valid = {
            owner: (due, n) for due, n, owner in self._heap if self._entry.get(owner) == (due, n)
        }
        assert valid == self._entry
        assert all(self._entry[owner][0] <= due for owner, due in self._due.items())
