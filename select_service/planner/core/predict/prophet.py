"""Prophet: the last points on a time axis, fitted again for each answer.

Beside other predictors it takes less pains: a fit and what it says take a twentieth of a second or
more, so one fit says all of the next `refit` points, and what lies between two is on their line.

The fit itself is given: it needs a library, a thread and a clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, floor

Fit = Callable[[Sequence[float], float, Sequence[float]], list[float] | None]
"""(points, seconds between them, steps after the last) -> the values there; None: no answer."""
THOROUGH, QUICK = 1, 10
"""Points after which it is fitted again: alone, and beside others."""


class Prophet:
    """Alone it keeps none of its answers."""

    def __init__(self, fit: Fit, window: int, interval_s: float, refit: int = THOROUGH) -> None:
        self._fit = fit
        self._interval_s = interval_s
        self._refit = refit
        self._values: deque[float] = deque(maxlen=window)
        self._line: list[float] | None = None
        """Values at 1, 2, 3 steps after the last point of the last fit; None: there is none."""
        self._age = 0
        """Points since then."""

    def push(self, value: float) -> None:
        self._values.append(value)
        self._age += 1

    def skip(self) -> None:
        """The axis has no gaps."""

    def ahead(self, steps: float) -> float | None:
        if self._refit == THOROUGH:
            said = self._fitted([steps])
            return None if said is None else said[0]
        last = ceil(steps)
        if self._age >= self._refit or self._line is None or self._age + last > len(self._line):
            self._line = self._fitted([float(at) for at in range(1, last + self._refit + 1)])
            self._age = 0
        return None if self._line is None else _on(self._line, self._age + steps)

    def _fitted(self, steps: Sequence[float]) -> list[float] | None:
        return self._fit(tuple(self._values), self._interval_s, steps)


def _on(line: Sequence[float], steps: float) -> float:
    """line: values at 1, 2, 3 steps"""
    before, after = line[floor(steps) - 1], line[ceil(steps) - 1]
    return before + (steps - floor(steps)) * (after - before)
