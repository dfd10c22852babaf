"""Delay of the event loop of this process, and the total time lost.

While the loop is stalled, measured times say nothing about an engine.  If every iteration is a
little late, the host is overloaded, and engines on the same host wait as well.
"""

from typing import NamedTuple

MEASURE_INTERVAL_S = 0.02
"""Interval of measurements, in seconds."""
STALLED_S = 0.1
"""Delay above which the loop counts as stalled, in seconds."""
TIMER_S = 0.002
"""Timer delay of an idle host, in seconds."""


class LagTotals(NamedTuple):
    """Totals up to a moment: time lost, number of iterations, sum of their delays."""

    lost_s: float
    turns: int
    late_s: float


class LoopLag:
    """Loop delay meter.

    All methods take `now`: monotonic clock, seconds.
    """

    def __init__(self, now: float) -> None:
        self._expected = now + MEASURE_INTERVAL_S
        self._lost_s = 0.0
        self._turns = 0
        self._late_s = 0.0

    def measure(self, now: float) -> None:
        """Record that the loop reached this call, which is expected every MEASURE_INTERVAL_S."""
        self._lost_s, self._turns, self._late_s = self.totals_at(now)
        self._expected = now + MEASURE_INTERVAL_S

    def is_stalled(self, now: float) -> bool:
        """Return whether the expected measurement is overdue by more than STALLED_S."""
        return now - self._expected > STALLED_S

    def lost_seconds(self, now: float) -> float:
        """Return the total seconds of stalls; the value grows during a stall."""
        return self._lost_s + (now - self._expected if self.is_stalled(now) else 0.0)

    def totals_at(self, now: float) -> LagTotals:
        """Return the totals as if measured now; unchanged if no measurement is due yet."""
        late_s = now - self._expected
        if late_s < 0.0:
            return LagTotals(self._lost_s, self._turns, self._late_s)
        # Timers of an idle host are late by TIMER_S too; only the excess indicates load.
        return LagTotals(
            self.lost_seconds(now), self._turns + 1, self._late_s + max(0.0, late_s - TIMER_S)
        )

    def mean_delay(self, since: LagTotals, now: float) -> float:
        """Return the mean delay of an iteration since a moment, in seconds."""
        until = self.totals_at(now)
        return (until.late_s - since.late_s) / max(1, until.turns - since.turns)
