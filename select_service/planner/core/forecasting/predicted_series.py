"""Series of points at equal distances, with the next expected values."""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, expm1, inf, isfinite, isnan, log1p
from typing import Protocol

VALUE_MAX = 1e15
"""Limit of points and predictions, so that no model overflows."""
LOG_MAX = log1p(VALUE_MAX)
RECENT_POINTS = 50


class SeriesModel(Protocol):
    """Predictor of numbers at equal distances, with gaps marked by `skip`."""

    def push(self, value: float) -> None: ...
    def skip(self) -> None:
        """Mark a gap."""
        ...

    def ahead(self, steps: float) -> float | None:
        """Return the value so many distances after the last point, or None."""
        ...


class LastPoint:
    """Model of a constant series."""

    def __init__(self) -> None:
        self._last: float | None = None

    def push(self, value: float) -> None:
        """Store the point."""
        self._last = value

    def skip(self) -> None:
        """Do nothing: a gap changes nothing."""

    def ahead(self, steps: float) -> float | None:
        """Return the last point, whatever `steps`."""
        return self._last


def largest_changes(points: Sequence[float], within: int) -> tuple[float, float]:
    """Return the largest rise and the largest fall between points at most `within` apart."""
    rise = fall = 0.0
    for at, point in enumerate(points):
        before = points[max(0, at - within) : at + 1]
        rise, fall = max(rise, point - min(before)), max(fall, max(before) - point)
    return rise, fall


MakeSeries = Callable[[], "PredictedSeries"]


class PredictedSeries:
    """Model with the rules common to all models.

    NaN counts as 0. Zeros before the first other point are ignored, also after `reset_idle_skip`.
    With fewer than `minimum` points the last point is the prediction, and 0 without points. Never
    below 0.
    """

    def __init__(self, model: SeriesModel, minimum: int = 1, *, in_log: bool = False) -> None:
        """Wrap a model. in_log: whether the model gets log1p of the points"""
        self._model = model
        self._minimum = minimum
        self._in_log = in_log
        self._recent: deque[float] = deque(maxlen=RECENT_POINTS)
        self._points = 0
        self._least, self._most = inf, -inf
        """Range of all points."""
        self._is_idle = True
        self._predictions: dict[float, float] = {}
        """Predictions since the last point, so that repeated requests are free and equal."""

    def add(self, value: float) -> None:
        """Add the next point."""
        # Clamped first: one absurd reading must not overflow a model for good.
        point = 0.0 if isnan(value) else min(max(value, -VALUE_MAX), VALUE_MAX)
        self._predictions.clear()
        if self._is_idle and point == 0.0:
            self._model.skip()
            return
        self._is_idle = False
        self._points += 1
        self._recent.append(point)
        self._least, self._most = min(self._least, point), max(self._most, point)
        self._model.push(log1p(max(0.0, point)) if self._in_log else point)

    def skip(self) -> None:
        """Add a gap."""
        self._predictions.clear()
        self._model.skip()

    def reset_idle_skip(self) -> None:
        """Ignore zeros at the start of another recording."""
        self._is_idle = True

    @property
    def knows_enough(self) -> bool:
        """Whether the model is used, instead of a repetition of the last point."""
        return self._points >= self._minimum

    def predict(self) -> float:
        """Return the next point."""
        return self.predict_at(1.0)

    def predict_at(self, steps: float) -> float:
        """Return the value so many points after the last point, at least 1."""
        if steps not in self._predictions:
            self._predictions[steps] = self._bounded_prediction(steps)
        return self._predictions[steps]

    def _bounded_prediction(self, steps: float) -> float:
        """Return the prediction, beyond the next point within the changes that were seen."""
        if not self._recent:
            return 0.0
        if not self.knows_enough:
            return max(0.0, self._recent[-1])
        expected = self._model_prediction(steps)
        if steps <= 1.0:
            return expected
        # A trend is extrapolated linearly: over ten windows noise becomes a fleet, or no traffic.
        # What has really changed within as many points is a bound that ramps do not reach.
        next_, points = self.predict(), list(self._recent)
        rise, fall = largest_changes(points, ceil(steps))
        return min(max(expected, min(next_, points[-1] - fall), 0.0), max(next_, points[-1] + rise))

    def predict_within_range(self, steps: float) -> float:
        """Return the value so many points ahead, beyond the next one within all points.

        For values without a trend of their own, as the lengths of prompts.
        """
        value, next_ = self.predict_at(steps), self.predict()
        if steps <= 1.0 or not self._recent:
            return value
        return min(max(value, min(next_, self._least)), max(next_, self._most))

    def _model_prediction(self, steps: float) -> float:
        """Return the model's prediction, or the last point if the model has none."""
        value = self._model.ahead(steps)
        if value is None or not isfinite(value):
            return max(0.0, self._recent[-1])
        if self._in_log:
            value = expm1(min(value, LOG_MAX))
        return min(max(0.0, value), VALUE_MAX)
