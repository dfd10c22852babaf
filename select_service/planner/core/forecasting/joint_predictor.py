"""Predictor of all three series of a deployment, with its recent errors."""

from collections import deque
from math import log1p
from typing import NamedTuple

from select_service.planner.core.forecasting.forecast_error import ForecastErrorQuantile
from select_service.planner.core.forecasting.predicted_series import MakeSeries

LOSSES_KEPT = 20
"""Number of points by which a predictor is judged."""


class WindowLoad(NamedTuple):
    """Load of a window. None means never known.

    requests:  number of requests
    isl, osl:  mean lengths of prompt and answer, tokens
    variation: squared coefficient of variation of the times between requests; 1: Poisson
    """

    requests: float
    isl: float | None
    osl: float | None
    variation: float = 1.0


class ExpectedLoad(NamedTuple):
    """Expected load of a window. own: whether the predictor has enough points for a forecast"""

    requests: float
    isl: float
    osl: float
    own: bool = True


class JointPredictor:
    """Three series of a predictor."""

    def __init__(self, make: MakeSeries, planned_windows: int = 1) -> None:
        """Create the series.

        planned_windows: minimum number of windows that a plan lasts, as steps down wait
        """
        self._requests, self._isl, self._osl = make(), make(), make()
        self._losses: deque[float] = deque(maxlen=LOSSES_KEPT)
        self.shortfall = ForecastErrorQuantile()
        self.last = 0.0
        """Requests of the last known window."""
        self._expectations: deque[tuple[int, ExpectedLoad]] = deque()
        """Pairs of future window and its expected load."""
        self._planned_requests: deque[float] = deque(maxlen=planned_windows)
        """Expected requests of the last windows; the maximum is the planned number."""
        self._window = 0

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of the last points; None before the first."""
        return sum(self._losses) / len(self._losses) if self._losses else None

    @property
    def judged_points(self) -> int:
        """Number of judged points."""
        return len(self._losses)

    def add(self, load: WindowLoad, ahead: int) -> None:
        """Add a window.

        ahead: windows from this window to the window of the forecasts, at least 1
        """
        said = self._advance_window()
        if said is not None:
            self._losses.append(forecast_loss(said, load))
            self.shortfall.add_window(
                # Steps down wait for the window, so the planned number is the maximum of the held
                # forecasts.
                max(self._planned_requests),
                load.requests,
                variation=load.variation,
                own=said.own,
            )
        self._requests.add(load.requests)
        self.last = load.requests
        # All series advance together, even without a length, so that their times stay equal.
        for series, length in ((self._isl, load.isl), (self._osl, load.osl)):
            if length is None:
                series.skip()
            else:
                series.add(length)
        # A shorter lead than before re-predicts windows that already have an expectation: the newer
        # counts.
        while self._expectations and self._expectations[-1][0] >= self._window + ahead:
            self._expectations.pop()
        self._expectations.append((self._window + ahead, self.predict(float(ahead))))

    def _advance_window(self) -> ExpectedLoad | None:
        """Advance to the next window and return its expected load, or None."""
        self._window += 1
        said = None
        while self._expectations and self._expectations[0][0] <= self._window:
            window, expected = self._expectations.popleft()
            self._planned_requests.append(expected.requests)
            said = expected if window == self._window else said
        return said

    def skip(self) -> None:
        """Advance by an unknown window: its forecast cannot be judged."""
        self._advance_window()
        for series in (self._requests, self._isl, self._osl):
            series.skip()

    def reset_idle_skip(self) -> None:
        """End a recording: its forecasts do not apply to later windows."""
        self._expectations.clear()
        self._planned_requests.clear()
        for series in (self._requests, self._isl, self._osl):
            series.reset_idle_skip()

    def predict(self, steps: float) -> ExpectedLoad:
        """Return the expected load so many windows ahead."""
        return ExpectedLoad(
            self._requests.predict_at(steps),
            self._isl.predict_within_range(steps),
            self._osl.predict_within_range(steps),
            self._requests.knows_enough,
        )


def forecast_loss(expected: ExpectedLoad, load: WindowLoad) -> float:
    """Return the loss of a forecast.

    Tokens of prompts and answers have the most weight, as they size replicas.
    """
    isl, osl = load.isl or 0.0, load.osl or 0.0
    return (
        0.4 * _log_distance(expected.requests * expected.isl, load.requests * isl)
        + 0.4 * _log_distance(expected.requests * expected.osl, load.requests * osl)
        + 0.1 * _log_distance(expected.isl, isl)
        + 0.1 * _log_distance(expected.osl, osl)
    )


def _log_distance(predicted: float, actual: float) -> float:
    """Return the distance on a logarithmic scale."""
    return abs(log1p(predicted) - log1p(max(0.0, actual)))
