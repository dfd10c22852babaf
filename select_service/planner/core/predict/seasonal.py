"""What this hour of the day, and of the week, usually brings.

Two profiles over time, each an exponentially weighted mean a bin: the day holds points as they
are, the week what the day leaves over. The level is what lies above both now. A profile counts
once a whole period of it has been seen; before, the prediction is the level alone.
"""

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
BINS = 48
PROFILE_WEIGHT = 0.3
"""Of the newest period."""
LEVEL_WEIGHT = 0.5


class Profile:
    """Means over one period."""

    def __init__(self, period_s: float, interval_s: float) -> None:
        """Never more bins than points of a period, so that none stays empty."""
        self._period_s = period_s
        bins = max(1, min(BINS, int(period_s / interval_s)))
        self._means = [0.0] * bins
        self._counts = [0] * bins
        self._began: float | None = None
        self._weight = PROFILE_WEIGHT / max(1.0, period_s / bins / interval_s)

    def learn(self, at_s: float, value: float) -> None:
        if self._began is None:
            self._began = at_s
        bin_ = int(self._place(at_s)) % len(self._means)
        self._counts[bin_] += 1
        weight = max(self._weight, 1.0 / self._counts[bin_])
        self._means[bin_] += weight * (value - self._means[bin_])

    def at(self, at_s: float) -> float | None:
        """Straight lines between the middles of bins; None before a whole period, or in a gap."""
        if self._began is None or at_s - self._began < self._period_s:
            return None
        place = self._place(at_s) - 0.5
        low = int(place // 1.0) % len(self._means)
        high = (low + 1) % len(self._means)
        if not self._counts[low] or not self._counts[high]:
            return None
        part = place % 1.0
        return (1.0 - part) * self._means[low] + part * self._means[high]

    def _place(self, at_s: float) -> float:
        return at_s % self._period_s / self._period_s * len(self._means)


class Seasonal:
    """Time starts at the first point, or before it with what was skipped."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._day = Profile(DAY_S, interval_s)
        self._week = Profile(WEEK_S, interval_s)
        self._now_s = -interval_s / 2.0
        """Middle of the last window."""
        self._usual: float | None = None
        """At the last point; None: no season known then."""
        self._level: float | None = None

    def push(self, value: float) -> None:
        self._now_s += self._interval_s
        usual = self._season(self._now_s)
        above = value - (usual or 0.0)
        if self._level is None or (usual is None) is not (self._usual is None):
            self._level = above
        else:
            self._level += LEVEL_WEIGHT * (above - self._level)
        self._usual = usual
        day = self._day.at(self._now_s)
        if day is not None:
            self._week.learn(self._now_s, value - day)
        self._day.learn(self._now_s, value)

    def skip(self) -> None:
        """Time goes on."""
        self._now_s += self._interval_s

    def ahead(self, steps: float) -> float | None:
        if self._level is None:
            return None
        if self._usual is None:
            return self._level
        then = self._season(self._now_s + steps * self._interval_s)
        return self._level + (self._usual if then is None else then)

    def _season(self, at_s: float) -> float | None:
        day = self._day.at(at_s)
        if day is None:
            return None
        return day + (self._week.at(at_s) or 0.0)
