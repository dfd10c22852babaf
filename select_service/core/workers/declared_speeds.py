"""Declared speeds of the workers of a partition, and their median."""

from bisect import bisect_left, insort
from statistics import median


class DeclaredSpeeds:
    """Speeds by worker, in tokens/s, above 0."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._sorted: list[float] = []

    def set_speed(self, worker_id: int, speed: float | None) -> None:
        """Set the declared speed of a worker; None removes the worker."""
        old = self._of.pop(worker_id, None)
        if old is not None:
            del self._sorted[bisect_left(self._sorted, old)]
        if speed is not None:
            self._of[worker_id] = speed
            # Kept sorted, so that the median is O(1) for every registration of a large fleet.
            insort(self._sorted, speed)

    @property
    def median_speed(self) -> float:
        """Median of the declared speeds; 0 without any."""
        n = len(self._sorted)
        return median(self._sorted[(n - 1) // 2 : n // 2 + 1]) if n else 0.0

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert self._sorted == sorted(self._of.values())
