"""Level and trend, followed by a Kalman filter.

State x = [level, trend], F = [[1, 1], [0, 1]], H = [1, 0], Q = diag(q_level, q_trend), R = r.
The first point sets x = [point, 0] with P = 1000 I; each further point is a step and an update.
The 2x2 products are written out: P is symmetric, so three numbers suffice.
"""

from typing import NamedTuple

VARIANCE_FIRST = 1000.0


class KalmanNoise(NamedTuple):
    """Variances of level and trend from point to point, and of a reading."""

    level: float
    trend: float
    reading: float


class Kalman:
    """Filter with predictions that do not change its state."""

    def __init__(self, noise: KalmanNoise) -> None:
        self._noise = noise
        self._level: float | None = None
        self._trend = 0.0
        self._p = (VARIANCE_FIRST, 0.0, VARIANCE_FIRST)
        """Covariances: level-level, level-trend, trend-trend."""

    def push(self, value: float) -> None:
        """Add a point: a step and an update."""
        if self._level is None:
            self._level = value
            return
        level, trend = self._level + self._trend, self._trend
        level_level, level_trend, trend_trend = self._p
        level_level += 2.0 * level_trend + trend_trend + self._noise.level
        level_trend += trend_trend
        trend_trend += self._noise.trend
        gain = level_level / (level_level + self._noise.reading)
        trend_gain = level_trend / (level_level + self._noise.reading)
        self._level = level + gain * (value - level)
        self._trend = trend + trend_gain * (value - level)
        self._p = (
            (1.0 - gain) * level_level,
            (1.0 - gain) * level_trend,
            trend_trend - trend_gain * level_trend,
        )

    def skip(self) -> None:
        """Ignore the gap: without a point there is no step."""

    def ahead(self, steps: float) -> float | None:
        """Return level and trend so many steps ahead, or None before the first point."""
        return None if self._level is None else self._level + steps * self._trend
