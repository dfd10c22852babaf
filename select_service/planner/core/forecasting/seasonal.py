"""Seasonal predictor: the usual value of this hour of the day and of the week.

Two profiles over time, each an exponentially weighted mean a bin: the day holds the points, the
week the rest above the day. The level is the present rest above both. A profile counts after a
whole period; before, the prediction is the level alone.
"""

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
BINS = 48
PROFILE_WEIGHT = 0.3
"""Weight of the newest period."""
LEVEL_WEIGHT = 0.5


class SeasonalProfile:
    """Profile of means over a period."""

    def __init__(self, period_s: float, interval_s: float) -> None:
        """Create the bins, at most one a point of a period, so that none stays empty."""
        self._period_s = period_s
        bins = max(1, min(BINS, int(period_s / interval_s)))
        self._means = [0.0] * bins
        self._counts = [0] * bins
        self._began: float | None = None
        # A bin gets several points a period: the weight of a whole period is spread over them.
        self._weight = PROFILE_WEIGHT / max(1.0, period_s / bins / interval_s)

    def learn_point(self, at_s: float, value: float) -> None:
        """Add a point to its bin."""
        if self._began is None:
            self._began = at_s
        bin_ = int(self._position_in_period(at_s)) % len(self._means)
        self._counts[bin_] += 1
        # A plain mean at first, so that the initial 0 does not fade slowly into the profile.
        weight = max(self._weight, 1.0 / self._counts[bin_])
        self._means[bin_] += weight * (value - self._means[bin_])

    def value_at(self, at_s: float) -> float | None:
        """Interpolate between the middles of bins; None before a whole period, or in a gap."""
        if self._began is None or at_s - self._began < self._period_s:
            return None
        place = self._position_in_period(at_s) - 0.5
        low = int(place // 1.0) % len(self._means)
        high = (low + 1) % len(self._means)
        if not self._counts[low] or not self._counts[high]:
            return None
        part = place % 1.0
        return (1.0 - part) * self._means[low] + part * self._means[high]

    def _position_in_period(self, at_s: float) -> float:
        """Return the position in the period, in bins."""
        return at_s % self._period_s / self._period_s * len(self._means)


class Seasonal:
    """Seasonal model. Time starts at the first point, or with the first gap."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._day = SeasonalProfile(DAY_S, interval_s)
        self._week = SeasonalProfile(WEEK_S, interval_s)
        self._now_s = -interval_s / 2.0
        """Middle of the last window, seconds."""
        self._usual: float | None = None
        """Seasonal value at the last point; None if unknown."""
        self._level: float | None = None

    def push(self, value: float) -> None:
        """Add a point to the level and both profiles."""
        self._now_s += self._interval_s
        usual = self._seasonal_value(self._now_s)
        above = value - (usual or 0.0)
        # When a season becomes known the level changes its meaning from absolute to relative.
        if self._level is None or (usual is None) is not (self._usual is None):
            self._level = above
        else:
            self._level += LEVEL_WEIGHT * (above - self._level)
        self._usual = usual
        # The week learns only what the day leaves over, else both would hold the daily pattern.
        day = self._day.value_at(self._now_s)
        if day is not None:
            self._week.learn_point(self._now_s, value - day)
        self._day.learn_point(self._now_s, value)

    def skip(self) -> None:
        """Advance the time."""
        self._now_s += self._interval_s

    def ahead(self, steps: float) -> float | None:
        """Return the value so many steps ahead, or None before the first point."""
        if self._level is None:
            return None
        if self._usual is None:
            return self._level
        then = self._seasonal_value(self._now_s + steps * self._interval_s)
        return self._level + (self._usual if then is None else then)

    def _seasonal_value(self, at_s: float) -> float | None:
        """Return the seasonal value at this time, or None."""
        day = self._day.value_at(at_s)
        if day is None:
            return None
        return day + (self._week.value_at(at_s) or 0.0)
