"""How far demand has been beyond what was planned for it: what a quantile adds to a forecast."""

from collections import deque
from math import floor, sqrt
from statistics import fmean, pvariance
from typing import NamedTuple

RATIOS = 50
RATIOS_MIN = 5
RIGHT = 10
"""Windows as planned for that are taken as seen before any: few others say little of a quantile."""
FACTOR_MAX = 2.0


class Compared(NamedTuple):
    """One window.  ratio: what came by what was planned;  chance: its variance by chance alone
    own: the predictor knew enough for a forecast; before, it repeats the last point"""

    ratio: float
    chance: float
    own: bool


class Shortfall:
    """What came of a window is compared with what was planned for it, however far ahead that was:
    the highest of the forecasts for it and for those before it while nothing goes down.

    Requests come unevenly even where the rate is known, and replicas are sized for that already. So
    the spread of the ratios is narrowed by what chance has in it.
    """

    def __init__(self) -> None:
        self._compared: deque[Compared] = deque(maxlen=RATIOS)

    def add(
        self, planned: float, requests: float, *, variation: float = 1.0, own: bool = True
    ) -> None:
        """What was planned for a window, and what came.  variation: of the arrivals, 1: Poisson"""
        if planned > 0.0:
            self._compared.append(Compared(requests / planned, variation / planned, own))

    @property
    def is_known(self) -> bool:
        return len(self._compared) >= RATIOS_MIN

    @property
    def is_of_last_points(self) -> bool:
        """Is the factor mostly one on top of the last point, as the predictor repeated that?"""
        return self.is_known and len(self._own()) < RATIOS_MIN

    def factor(self, part: float) -> float:
        """On top of a forecast, or of the last point: 1 to 2.

        part: the quantile, at most 0.5: as it is
        """
        if part <= 0.5 or not self.is_known:
            return 1.0
        own = self._own()
        counted = own if len(own) >= RATIOS_MIN else list(self._compared)
        ratios = sorted(each.ratio for each in counted)
        mean = fmean(ratios)
        spread, chance = pvariance(ratios, mean), fmean(each.chance for each in counted)
        narrowed = sqrt(max(0.0, 1.0 - chance / spread)) if spread > 0.0 else 1.0
        beyond = mean + narrowed * (quantile(ratios, part) - mean) - 1.0
        return min(1.0 + max(0.0, beyond) * len(ratios) / (len(ratios) + RIGHT), FACTOR_MAX)

    def _own(self) -> list[Compared]:
        return [each for each in self._compared if each.own]


def quantile(ascending: list[float], part: float) -> float:
    """On straight lines between values, as numpy's default."""
    place = part * (len(ascending) - 1)
    low = floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
