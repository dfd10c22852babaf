"""Tests of traffic forecasts, by a single predictor and by the best of several."""

from math import isfinite, nan, pi, sin
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.files.request_trace import RecordedRequest
from select_service.planner.core.forecasting.forecast_error import ForecastErrorQuantile
from select_service.planner.core.forecasting.joint_predictor import WindowLoad, forecast_loss
from select_service.planner.core.forecasting.predicted_series import RECENT_POINTS
from select_service.planner.core.forecasting.predictor_registry import make_predictors
from select_service.planner.core.forecasting.seasonal import Seasonal
from select_service.planner.core.forecasting.traffic_forecast import TrafficForecast
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import TrafficWindow
from select_service.planner.forecast_setup import trace_windows
from tests.planner.core.forecasting.curves import CURVES

INTERVAL_S = 180.0
NAMES = ("constant", "kalman", "seasonal")
PLAIN = DeploymentSettings(forecast_quantile=0.5)


def forecast_by(*names: str, settings: DeploymentSettings = PLAIN) -> TrafficForecast:
    known = make_predictors(settings, INTERVAL_S)
    return TrafficForecast(settings, INTERVAL_S, {name: known[name] for name in names})


def window(requests: float | None, isl: float = 1000.0, osl: float = 200.0) -> TrafficWindow:
    return TrafficWindow(duration_s=INTERVAL_S, requests=requests, isl=isl, osl=osl)


def loss_after_warm_up(names: tuple[str, ...], values: list[float]) -> float:
    forecast, losses = forecast_by(*names), []
    for at, value in enumerate(values):
        if at >= 25:
            losses.append(forecast_loss(forecast.predict(0.0), WindowLoad(value, 1000.0, 200.0)))
        forecast.add(window(value))
    return sum(losses)


@pytest.mark.parametrize("curve", CURVES)
def test_the_choice_is_nearly_as_good_as_the_best_alone(curve: str) -> None:
    values = CURVES[curve](192, Random(7))
    best = min(loss_after_warm_up((name,), values) for name in NAMES)
    assert loss_after_warm_up(NAMES, values) <= 1.1 * best + 1e-6


@pytest.mark.parametrize(("lead", "best"), [(0.0, False), (INTERVAL_S, True)])
def test_predictors_are_judged_by_the_forecasts_that_are_used(lead: float, best: bool) -> None:
    """Traffic alternates between windows: the last value is right only for every second window."""
    forecast = forecast_by("constant", "kalman")
    for at in range(60):
        forecast.add(window((100.0, 300.0)[at % 2]))
        chosen = forecast.predict(lead).predictor
    assert (chosen == "constant") is best


@pytest.mark.parametrize("name", NAMES)
@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=False), max_size=30))
def test_predictions_are_finite_and_never_below_zero(name: str, values: list[float]) -> None:
    series = make_predictors(PLAIN, INTERVAL_S)[name]()
    for value in values:
        series.add(value)
        for steps in (1.0, 1.67, 50.0):
            assert isfinite(series.predict_at(steps))
            assert series.predict_at(steps) >= 0.0


def test_a_ramp_is_forecast_for_the_end_of_a_start_up() -> None:
    forecast = forecast_by("kalman")
    for at in range(40):
        forecast.add(window(20.0 + 5.0 * at))
    assert forecast.predict(0.0).requests == pytest.approx(220.0, rel=0.01)
    assert forecast.predict(2 * INTERVAL_S).requests == pytest.approx(230.0, rel=0.01)


def test_demand_that_falls_is_planned_for_the_next_window() -> None:
    forecast = forecast_by("kalman")
    for at in range(40):
        forecast.add(window(300.0 - 5.0 * at))
    expected = forecast.predict(4 * INTERVAL_S)
    assert expected.requests < expected.demand_requests == forecast.predict(0.0).requests


def test_unknown_windows_and_leading_zeros_are_no_points() -> None:
    forecast = forecast_by("constant")
    for requests in (0.0, 0.0, None, nan):
        forecast.add(window(requests))
    assert forecast.predict(0.0).requests == 0.0
    forecast.add(window(50.0))
    forecast.add(window(None))
    assert forecast.predict(0.0).requests == 50.0


