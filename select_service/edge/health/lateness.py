"""How late the event loop of this process is, and how much time it has lost.

While the loop stands still, nothing that it measures is the engine's.  And where every turn comes a
little late, the host has more to do than it can: engines on it wait for their turns as well.
"""

from typing import NamedTuple

STEP_S = 0.02
"""Between two looks."""
LATE_S = 0.1
"""Later than this is late."""
TIMER_S = 0.002
"""So late are timers of an idle host."""


class Moment(NamedTuple):
    """What had been seen until then: time lost, and how late all turns were together."""

    lost_s: float
    turns: int
    late_s: float


class Lateness:
    """`now`: seconds of the monotonic clock, never going back."""

    def __init__(self, now: float) -> None:
        self._expected = now + STEP_S
        self._lost_s = 0.0
        self._turns = 0
        self._late_s = 0.0

    def look(self, now: float) -> None:
        """The loop has come to it again, as it should every STEP_S."""
        self._lost_s, self._turns, self._late_s = self.moment(now)
        self._expected = now + STEP_S

    def is_late(self, now: float) -> bool:
        """Should it have looked long ago?"""
        return now - self._expected > LATE_S

    def lost_s(self, now: float) -> float:
        """Seconds by which the loop was late, all together: it grows when something stood still."""
        return self._lost_s + (now - self._expected if self.is_late(now) else 0.0)

    def moment(self, now: float) -> Moment:
        """As if it looked now; before its time there is nothing to see."""
        late_s = now - self._expected
        if late_s < 0.0:
            return Moment(self._lost_s, self._turns, self._late_s)
        return Moment(self.lost_s(now), self._turns + 1, self._late_s + max(0.0, late_s - TIMER_S))

    def turn_s(self, since: Moment, now: float) -> float:
        """By how much a turn has come late since then, in the mean."""
        until = self.moment(now)
        return (until.late_s - since.late_s) / max(1, until.turns - since.turns)
