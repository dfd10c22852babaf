"""How late the event loop of this process is, and how much time it has lost.

While the loop stands still, nothing that it measures is the engine's.
"""

STEP_S = 0.02
"""Between two looks."""
LATE_S = 0.1
"""Later than this is late."""


class Lateness:
    """`now`: seconds of the monotonic clock, never going back."""

    def __init__(self, now: float) -> None:
        self._expected = now + STEP_S
        self._lost_s = 0.0

    def look(self, now: float) -> None:
        """The loop has come to it again, as it should every STEP_S."""
        self._lost_s = self.lost_s(now)
        self._expected = now + STEP_S

    def is_late(self, now: float) -> bool:
        """Should it have looked long ago?"""
        return now - self._expected > LATE_S

    def lost_s(self, now: float) -> float:
        """Seconds by which the loop was late, all together: it grows when something stood still."""
        return self._lost_s + (now - self._expected if self.is_late(now) else 0.0)
