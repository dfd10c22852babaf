"""Durations of checks, by worker and purpose."""

from select_service.core.duration_histogram import DurationHistogram
from select_service.core.health.checks.check_state import CheckOrder

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
OWN_MAX = 512
"""Maximum number of workers with separate histograms: the first ones, until they leave."""
CANARY, PROBE = "canary", "probe"


class CheckTimes:
    """Histograms of check durations including all attempts; further workers share one set."""

    def __init__(self) -> None:
        self.own: dict[int, dict[str, DurationHistogram]] = {}
        self.others: dict[str, DurationHistogram] = {}
        self._begun: dict[int, float] = {}
        """Start times of checks in flight, by check number."""

    def add_worker(self, worker_id: int) -> None:
        """Add a worker, unless already present or above the limit."""
        if len(self.own) < OWN_MAX:
            self.own.setdefault(worker_id, {})

    def remove_worker(self, worker_id: int) -> None:
        """Remove a worker."""
        self.own.pop(worker_id, None)

    def start_timer(self, order: CheckOrder, now: float) -> None:
        """Start the timer before the first request of a check."""
        self._begun[order.number] = now

    def stop_timer(self, order: CheckOrder, now: float) -> None:
        """Stop the timer and record the duration."""
        begun = self._begun.pop(order.number, now)
        by_type = self.own.get(order.rank.worker_id, self.others)
        name = PROBE if order.is_probe else CANARY
        if name not in by_type:
            by_type[name] = DurationHistogram(BOUNDS_S)
        by_type[name].add(now - begun)
