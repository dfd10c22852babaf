"""How far demand has been beyond its forecasts: what a quantile adds to the next."""

from collections import deque
from math import floor

RATIOS = 50
RATIOS_MIN = 5
FACTOR_MAX = 2.0
PENDING_MAX = 4096
"""Forecasts of windows that are still to come."""


class Shortfall:
    """A forecast is compared with the window that it was for, however far ahead that was."""

    def __init__(self, quantile: float) -> None:
        """quantile: at most 0.5: forecasts are taken as they are"""
        self._quantile = quantile
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._pending: deque[tuple[int, float]] = deque(maxlen=PENDING_MAX)
        """Window, and what was forecast for it."""
        self._window = 0

    def expect(self, windows_ahead: int, requests: float) -> None:
        """The forecast that was made after the last window."""
        self._pending.append((self._window + windows_ahead, requests))

    def see(self, requests: float | None) -> None:
        """The next window; None: unknown."""
        self._window += 1
        kept = []
        for window, forecast in self._pending:
            if window > self._window:
                kept.append((window, forecast))
            elif window == self._window and requests is not None and forecast > 0.0:
                self._ratios.append(requests / forecast)
        self._pending = deque(kept, maxlen=PENDING_MAX)

    @property
    def factor(self) -> float:
        """On top of a forecast, 1 to 2."""
        if self._quantile <= 0.5 or len(self._ratios) < RATIOS_MIN:
            return 1.0
        return min(max(1.0, quantile(sorted(self._ratios), self._quantile)), FACTOR_MAX)


def quantile(ascending: list[float], part: float) -> float:
    """On straight lines between values, as numpy's default."""
    place = part * (len(ascending) - 1)
    low = floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
