"""Circuit breaker of a shared cache: without it, every request would wait for a hanging cache."""

FAILURES_MAX = 8
"""Consecutive failed or late look-ups after which the breaker opens."""
OPEN_S = 5.0
"""Time without look-ups; a single one then decides."""


class SourceBreaker:
    """Circuit breaker of a shared cache."""

    def __init__(self) -> None:
        self.failures = 0
        """Consecutive failed or late look-ups."""
        self._next_trial = 0.0

    @property
    def is_open(self) -> bool:
        return self.failures >= FAILURES_MAX

    def admit(self, now: float) -> bool:
        """Return whether a look-up may begin; while open, one in OPEN_S may."""
        if self.is_open:
            if now < self._next_trial:
                return False
            # Moved on at once, so that requests of the same moment make one trial together.
            self._next_trial = now + OPEN_S
        return True

    def record_success(self) -> None:
        self.failures = 0

    def record_failure(self, now: float) -> None:
        self.failures += 1
        if self.failures == FAILURES_MAX:
            self._next_trial = now + OPEN_S
