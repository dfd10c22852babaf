"""When a rank that is out of rotation may be asked again: one probe at a time, later every time."""

from select_service.core.health.kinds import BreakerState
from select_service.core.health.rules import HealthRules


class Breaker:
    """passes: of probes in a row since it is half open."""

    __slots__ = ("_opened_at", "_timeout_s", "passes", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.passes = 0
        self._opened_at = 0.0
        self._timeout_s = 0.0

    def open(self, now: float, rules: HealthRules) -> None:
        """The rank has become unhealthy."""
        self._begin(now, rules.recovery_s)

    def open_again(self, now: float, rules: HealthRules) -> None:
        """A probe failed."""
        self._begin(now, min(self._timeout_s * rules.backoff, rules.recovery_s_max))

    def stay_open(self) -> None:
        """The rank is dead: probes come by another clock."""
        self.state, self.passes = BreakerState.OPEN, 0

    def half_open(self, now: float) -> bool:
        """Let a probe through if it is time; whether it is."""
        if self.state is not BreakerState.OPEN or now - self._opened_at < self._timeout_s:
            return False
        self.state, self.passes = BreakerState.HALF_OPEN, 0
        return True

    def close(self) -> None:
        """The rank is healthy."""
        self.state, self.passes = BreakerState.CLOSED, 0

    def _begin(self, now: float, timeout_s: float) -> None:
        self.state, self.passes = BreakerState.OPEN, 0
        self._opened_at, self._timeout_s = now, timeout_s
