"""Predictors by name, as configured."""

from collections.abc import Mapping

from select_service.planner.core.forecasting import arima as arimas
from select_service.planner.core.forecasting import prophet as prophets
from select_service.planner.core.forecasting.kalman import Kalman, KalmanNoise
from select_service.planner.core.forecasting.predicted_series import (
    LastPoint,
    MakeSeries,
    PredictedSeries,
)
from select_service.planner.core.forecasting.seasonal import Seasonal
from select_service.planner.core.settings import DeploymentSettings

POINTS_MIN = 5
"""Minimum number of points of predictors without a setting."""


def make_predictors(
    settings: DeploymentSettings,
    interval_s: float,
    *,
    arima: bool = False,
    prophet: prophets.ProphetFit | None = None,
) -> dict[str, MakeSeries]:
    """Return the usable predictors.

    arima:   whether statsmodels is installed
    prophet: fit of Prophet; None without the library
    """
    in_log = settings.load_predictor_log1p
    noise = KalmanNoise(settings.kalman_q_level, settings.kalman_q_trend, settings.kalman_r)
    beside_others = settings.load_predictor == "auto"
    known: dict[str, MakeSeries] = {
        "constant": lambda: PredictedSeries(LastPoint()),
        "kalman": lambda: PredictedSeries(Kalman(noise), settings.kalman_min_points, in_log=in_log),
        "seasonal": lambda: PredictedSeries(Seasonal(interval_s), POINTS_MIN),
    }
    if arima:
        effort = arimas.QUICK_SEARCH if beside_others else arimas.THOROUGH_SEARCH
        known["arima"] = lambda: PredictedSeries(arimas.Arima(effort), POINTS_MIN, in_log=in_log)
    if prophet is not None:
        window = settings.prophet_window_size
        refit = prophets.REFIT_BESIDE_OTHERS if beside_others else prophets.REFIT_ALONE
        known["prophet"] = lambda: PredictedSeries(
            prophets.Prophet(prophet, window, interval_s, refit), POINTS_MIN, in_log=in_log
        )
    return known


def choose_predictors(
    settings: DeploymentSettings, predictors: Mapping[str, MakeSeries]
) -> dict[str, MakeSeries]:
    """Return the predictors to run: the configured one, or all for `auto`.

    Raises KeyError for a predictor that is not installed.
    """
    name = settings.load_predictor
    return dict(predictors) if name == "auto" else {name: predictors[name]}
