"""What is known of the health of one rank."""

from dataclasses import dataclass, field

from select_service.core.health.baseline import Baseline
from select_service.core.health.breaker import Breaker
from select_service.core.health.kinds import WRONG_ANSWERS, Kind, State
from select_service.core.health.rules import HealthRules
from select_service.core.identity import Rank

SUSPICIOUS_WEIGHT = 0.5


@dataclass(slots=True)
class HealthRecord:
    """Written by `PartitionHealth` alone.

    order:        of registration, in its partition
    is_spare:     checked, but without requests until it takes the place of another
    failures:     failing checks in a row
    reservations: on the rank, as it was told last
    by_operator:  draining because somebody asked for it
    out_since:    when it became unhealthy;  draining_since: when it began to drain
    probed_at:    when a dead rank was last asked, or died
    reported:     when failures were reported, within the window
    told_weight:  the last one that was told
    """

    rank: Rank
    order: int
    is_spare: bool = False
    state: State = State.HEALTHY
    failures: int = 0
    cause: Kind | None = None
    breaker: Breaker = field(default_factory=Breaker)
    baseline: Baseline = field(default_factory=Baseline)
    reservations: int = 0
    by_operator: bool = False
    out_since: float = 0.0
    draining_since: float = 0.0
    probed_at: float = 0.0
    recovered_at: float | None = None
    reported: list[float] = field(default_factory=list)
    told_weight: float = 1.0

    def weight(self, now: float, rules: HealthRules) -> float:
        """By which its cost is divided; 0: no candidate."""
        if self.is_spare or not self.state.serves:
            return 0.0
        if self.state is State.SUSPICIOUS:
            return SUSPICIOUS_WEIGHT
        if self.recovered_at is None or rules.slow_start_s <= 0.0:
            return 1.0
        first, age = rules.slow_start_weight, now - self.recovered_at
        return min(1.0, first + (1.0 - first) * age / rules.slow_start_s)

    def passes_needed(self, rules: HealthRules) -> int:
        """Of probes in a row, to be healthy again."""
        if self.state is State.DEAD:
            return rules.dead_passes
        return rules.passes_after_wrong_answers if self.cause in WRONG_ANSWERS else 1

    def blame(self, kind: Kind) -> None:
        """A failing check while it serves: the latest kind counts, a wrong answer is kept."""
        if self.cause not in WRONG_ANSWERS:
            self.cause = kind

    def reported_failures(self, now: float, rules: HealthRules) -> int:
        """One more reported failure; how many there are now within the window."""
        window = rules.passive_window_s
        self.reported = [at for at in self.reported if now - at <= window]
        self.reported.append(now)
        return len(self.reported)
