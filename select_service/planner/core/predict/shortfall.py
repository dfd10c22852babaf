"""How far demand has been beyond its forecasts: what a quantile adds to the next."""

from collections import deque
from math import floor

RATIOS = 50
RATIOS_MIN = 5
FACTOR_MAX = 2.0


class Shortfall:
    """A forecast is compared with the window that it was for, however far ahead that was."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=RATIOS)

    def add(self, forecast: float, requests: float) -> None:
        """What was expected of a window, and what came."""
        if forecast > 0.0:
            self._ratios.append(requests / forecast)

    @property
    def is_known(self) -> bool:
        return len(self._ratios) >= RATIOS_MIN

    def factor(self, part: float) -> float:
        """On top of a forecast, 1 to 2.  part: the quantile, at most 0.5: as it is"""
        if part <= 0.5 or not self.is_known:
            return 1.0
        return min(max(1.0, quantile(sorted(self._ratios), part)), FACTOR_MAX)


def quantile(ascending: list[float], part: float) -> float:
    """On straight lines between values, as numpy's default."""
    place = part * (len(ascending) - 1)
    low = floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
