"""How fast the ranks of one thread may ask their engines where they are.

A question takes a connection of its own, and after a network fault all ranks want to ask at once.
"""

ASKS_PER_S = 50.0
ASKS_AT_ONCE = 50
"""May follow one another immediately when nobody has asked for a while."""


class AskPace:
    """A bucket of permits that fills with time: monotonic seconds.  Belongs to one thread."""

    def __init__(self) -> None:
        self._full_at = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until the next permit; 0 when one is there."""
        permits = ASKS_AT_ONCE - max(0.0, self._full_at - now) * ASKS_PER_S
        return max(0.0, 1.0 - permits) / ASKS_PER_S

    def take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + 1.0 / ASKS_PER_S