def test_an_idle_window_repeats_the_lengths() -> None:
    forecast = forecast_by("constant")
    forecast.add(window(50.0))
    forecast.add(TrafficWindow(duration_s=INTERVAL_S, requests=0.0))
    expected = forecast.predict(0.0)
    assert (expected.requests, expected.isl, expected.osl) == (0.0, 1000.0, 200.0)


def test_a_quantile_adds_the_demand_beyond_forecasts() -> None:
    shortfall = ForecastErrorQuantile()
    for _ in range(10):
        shortfall.add_window(100.0, 130.0)
    assert shortfall.demand_factor(0.5) == 1.0
    few = shortfall.demand_factor(0.8)
    for _ in range(40):
        shortfall.add_window(100.0, 130.0)
    assert few == pytest.approx(1.15)  # as with ten additional windows that met the plan
    assert shortfall.demand_factor(0.8) == pytest.approx(1.25)


def test_a_window_is_compared_with_all_its_plans() -> None:
    """Replicas stay for five windows, so that an earlier forecast makes good a low forecast.

    Only demand beyond all those forecasts is added.
    """
    held = DeploymentSettings(down_window_s=5 * INTERVAL_S, lead=False)
    down_at_once = forecast_by(
        "constant", settings=DeploymentSettings(down_window_s=0.0, lead=False)
    )
    up_and_down = forecast_by("constant", settings=held)
    growing = forecast_by("constant", settings=held)
    for at in range(60):
        for forecast in (up_and_down, down_at_once):
            forecast.add(window(130.0 if at % 2 else 70.0))
        growing.add(window(100.0 * 1.05**at))
    factors = [
        expected.demand_requests / expected.requests
        for expected in (each.predict(0.0) for each in (up_and_down, down_at_once, growing))
    ]
    assert factors[0] == 1.0
    assert factors[1] > 1.5
    assert factors[2] == pytest.approx(1.0 + 0.05 * 50 / 60)


def test_random_variation_is_no_part_of_the_quantile() -> None:
    """Sizing already covers random variation.

    The quantile adds nothing for a Poisson stream of known rate, and the excess for a rate that
    varies by a fifth.
    """
    rng = np.random.default_rng(8)
    steady, turning, noted = (
        ForecastErrorQuantile(),
        ForecastErrorQuantile(),
        ForecastErrorQuantile(),
    )
    for at in range(50):
        rate = 100.0 * (1.2 if at % 2 else 0.8)
        turning.add_window(100.0, float(rng.poisson(rate)))
        steady.add_window(100.0, float(rng.poisson(100.0)))
        noted.add_window(100.0, float(4 * rng.poisson(25.0)), variation=4.0)
    assert 1.0 <= steady.demand_factor(0.8) < 1.05
    assert 1.0 <= noted.demand_factor(0.8) < 1.08
    assert 1.15 < turning.demand_factor(0.8) < 1.25


def test_repeated_values_before_enough_points_do_not_count() -> None:
    shortfall = ForecastErrorQuantile()
    for _ in range(5):
        shortfall.add_window(100.0, 180.0, own=False)
    assert shortfall.is_known
    assert shortfall.is_of_last_points
    assert shortfall.demand_factor(0.8) == pytest.approx(
        1.0 + 0.8 * 5 / 15
    )  # no better value is known
    for _ in range(5):
        shortfall.add_window(100.0, 110.0)
    assert not shortfall.is_of_last_points
    assert shortfall.demand_factor(0.8) == pytest.approx(1.0 + 0.1 * 5 / 15)


def test_growth_is_not_counted_twice_while_a_trend_is_new() -> None:
    """Growth is added to the last point only: the trend has the same growth."""
    forecast = forecast_by("kalman", settings=DeploymentSettings(startup_s=INTERVAL_S))
    for at in range(8):
        forecast.add(window(100.0 * 1.3**at))
    expected = forecast.predict(INTERVAL_S)
    last = 100.0 * 1.3**7
    assert last < expected.requests <= expected.demand_requests <= 2.0 * last


