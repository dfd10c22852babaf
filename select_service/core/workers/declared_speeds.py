"""How fast workers of one partition say that they are, and what is usual among them."""

from bisect import bisect_left, insort
from statistics import median


class DeclaredSpeeds:
    """By worker, in tokens per second, above 0."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._sorted: list[float] = []

    def put(self, worker_id: int, speed: float | None) -> None:
        """What a worker declares from now on.  None: nothing, or it has left."""
        old = self._of.pop(worker_id, None)
        if old is not None:
            del self._sorted[bisect_left(self._sorted, old)]
        if speed is not None:
            self._of[worker_id] = speed
            insort(self._sorted, speed)

    @property
    def median(self) -> float:
        """0 when nobody declares any."""
        n = len(self._sorted)
        return median(self._sorted[(n - 1) // 2 : n // 2 + 1]) if n else 0.0

    def check_invariants(self) -> None:
        """For tests."""
        assert self._sorted == sorted(self._of.values())
