"""Fleet of the overload simulation, its limits, and the controller that sheds tiers."""

from typing import NamedTuple

from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.policy_classes import QueueRules, single_class_profile
from select_service.core.selector import SelectorCore
from tests.simulation.overload_engine import Speed


class Rules(NamedTuple):
    """Limits of a run, by default none, and the policy of the selector.

    queue_frac: multiple of its batch up to which a rank with prefills has room; None means no
    queue
    queue_s: longest wait in the queue, in s
    shedding: whether a controller switches the shed tier
    """

    thresholds: BusyThresholds = BusyThresholds()
    queue_frac: float | None = None
    queue_s: float = 10.0
    is_shedding: bool = False
    policy: str = "work"

    def admission(self) -> AdmissionSettings:
        queue = None
        if self.queue_frac is not None:
            queue = QueueRules(
                single_class_profile("fcfs", self.queue_frac), timeout_s=self.queue_s
            )
        return AdmissionSettings(thresholds=self.thresholds, queue=queue)


class Fleet(NamedTuple):
    """Fleet of workers.

    dp_sizes: number of ranks of each worker
    """

    dp_sizes: tuple[int, ...] = (1, 1, 2, 2)
    speed: Speed = Speed()

    @property
    def n_ranks(self) -> int:
        return sum(self.dp_sizes)


class Controller:
    """Operator that sheds the lowest tier while too many other attempts are refused.

    Two limits and a pause between both (hysteresis) keep the switch from flapping.
    """

    WINDOW_S = 10
    HIGH, LOW = 0.15, 0.02
    """Limits of the refused share of the attempts that were not shed, over WINDOW_S."""
    CALM_S = 60
    """Seconds below LOW after which the tier may return."""

    def __init__(self, selector: SelectorCore) -> None:
        self._selector = selector
        self._sheds = False
        self._seen: list[tuple[int, int]] = []
        self._calm_s = 0

    def tick(self) -> None:
        """Update the shed tier; called once a second."""
        outcomes = self._selector.gate.tally.outcome_counts()
        refused = outcomes["busy"] + outcomes["queue_full"] + outcomes["queue_timeout"]
        self._seen.append((refused, refused + outcomes["admitted"]))
        if len(self._seen) <= self.WINDOW_S:
            return
        old = self._seen.pop(0)
        rate = (refused - old[0]) / max(1, self._seen[-1][1] - old[1])
        self._calm_s = self._calm_s + 1 if rate < self.LOW else 0
        if self._sheds and self._calm_s >= self.CALM_S:
            self._throw(None)
        elif not self._sheds and rate > self.HIGH:
            self._throw("best_effort")

    def _throw(self, tier: str | None) -> None:
        self._sheds = tier is not None
        self._selector.set_shed_tier(tier)
        self._seen.clear()
        self._calm_s = 0


OVERLOAD = 1.5
"""Offered requests, without retries, as a multiple of the capacity."""

SCENARIOS = {
    "nothing": Rules(),
    "thresholds": Rules(BusyThresholds(0.95, 8000)),
    "thresholds, shedding": Rules(BusyThresholds(0.95, 8000), is_shedding=True),
    "queue": Rules(queue_frac=2.0),
    "thresholds, queue, shedding": Rules(
        BusyThresholds(0.95, 8000), queue_frac=2.0, is_shedding=True
    ),
}
"""Limits by scenario, with thresholds for throughput.

Thresholds refuse before requests may wait. With a queue, the threshold of prefill tokens is
therefore above the load at which waiting begins: 2 * 1,024.
"""
