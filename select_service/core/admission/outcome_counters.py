"""Counters of the outcomes of admission."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from select_service.core.duration_histogram import DurationHistogram
from select_service.core.identity import PartitionKey

AdmissionOutcome = Literal[
    "admitted",
    "busy",
    "shed",
    "queue_full",
    "queue_timeout",
    "deadline_exceeded",
    "client_gone",
    "no_rank",
]
"""Outcome of a judged request.

no_rank: the request waited, but could not be served in its turn
client_gone: the client disconnected
"""

OUTCOMES: tuple[AdmissionOutcome, ...] = get_args(AdmissionOutcome)
RefusalReason = Literal[AdmissionOutcome, "no_workers"]
"""Reason for a request without a rank; no_workers: the model and tenant have no workers."""
REFUSAL_REASONS: tuple[RefusalReason, ...] = get_args(RefusalReason)[1:]
"""All reasons, without `admitted`."""
REJECTIONS: tuple[AdmissionOutcome, ...] = (
    "busy",
    "shed",
    "queue_full",
    "queue_timeout",
    "deadline_exceeded",
)

WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the waiting time histogram, seconds; a last bucket has no bound."""


@dataclass(slots=True)
class AdmissionCounters:
    """Totals since the start.

    admitted:   requests with a rank
    other_outcomes:     every other outcome
    shed_tiers: requests refused because of their tier, by tier
    waits:      waiting times of served requests, by policy class
    missed_deadlines: requests that could not meet their deadline, by policy class
    should_count:      whether to count refusals of a partition: clients may invent partition names
    """

    admitted: int = 0
    other_outcomes: Counter[AdmissionOutcome] = field(default_factory=Counter)
    shed_tiers: Counter[str] = field(default_factory=Counter)
    waits: dict[str, DurationHistogram] = field(default_factory=dict)
    missed_deadlines: Counter[str] = field(default_factory=Counter)
    should_count: Callable[[PartitionKey], bool] = lambda _: True
    _fresh: dict[PartitionKey, Counter[RefusalReason]] = field(default_factory=dict)

    def count_refusal(self, outcome: AdmissionOutcome, key: PartitionKey) -> None:
        """Count a judged request without a rank."""
        self.other_outcomes[outcome] += 1
        self.count_unjudged_refusal(outcome, key)

    def count_unjudged_refusal(self, reason: RefusalReason, key: PartitionKey) -> None:
        """Count an unjudged request without a rank."""
        # Otherwise invented model names could fill the memory until the next read.
        if self.should_count(key):
            self._fresh.setdefault(key, Counter())[reason] += 1

    def take_refused(self) -> dict[PartitionKey, Counter[RefusalReason]]:
        """Return the refusals since the last call, by partition."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def outcome_counts(self) -> dict[str, int]:
        """Return the count of every outcome, including zeros."""
        return {o: self.admitted if o == "admitted" else self.other_outcomes[o] for o in OUTCOMES}

    @property
    def n_rejected(self) -> int:
        """Number of requests refused by admission."""
        return sum(self.other_outcomes[outcome] for outcome in REJECTIONS)

    def count_missed_deadline(self, policy_class: str) -> None:
        self.missed_deadlines[policy_class] += 1

    def record_wait(self, policy_class: str, seconds: float) -> None:
        waits = self.waits.get(policy_class)
        if waits is None:
            waits = self.waits[policy_class] = DurationHistogram(WAIT_BUCKETS_S)
        waits.add(seconds)
