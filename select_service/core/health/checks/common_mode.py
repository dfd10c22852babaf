"""Detection of common-mode slowness: when many ranks are slow at once, the network or host is to
blame.

The latest result of each rank within the window counts.
"""

from collections import deque

from select_service.core.identity import Rank

RANKS_MIN = 3
"""Minimum number of slow ranks for common-mode slowness."""


class CommonModeDetector:
    """Common-mode detector of a partition; O(1) amortised per result."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._last: dict[Rank, tuple[float, bool]] = {}
        self._slow: set[Rank] = set()
        self._order: deque[tuple[float, Rank]] = deque()

    def add_result(self, rank: Rank, is_slow: bool, now: float) -> bool:
        """Add a result; return whether more than half of the checked ranks are slow at the same
        time.
        """
        self._last[rank] = (now, is_slow)
        self._order.append((now, rank))
        if is_slow:
            self._slow.add(rank)
        else:
            self._slow.discard(rank)
        self._drop_expired(now)
        slow = len(self._slow)
        # A fast rank never triggers common mode, whatever the others do.
        return is_slow and slow >= RANKS_MIN and 2 * slow > len(self._last)

    def slow_ranks(self) -> tuple[Rank, ...]:
        """Return the ranks with a slow latest check, in arbitrary order."""
        return tuple(self._slow)

    def drop_rank(self, rank: Rank) -> None:
        """Remove a rank."""
        self._last.pop(rank, None)
        self._slow.discard(rank)

    def _drop_expired(self, now: float) -> None:
        while self._order and now - self._order[0][0] > self._window_s:
            at, rank = self._order.popleft()
            # A rank checked again since has a newer entry in the queue; only the newest removes it.
            if self._last.get(rank, (None,))[0] == at:
                self.drop_rank(rank)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert {rank for rank, (_, is_slow) in self._last.items() if is_slow} == self._slow
        assert {(at, rank) for rank, (at, _) in self._last.items()} <= set(self._order)
