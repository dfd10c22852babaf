"""One series of points at equal distances, and what is expected next."""

from collections import deque
from collections.abc import Callable
from math import expm1, isfinite, isnan, log1p
from typing import Protocol

VALUE_MAX = 1e15
"""Points and predictions are cut here, so that no model overflows."""
LOG_MAX = log1p(VALUE_MAX)
RECENT_POINTS = 50
LEAD_GROWTH_MAX = 4.0
"""Beyond the next point no forecast exceeds the greatest recent one so many times: a trend that
is noise must not become a fleet."""


class Model(Protocol):
    """Numbers in, numbers out; at equal distances, without gaps but those told by `skip`."""

    def push(self, value: float) -> None: ...
    def skip(self) -> None:
        """A point is missing."""
        ...

    def ahead(self, steps: float) -> float | None:
        """Expected so many distances after the last point; None: cannot be said."""
        ...


Make = Callable[[], "Series"]


class Series:
    """A model and the rules that are the same for all.

    NaN is 0. Zeros before the first other point are none, nor after `reset_idle_skip`. With fewer
    than `minimum` points the last one is the prediction, and 0 without any. Never below 0.
    """

    def __init__(self, model: Model, minimum: int = 1, *, in_log: bool = False) -> None:
        """in_log: the model sees log1p of the points"""
        self._model = model
        self._minimum = minimum
        self._in_log = in_log
        self._recent: deque[float] = deque(maxlen=RECENT_POINTS)
        self._points = 0
        self._idle = True
        self._asked: dict[float, float] = {}
        """Since the last point: asking twice costs nothing, and changes nothing."""

    def add(self, value: float) -> None:
        """The next point."""
        point = 0.0 if isnan(value) else min(max(value, -VALUE_MAX), VALUE_MAX)
        self._asked.clear()
        if self._idle and point == 0.0:
            self._model.skip()
            return
        self._idle = False
        self._points += 1
        self._recent.append(point)
        self._model.push(log1p(max(0.0, point)) if self._in_log else point)

    def skip(self) -> None:
        """A point is unknown."""
        self._asked.clear()
        self._model.skip()

    def reset_idle_skip(self) -> None:
        """What follows is another recording: zeros at its start are no points."""
        self._idle = True

    @property
    def knows_enough(self) -> bool:
        """Whether the model is asked, and not the last point repeated."""
        return self._points >= self._minimum

    def predict(self) -> float:
        """The next point."""
        return self.predict_at(1.0)

    def predict_at(self, steps: float) -> float:
        """So many points after the last one, at least 1."""
        if steps not in self._asked:
            self._asked[steps] = self._bounded(steps)
        return self._asked[steps]

    def _bounded(self, steps: float) -> float:
        if not self._recent:
            return 0.0
        if not self.knows_enough:
            return max(0.0, self._recent[-1])
        expected = self._expected(steps)
        if steps <= 1.0:
            return expected
        ceiling = max(self.predict(), LEAD_GROWTH_MAX * max(self._recent))
        return max(0.0, min(expected, ceiling))

    def _expected(self, steps: float) -> float:
        value = self._model.ahead(steps)
        if value is None or not isfinite(value):
            return max(0.0, self._recent[-1])
        if self._in_log:
            value = expm1(min(value, LOG_MAX))
        return min(max(0.0, value), VALUE_MAX)
