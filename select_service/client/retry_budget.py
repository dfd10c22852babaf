"""How many repeats there may be among all calls of a client.  PURE.

Without a bound of this kind selectors that are slow would get every request several times, and be
slower for it.
"""

REPEATS_PER_CALL = 0.1
REPEATS_PER_S = 10.0
REPEATS_SAVED_MAX = 200.0
"""A selector that dies breaks all calls that are under way there at once."""


class RetryBudget:
    """A bucket of repeats; calls and time fill it."""

    def __init__(self) -> None:
        self._saved = REPEATS_SAVED_MAX
        self._filled_at = 0.0

    def earn(self) -> None:
        """A call begins."""
        self._saved = min(REPEATS_SAVED_MAX, self._saved + REPEATS_PER_CALL)

    def spend(self, now: float) -> bool:
        """Take one repeat; False: there is none.  now: seconds of any clock that goes forward"""
        passed_s, self._filled_at = now - self._filled_at, now
        self._saved = min(REPEATS_SAVED_MAX, self._saved + passed_s * REPEATS_PER_S)
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
