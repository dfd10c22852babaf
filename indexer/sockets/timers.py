"""When the listeners of one thread want to be called, at a cost that does not grow with the others.

A listener has at most one time. Setting it anew is O(log n) when it comes earlier, and O(1) when it
comes later: then the earlier entry stays in the heap and is put off when it is due.
"""

import heapq
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Monotonic seconds by listener.  Belongs to one thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._entry: dict[T, tuple[float, int]] = {}
        """Of the one entry in the heap that counts: its time and its number."""
        self._due: dict[T, float] = {}
        self._numbers = count()

    def set(self, owner: T, due: float | None) -> None:
        """Call `owner` at `due`, and no more at any other time; None: not at all."""
        if due is None:
            self.discard(owner)
            return
        self._due[owner] = due
        entry = self._entry.get(owner)
        if entry is None or due < entry[0]:
            self._push(owner, due)

    def discard(self, owner: T) -> None:
        self._due.pop(owner, None)
        self._entry.pop(owner, None)

    def patience(self, now: float) -> float | None:
        """Seconds until somebody may be due; None when nobody waits for anything."""
        self._drop_void()
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def take_due(self, now: float, at_most: int) -> list[T]:
        """Some whose time has come, the earliest first; they have none any more."""
        taken: list[T] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < at_most:
            due, number, owner = heapq.heappop(self._heap)
            if self._entry.get(owner) != (due, number):
                continue
            if self._due[owner] > now:
                self._push(owner, self._due[owner])
            else:
                self.discard(owner)
                taken.append(owner)
        return taken

    def _push(self, owner: T, due: float) -> None:
        number = next(self._numbers)
        self._entry[owner] = (due, number)
        heapq.heappush(self._heap, (due, number, owner))

    def _drop_void(self) -> None:
        while self._heap and self._entry.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)

    def check_invariants(self) -> None:
        assert self._entry.keys() == self._due.keys()
        valid = {
            owner: (due, n) for due, n, owner in self._heap if self._entry.get(owner) == (due, n)
        }
        assert valid == self._entry
        assert all(self._entry[owner][0] <= due for owner, due in self._due.items())
