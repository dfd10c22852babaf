"""Predictors by name, as the settings describe them."""

from collections.abc import Mapping

from select_service.planner.core.predict import arima as arimas
from select_service.planner.core.predict import prophet as prophets
from select_service.planner.core.predict.constant import Constant
from select_service.planner.core.predict.kalman import Kalman, Noise
from select_service.planner.core.predict.seasonal import Seasonal
from select_service.planner.core.predict.series import Make, Series
from select_service.planner.core.settings import Settings

POINTS_MIN = 5
"""Of predictors that have no setting for it."""


def makers(
    settings: Settings,
    interval_s: float,
    *,
    arima: bool = False,
    prophet: prophets.Fit | None = None,
) -> dict[str, Make]:
    """What can be used. arima: statsmodels is installed;  prophet: None without the library"""
    in_log = settings.load_predictor_log1p
    noise = Noise(settings.kalman_q_level, settings.kalman_q_trend, settings.kalman_r)
    beside_others = settings.load_predictor == "auto"
    known: dict[str, Make] = {
        "constant": lambda: Series(Constant()),
        "kalman": lambda: Series(Kalman(noise), settings.kalman_min_points, in_log=in_log),
        "seasonal": lambda: Series(Seasonal(interval_s), POINTS_MIN),
    }
    if arima:
        effort = arimas.QUICK if beside_others else arimas.THOROUGH
        known["arima"] = lambda: Series(arimas.Arima(effort), POINTS_MIN, in_log=in_log)
    if prophet is not None:
        window = settings.prophet_window_size
        refit = prophets.QUICK if beside_others else prophets.THOROUGH
        known["prophet"] = lambda: Series(
            prophets.Prophet(prophet, window, interval_s, refit), POINTS_MIN, in_log=in_log
        )
    return known


def chosen(settings: Settings, known: Mapping[str, Make]) -> dict[str, Make]:
    """Those that run: the one that is set, or all of them for `auto`.

    Raises KeyError for one that is not installed.
    """
    name = settings.load_predictor
    return dict(known) if name == "auto" else {name: known[name]}