def test_forecasts_are_proven_when_some_have_been_compared() -> None:
    forecast = forecast_by("constant", settings=DeploymentSettings(startup_s=INTERVAL_S))
    assert forecast.predict(INTERVAL_S).proven  # no forecast is needed
    after = []
    for _ in range(9):
        forecast.add(window(50.0))
        after.append(forecast.predict(INTERVAL_S).proven)
    assert after == [False] * 6 + [True] * 3  # five forecasts of the second window after


def test_accept_length_and_hit_rate_are_the_last_that_were_seen() -> None:
    forecast = forecast_by("constant", settings=DeploymentSettings(speculative_nextn=2))
    forecast.add(TrafficWindow(duration_s=1.0, requests=1.0, kv_hit_rate=0.99, accept_length=9.0))
    forecast.add(window(1.0))
    expected = forecast.predict(0.0)
    assert (expected.kv_hit_rate, expected.accept_length) == (0.95, 3.0)


def test_a_trace_becomes_windows_with_the_idle_ones() -> None:
    rows = ((0, 10, 2), (50, 30, 4), (2500, 8, 1), (3100, 8, 1))
    asked = [RecordedRequest(at_ms / 1000.0, isl, osl, (), 512) for at_ms, isl, osl in rows]
    found = [(each.requests, each.isl, each.osl) for each in trace_windows(asked, 1.0)]
    assert found == [(2.0, 20.0, 3.0), (0.0, None, None), (1.0, 8.0, 1.0)]


def test_a_week_repeats_itself_on_the_same_days() -> None:
    """Two of seven days have a third of the traffic."""
    half_hour, day = 1800.0, 86_400.0
    model, last = Seasonal(half_hour), 0.0
    missed, by_last = [], []
    for at in range(28 * 48):
        time_s = (at + 0.5) * half_hour
        usual = 100.0 + 50.0 * sin(2 * pi * time_s / day)
        value = usual * (0.3 if int(time_s // day) % 7 >= 5 else 1.0)
        if at >= 21 * 48:
            missed.append(abs((model.ahead(1.0) or 0.0) - value))
            by_last.append(abs(last - value))
        model.push(value)
        last = value
    assert sum(missed) < 0.6 * sum(by_last)


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=6, max_size=60),
    st.sampled_from(NAMES),
    st.integers(2, 40),
)
def test_a_far_forecast_stays_within_observed_values(
    values: list[float], name: str, windows: int
) -> None:
    forecast = forecast_by(name)
    for value in values:
        forecast.add(window(value, isl=500.0 + value))
    next_, then = forecast.predict(0.0), forecast.predict(windows * INTERVAL_S)
    seen = [value for value in values if value]
    if not seen:
        return
    points = values[values.index(seen[0]) :][-RECENT_POINTS:]
    pairs = [(a, b) for i, a in enumerate(points) for b in points[i : i + windows + 2]]
    rise, fall = max(b - a for a, b in pairs), max(a - b for a, b in pairs)
    assert then.requests <= max(next_.requests, points[-1] + rise) + 1e-9
    assert then.requests >= min(next_.requests, max(0.0, points[-1] - fall)) - 1e-9
    isls = [500.0 + value for value in values[values.index(seen[0]) :]]
    assert min(next_.isl, *isls) - 1e-9 <= then.isl <= max(next_.isl, *isls) + 1e-9


def test_noise_carried_far_ahead_is_no_trend() -> None:
    """The traffic is ten requests a second with noise, and the start-up takes many windows."""
    random, forecast = Random(3), forecast_by("kalman")
    for _ in range(8):
        forecast.add(window(random.uniform(700.0, 1100.0), isl=random.uniform(200.0, 4000.0)))
    far = forecast.predict(25 * INTERVAL_S)
    assert 300.0 <= far.requests <= 1500.0
    assert 200.0 <= far.isl <= 4000.0
