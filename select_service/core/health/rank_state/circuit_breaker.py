"""Circuit breaker of a rank out of rotation: single probes with growing intervals."""

from select_service.core.health.health_kinds import BreakerState
from select_service.core.health.health_rules import HealthRules


class CircuitBreaker:
    """Circuit breaker of a rank.

    passed_probes: consecutive passed probes since the breaker is half open
    """

    __slots__ = ("_opened_at", "_timeout_s", "passed_probes", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.passed_probes = 0
        self._opened_at = 0.0
        self._timeout_s = 0.0

    def open_circuit(self, now: float, rules: HealthRules) -> None:
        """Open the breaker of a rank that became unhealthy."""
        self._start_timeout(now, rules.recovery_s)

    def reopen_circuit(self, now: float, rules: HealthRules) -> None:
        """Open the breaker again after a failed probe, with a longer timeout."""
        # Exponential backoff: a rank that fails its probes for hours costs almost no requests.
        self._start_timeout(now, min(self._timeout_s * rules.backoff, rules.recovery_s_max))

    def keep_open(self) -> None:
        """Keep the breaker of a dead rank open; dead ranks are probed on a separate timer."""
        self.state, self.passed_probes = BreakerState.OPEN, 0

    def try_half_open(self, now: float) -> bool:
        """Become half open if the timeout has passed, and return whether a probe is allowed."""
        if self.state is not BreakerState.OPEN or now - self._opened_at < self._timeout_s:
            return False
        self.half_open()
        return True

    def half_open(self) -> None:
        """Become half open before the timeout, as the process accepts connections again."""
        self.state, self.passed_probes = BreakerState.HALF_OPEN, 0

    def close_circuit(self) -> None:
        """Close the breaker of a rank that is healthy again."""
        self.state, self.passed_probes = BreakerState.CLOSED, 0

    def _start_timeout(self, now: float, timeout_s: float) -> None:
        self.state, self.passed_probes = BreakerState.OPEN, 0
        self._opened_at, self._timeout_s = now, timeout_s
