"""Prophet: the last points on a time axis, fitted again for each answer.

The fit itself is given: it needs a library, a thread and a clock.
"""

from collections import deque
from collections.abc import Callable, Sequence

Fit = Callable[[Sequence[float], float, float], float | None]
"""(points, seconds between them, steps after the last) -> the value there; None: no answer."""


class Prophet:
    """None of the answers is kept."""

    def __init__(self, fit: Fit, window: int, interval_s: float) -> None:
        self._fit = fit
        self._interval_s = interval_s
        self._values: deque[float] = deque(maxlen=window)

    def push(self, value: float) -> None:
        self._values.append(value)

    def skip(self) -> None:
        """The axis has no gaps."""

    def ahead(self, steps: float) -> float | None:
        return self._fit(tuple(self._values), self._interval_s, steps)
