"""Excess of demand over its plan: the margin that a quantile adds to a forecast."""

from collections import deque
from math import floor, sqrt
from statistics import fmean, pvariance
from typing import NamedTuple

RATIOS = 50
RATIOS_MIN = 5
ASSUMED_ACCURATE_WINDOWS = 10
"""Number of assumed accurate windows: a few real windows are weak evidence for a quantile."""
FACTOR_MAX = 2.0


class WindowComparison(NamedTuple):
    """Comparison of a window.

    ratio:  demand by plan
    chance: variance of the ratio by chance alone
    own:    whether the predictor had enough points; before, it repeats the last point
    """

    ratio: float
    chance: float
    own: bool


class ForecastErrorQuantile:
    """Comparison of demand with its plan, however far ahead the plan was made.

    The plan of a window is the highest of its forecast and the forecasts before, while steps down
    wait.

    Requests come unevenly even at a constant rate, and replicas are sized for that already. So the
    part of chance is taken out of the spread of the ratios.
    """

    def __init__(self) -> None:
        self._compared: deque[WindowComparison] = deque(maxlen=RATIOS)

    def add_window(
        self, planned: float, requests: float, *, variation: float = 1.0, own: bool = True
    ) -> None:
        """Add a window's plan and demand. variation: arrival variation, 1: Poisson"""
        if planned > 0.0:
            self._compared.append(WindowComparison(requests / planned, variation / planned, own))

    @property
    def is_known(self) -> bool:
        """Whether there are enough windows."""
        return len(self._compared) >= RATIOS_MIN

    @property
    def is_of_last_points(self) -> bool:
        """Whether the factor applies to the last point instead of a forecast.

        This is so while the predictor mostly repeated the last point.
        """
        return self.is_known and len(self._real_forecasts()) < RATIOS_MIN

    def demand_factor(self, part: float) -> float:
        """Return the factor on a forecast, or on the last point: 1 to 2.

        part: the quantile; 0.5 or less gives 1
        """
        if part <= 0.5 or not self.is_known:
            return 1.0
        own = self._real_forecasts()
        # Ratios against repeated points are larger; those must not inflate a real forecaster's
        # margin.
        counted = own if len(own) >= RATIOS_MIN else list(self._compared)
        ratios = sorted(each.ratio for each in counted)
        mean = fmean(ratios)
        spread, chance = pvariance(ratios, mean), fmean(each.chance for each in counted)
        # Variances add, so the part of chance is subtracted from the variance, not from the
        # deviation.
        narrowed = sqrt(max(0.0, 1.0 - chance / spread)) if spread > 0.0 else 1.0
        beyond = mean + narrowed * (interpolated_quantile(ratios, part) - mean) - 1.0
        # Shrinks towards 1 while there are few windows, as if some accurate windows had been seen
        # before.
        return min(
            1.0 + max(0.0, beyond) * len(ratios) / (len(ratios) + ASSUMED_ACCURATE_WINDOWS),
            FACTOR_MAX,
        )

    def _real_forecasts(self) -> list[WindowComparison]:
        """Return the windows with a real forecast."""
        return [each for each in self._compared if each.own]


def interpolated_quantile(ascending: list[float], part: float) -> float:
    """Return the quantile, interpolated linearly as numpy's default."""
    place = part * (len(ascending) - 1)
    low = floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
