"""Prophet over the last points on a time axis, fitted again for each answer.

Beside other predictors the effort is lower: a fit with predictions takes 50 ms or more, so a fit
serves the next `refit` points, interpolated linearly. The caller passes the fit function, which
needs a library, a thread and a clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, floor

ProphetFit = Callable[[Sequence[float], float, Sequence[float]], list[float] | None]
"""(points, seconds between points, steps after the last) -> values at these steps, or None."""
REFIT_ALONE, REFIT_BESIDE_OTHERS = 1, 10
"""Number of points after which the model is fitted again: alone, and beside others."""


class Prophet:
    """Model that keeps no answers when used alone."""

    def __init__(
        self, fit: ProphetFit, window: int, interval_s: float, refit: int = REFIT_ALONE
    ) -> None:
        self._fit = fit
        self._interval_s = interval_s
        self._refit = refit
        self._values: deque[float] = deque(maxlen=window)
        self._line: list[float] | None = None
        """Values at 1, 2, 3 steps after the last point of the last fit; None without a fit."""
        self._age = 0
        """Number of points since the last fit."""

    def push(self, value: float) -> None:
        """Add a point."""
        self._values.append(value)
        self._age += 1

    def skip(self) -> None:
        """Ignore the gap: the axis has no gaps."""

    def ahead(self, steps: float) -> float | None:
        """Return the value so many steps ahead, or None if the fit failed."""
        if self._refit == REFIT_ALONE:
            said = self._fit_values([steps])
            return None if said is None else said[0]
        last = ceil(steps)
        # Refit when the line is old, or does not reach far enough for the requested step.
        if self._age >= self._refit or self._line is None or self._age + last > len(self._line):
            self._line = self._fit_values([float(at) for at in range(1, last + self._refit + 1)])
            self._age = 0
        return None if self._line is None else _interpolate_line(self._line, self._age + steps)

    def _fit_values(self, steps: Sequence[float]) -> list[float] | None:
        """Fit the points and return the values at the steps."""
        return self._fit(tuple(self._values), self._interval_s, steps)


def _interpolate_line(line: Sequence[float], steps: float) -> float:
    """Interpolate between the values at 1, 2, 3 steps."""
    before, after = line[floor(steps) - 1], line[ceil(steps) - 1]
    return before + (steps - floor(steps)) * (after - before)
