"""Many ranks that are slow at the same time are not sick: the network is, or this host.

What counts is each rank's last result within one interval.
"""

from collections import deque

from select_service.core.identity import Rank

RANKS_MIN = 3
"""Fewer are not many."""


class CommonMode:
    """Of one partition.  slow: who was in its last check;  O(1) amortised"""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._last: dict[Rank, tuple[float, bool]] = {}
        self._slow: set[Rank] = set()
        self._order: deque[tuple[float, Rank]] = deque()

    def checked(self, rank: Rank, is_slow: bool, now: float) -> bool:
        """One more result; whether more than half of those that were checked are slow together."""
        self._last[rank] = (now, is_slow)
        self._order.append((now, rank))
        if is_slow:
            self._slow.add(rank)
        else:
            self._slow.discard(rank)
        self._forget(now)
        slow = len(self._slow)
        return is_slow and slow >= RANKS_MIN and 2 * slow > len(self._last)

    def slow_ranks(self) -> tuple[Rank, ...]:
        """In no order."""
        return tuple(self._slow)

    def leave(self, rank: Rank) -> None:
        """It is not here any more."""
        self._last.pop(rank, None)
        self._slow.discard(rank)

    def _forget(self, now: float) -> None:
        while self._order and now - self._order[0][0] > self._window_s:
            at, rank = self._order.popleft()
            if self._last.get(rank, (None,))[0] == at:
                self.leave(rank)

    def check_invariants(self) -> None:
        """For tests."""
        assert {rank for rank, (_, is_slow) in self._last.items() if is_slow} == self._slow
        assert {(at, rank) for rank, (at, _) in self._last.items()} <= set(self._order)
