"""How long checks took, by worker and by what they were for."""

from select_service.core.health.checked import CheckOrder
from select_service.core.histogram import Histogram

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
OWN_MAX = 512
"""Workers with numbers of their own: the first ones, each for as long as it is there."""
CANARY, PROBE = "canary", "probe"


class CheckTimes:
    """Of a check with all its attempts.  What others than the first workers took is summed."""

    def __init__(self) -> None:
        self.own: dict[int, dict[str, Histogram]] = {}
        self.others: dict[str, Histogram] = {}
        self._begun: dict[int, float] = {}
        """By the number of the check; those in flight."""

    def joined(self, worker_id: int) -> None:
        """A worker that may be new."""
        if len(self.own) < OWN_MAX:
            self.own.setdefault(worker_id, {})

    def left(self, worker_id: int) -> None:
        """It has gone."""
        self.own.pop(worker_id, None)

    def began(self, order: CheckOrder, now: float) -> None:
        """Its first request is sent now."""
        self._begun[order.number] = now

    def ended(self, order: CheckOrder, now: float) -> None:
        """It is known what came of it."""
        begun = self._begun.pop(order.number, now)
        by_type = self.own.get(order.rank.worker_id, self.others)
        name = PROBE if order.is_probe else CANARY
        if name not in by_type:
            by_type[name] = Histogram(BOUNDS_S)
        by_type[name].add(now - begun)
