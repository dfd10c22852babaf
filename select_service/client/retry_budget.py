"""Budget of repeats over all calls of a client.  PURE.

Without a budget slow selectors would receive each request several times and become slower.
"""

REPEATS_PER_CALL = 0.1
REPEATS_PER_S = 10.0
REPEATS_SAVED_MAX = 200.0
"""Limit of saved repeats: a selector that dies breaks all its calls at once."""


class RetryBudget:
    """Token bucket of repeats, filled by calls and by time."""

    def __init__(self) -> None:
        self._saved = REPEATS_SAVED_MAX
        self._filled_at = 0.0

    def add_call(self) -> None:
        """Add the share of a new call."""
        self._saved = min(REPEATS_SAVED_MAX, self._saved + REPEATS_PER_CALL)

    def take_repeat(self, now: float) -> bool:
        """Take one repeat and return whether one was left.

        now: seconds of any monotonic clock
        """
        passed_s, self._filled_at = now - self._filled_at, now
        self._saved = min(REPEATS_SAVED_MAX, self._saved + passed_s * REPEATS_PER_S)
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
