"""Player of predictor cases: the predictions for a series after each point."""

from collections.abc import Iterator
from importlib.util import find_spec
from math import isclose
from typing import Any

from select_service.planner.core.forecasting.predicted_series import PredictedSeries
from select_service.planner.core.forecasting.predictor_registry import make_predictors
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.forecast_setup import FitWithTimeout, fit_prophet
from tests.vectors.differences import Difference

Case = dict[str, Any]
_PACKAGES = {"arima": "statsmodels", "prophet": "prophet"}
_WORSE_MAX = 1.2
"""Largest ratio of summed errors to the recorded library's if a library found another model order.
"""


class NotInstalled(ValueError):
    """The library of an extra is missing."""


def play_series(case: Case) -> Iterator[Difference]:
    """Add the points, and compare the prediction after each; null means no prediction."""
    series = _series(case)
    points = [float(point) for point in case["observations"]]
    found: list[float | None] = []
    for point, expected in zip(points, case["predictions_after_each"], strict=True):
        series.add(point)
        found.append(None if expected is None else series.predict())
    different = list(_differences(case, found))
    fitted = case["predictor"] in _PACKAGES
    if not (fitted and _is_as_good(case, points, found)):
        yield from different


def play_calls(case: Case) -> Iterator[Difference]:
    """Play additions of points and predictions in any order."""
    series = _series(case)
    for at, (verb, value) in enumerate(case["calls"]):
        if verb == "add":
            series.add(float(value))
        elif verb == "reset_idle_skip":
            series.reset_idle_skip()
        elif not _is_near(value, found := series.predict(), case["tolerance"]):
            yield Difference(f"calls[{at}]", value, found)


def _series(case: Case) -> PredictedSeries:
    name = case["predictor"]
    package = _PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise NotInstalled(f"predictor {name} needs {package}: install the extra `{name}`")
    config = dict(case["config"])
    interval_s = float(config["throughput_adjustment_interval_seconds"])
    settings = DeploymentSettings(**{**config, "load_predictor": name})
    return make_predictors(settings, interval_s, arima=True, prophet=FitWithTimeout(fit_prophet))[
        name
    ]()


def _differences(case: Case, found: list[float | None]) -> Iterator[Difference]:
    for at, (wanted, said) in enumerate(zip(case["predictions_after_each"], found, strict=True)):
        if wanted is not None and not _is_near(wanted, said, case["tolerance"]):
            yield Difference(f"predictions_after_each[{at}]", wanted, said)


def _is_near(wanted: float, found: float | None, tolerance: float) -> bool:
    return found is not None and isclose(wanted, found, rel_tol=tolerance, abs_tol=tolerance)


def _is_as_good(case: Case, points: list[float], found: list[float | None]) -> bool:
    """Return whether our summed error of predictions is at most `_WORSE_MAX` times theirs."""
    nexts = points[1:]
    theirs = ours = 0.0
    for wanted, said, actual in zip(case["predictions_after_each"], found, nexts, strict=False):
        if wanted is not None and said is not None:
            theirs += abs(wanted - actual)
            ours += abs(said - actual)
    return ours <= _WORSE_MAX * theirs
