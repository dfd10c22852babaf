"""Health record of a rank."""

from dataclasses import dataclass, field

from select_service.core.health.health_kinds import (
    WRONG_ANSWERS,
    BreakerState,
    CheckKind,
    RankHealthState,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.rank_state.circuit_breaker import CircuitBreaker
from select_service.core.health.rank_state.latency_baseline import LatencyBaseline
from select_service.core.identity import Rank

SUSPICIOUS_WEIGHT = 0.5
WITHHELD_WEIGHT_MIN = 1.0 / 64.0
"""Smallest weight of a rank that only the ejection limit keeps in rotation."""


@dataclass(slots=True)
class HealthRecord:
    """Health of a rank; written by `PartitionHealth` alone.

    order: registration number within the partition
    is_spare: checked, but without requests until the rank replaces a failed rank
    failures: number of consecutive failing checks
    silent_checks: number of consecutive failing checks without any answer
    reservations: latest known number of reservations on the rank
    is_drained_by_operator: draining on request of an operator
    unhealthy_since: time when the rank became unhealthy
    draining_since: time when the rank began to drain
    probed_at: time of the latest probe of a dead rank, or of its death
    connection_tried_at, connection_pause_s: time of the latest attempt to connect, and time from
        it to the next attempt
    reported_at: times of client-reported failures within the window
    published_weight: latest weight that was published
    """

    rank: Rank
    order: int
    is_spare: bool = False
    state: RankHealthState = RankHealthState.HEALTHY
    failures: int = 0
    silent_checks: int = 0
    cause: CheckKind | None = None
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    baseline: LatencyBaseline = field(default_factory=LatencyBaseline)
    reservations: int = 0
    is_drained_by_operator: bool = False
    unhealthy_since: float = 0.0
    draining_since: float = 0.0
    probed_at: float = 0.0
    recovered_at: float | None = None
    connection_tried_at: float = 0.0
    connection_pause_s: float = 0.0
    reported_at: list[float] = field(default_factory=list)
    published_weight: float = 1.0

    def compute_weight(self, now: float, rules: HealthRules) -> float:
        """Return the divisor of the rank's cost; 0 excludes the rank from the candidates."""
        if self.is_spare or not self.state.is_serving:
            return 0.0
        if self.state is RankHealthState.SUSPICIOUS:
            return self._suspicious_weight(rules)
        if self.recovered_at is None or rules.slow_start_s <= 0.0:
            return 1.0
        # Slow start: the weight grows linearly, so that a cold cache is not flooded with requests.
        first, age = rules.slow_start_weight, now - self.recovered_at
        return min(1.0, first + (1.0 - first) * age / rules.slow_start_s)

    def _suspicious_weight(self, rules: HealthRules) -> float:
        """Return the weight of a suspicious rank, halved by each failure while the ejection limit
        keeps the rank in rotation.
        """
        withheld = self.failures - rules.failures
        # A slow rank still answers, and the last rank of a partition may be a slow one.
        if withheld <= 0 or self.cause is CheckKind.LATENCY_SPIKE:
            return SUSPICIOUS_WEIGHT
        return max(SUSPICIOUS_WEIGHT * 0.5**withheld, WITHHELD_WEIGHT_MIN)

    @property
    def out_since(self) -> float | None:
        """Time since which the rank is out of rotation; None while it serves."""
        if self.state.is_serving:
            return None
        return self.draining_since if self.is_drained_by_operator else self.unhealthy_since

    @property
    def awaits_connection(self) -> bool:
        """Whether a connection would be worth a probe before the breaker's own time."""
        is_idle = self.breaker.state is BreakerState.OPEN and not self.breaker.passed_probes
        return self.cause is CheckKind.CONNECT and is_idle

    def passes_needed(self, rules: HealthRules) -> int:
        """Return the number of consecutive passed probes that make the rank healthy."""
        if self.state is RankHealthState.DEAD:
            return rules.dead_passes
        return rules.passes_after_wrong_answers if self.cause in WRONG_ANSWERS else 1

    def set_cause(self, kind: CheckKind) -> None:
        """Set the cause of a failing check; a wrong answer is never replaced by another cause."""
        # Wrong answers need more passes to recover; a later timeout must not lower that bar.
        # Reports do not name their cause: a refused connection explains them.
        is_explained = kind is CheckKind.PASSIVE and self.cause is CheckKind.CONNECT
        if self.cause not in WRONG_ANSWERS and not is_explained:
            self.cause = kind

    def count_reported_failure(self, now: float, rules: HealthRules) -> int:
        """Add a reported failure and return the number of failures within the window."""
        # Only recent reports count: a rank with rare failures over hours must not add them up.
        window = rules.passive_window_s
        self.reported_at = [at for at in self.reported_at if now - at <= window]
        self.reported_at.append(now)
        return len(self.reported_at)
