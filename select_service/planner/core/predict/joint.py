"""One predictor for all three series of a deployment, and how well it has done."""

from collections import deque
from math import log1p
from typing import NamedTuple

from select_service.planner.core.predict.series import Make
from select_service.planner.core.predict.shortfall import Shortfall

LOSSES = 20
"""Points that a predictor is judged by."""


class Load(NamedTuple):
    """A window: requests, and the mean lengths of prompt and answer. None: never known.

    variation: of the times between requests, squared; 1: Poisson
    """

    requests: float
    isl: float | None
    osl: float | None
    variation: float = 1.0


class Expected(NamedTuple):
    """A window that is to come.  own: of a predictor that has points enough for a forecast"""

    requests: float
    isl: float
    osl: float
    own: bool = True


class Joint:
    """Three series of one predictor."""

    def __init__(self, make: Make, held: int = 1) -> None:
        """held: windows that a plan lasts at least, as nothing goes down before"""
        self._requests, self._isl, self._osl = make(), make(), make()
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self.shortfall = Shortfall()
        self.last = 0.0
        """Requests of the last window that is known."""
        self._said: deque[tuple[int, Expected]] = deque()
        """Windows that are to come, and what was expected of each."""
        self._held: deque[float] = deque(maxlen=held)
        """Requests that were expected of the last windows: the highest is what was planned for."""
        self._window = 0

    @property
    def loss(self) -> float | None:
        """Mean of the last points; None before there are any."""
        return sum(self._losses) / len(self._losses) if self._losses else None

    @property
    def judged(self) -> int:
        return len(self._losses)

    def add(self, load: Load, ahead: int) -> None:
        """ahead: windows from the last one to the one that forecasts are used for, at least 1"""
        said = self._due()
        if said is not None:
            self._losses.append(loss_of(said, load))
            self.shortfall.add(
                max(self._held), load.requests, variation=load.variation, own=said.own
            )
        self._requests.add(load.requests)
        self.last = load.requests
        for series, length in ((self._isl, load.isl), (self._osl, load.osl)):
            if length is None:
                series.skip()
            else:
                series.add(length)
        while self._said and self._said[-1][0] >= self._window + ahead:
            self._said.pop()
        self._said.append((self._window + ahead, self.predict(float(ahead))))

    def _due(self) -> Expected | None:
        """What was expected of the window that is there now."""
        self._window += 1
        said = None
        while self._said and self._said[0][0] <= self._window:
            window, expected = self._said.popleft()
            self._held.append(expected.requests)
            said = expected if window == self._window else said
        return said

    def skip(self) -> None:
        """The window is unknown, and so is what the forecast of it was worth."""
        self._due()
        for series in (self._requests, self._isl, self._osl):
            series.skip()

    def reset_idle_skip(self) -> None:
        """A recording has ended: what it led to is no forecast of what comes."""
        self._said.clear()
        self._held.clear()
        for series in (self._requests, self._isl, self._osl):
            series.reset_idle_skip()

    def predict(self, steps: float) -> Expected:
        return Expected(
            self._requests.predict_at(steps),
            self._isl.predict_at(steps),
            self._osl.predict_at(steps),
            self._requests.knows_enough,
        )


def loss_of(said: Expected, load: Load) -> float:
    """What sizes replicas counts most: tokens of prompts and of answers."""
    isl, osl = load.isl or 0.0, load.osl or 0.0
    return (
        0.4 * _distance(said.requests * said.isl, load.requests * isl)
        + 0.4 * _distance(said.requests * said.osl, load.requests * osl)
        + 0.1 * _distance(said.isl, isl)
        + 0.1 * _distance(said.osl, osl)
    )


def _distance(predicted: float, actual: float) -> float:
    return abs(log1p(predicted) - log1p(max(0.0, actual)))
