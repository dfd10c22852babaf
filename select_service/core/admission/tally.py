"""What became of the requests that were judged, as plain numbers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from select_service.core.histogram import Histogram
from select_service.core.identity import PartitionKey

Outcome = Literal[
    "admitted", "busy", "shed", "queue_full", "queue_timeout", "client_gone", "no_rank"
]
"""no_rank: it waited, and could not be served when its turn came; client_gone: its client left."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Reason = Literal[Outcome, "no_workers"]
"""Why a request for a rank got none; no_workers: nobody serves its model and tenant."""
REJECTIONS: tuple[Outcome, ...] = ("busy", "shed", "queue_full", "queue_timeout")

WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of waiting times; a last bucket has no bound."""


@dataclass(slots=True)
class AdmissionTally:
    """Totals since the start.

    admitted:   requests that got a rank
    others:     every other outcome
    shed_tiers: requests refused because of their tier, by its name
    waits:      of requests that got a rank after waiting, by policy class
    keeps:      whether refusals of a partition are kept until they are taken: clients make up names
    """

    admitted: int = 0
    others: Counter[Outcome] = field(default_factory=Counter)
    shed_tiers: Counter[str] = field(default_factory=Counter)
    waits: dict[str, Histogram] = field(default_factory=dict)
    keeps: Callable[[PartitionKey], bool] = lambda _: True
    _fresh: dict[PartitionKey, Counter[Reason]] = field(default_factory=dict)

    def refused(self, outcome: Outcome, key: PartitionKey) -> None:
        """A request that was judged for that partition has got no rank."""
        self.others[outcome] += 1
        self.turned_away(outcome, key)

    def turned_away(self, reason: Reason, key: PartitionKey) -> None:
        """As `refused`, of one that was not judged."""
        if self.keeps(key):
            self._fresh.setdefault(key, Counter())[reason] += 1

    def take_refused(self) -> dict[PartitionKey, Counter[Reason]]:
        """Those since the last call, by partition."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def outcomes(self) -> dict[str, int]:
        """Every outcome has a number, also when it is 0."""
        return {o: self.admitted if o == "admitted" else self.others[o] for o in OUTCOMES}

    @property
    def rejected(self) -> int:
        """Requests that admission refused."""
        return sum(self.others[outcome] for outcome in REJECTIONS)

    def waited(self, policy_class: str, seconds: float) -> None:
        waits = self.waits.get(policy_class)
        if waits is None:
            waits = self.waits[policy_class] = Histogram(WAIT_BUCKETS_S)
        waits.add(seconds)
