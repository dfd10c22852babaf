"""Tests of demand checks between two forecasts: as frequent as starts, and only adding replicas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.proposers.early_check import (
    CHECKS_MAX,
    count_checks,
    raise_forecast,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import Role, TrafficWindow
from tests.planner.core.deployments import a_deployment, both, replicas, tick_input, traffic
from tests.planner.replay.test_run import fleet, run_replay

P, D = Role.PREFILL, Role.DECODE


def adaptive(**given: Any) -> PlannedDeployment:
    """Return a deployment with forecasts every 180 s and starts of 25 s."""
    base = {
        "adaptive_interval": True,
        "throughput_adjustment_interval_seconds": 180.0,
        "scale_interval_seconds": 180.0,
        "startup_s": 25.0,
        "forecast_quantile": 0.5,
        "max_gpu_budget": 40,
    }
    return a_deployment(**{**base, **given})


@pytest.mark.parametrize(
    ("startup_s", "checks"), [(600.0, 1), (120.0, 1), (90.0, 2), (40.0, 4), (1.0, CHECKS_MAX)]
)
def test_the_interval_follows_the_time_of_a_start(startup_s: float, checks: int) -> None:
    settings = DeploymentSettings(adaptive_interval=True)
    assert count_checks(settings, startup_s) == checks
    assert count_checks(DeploymentSettings(), startup_s) == 1
    easy = DeploymentSettings(adaptive_interval=True, optimization_target="load")
    assert count_checks(easy, startup_s) == 1


def test_an_excess_does_not_wait_for_the_next_forecast() -> None:
    deployment = adaptive()
    assert deployment.next_tick.at_s == 180.0
    effects = deployment.run_tick(tick_input(180.0, both(1, 1), of=traffic(180.0, 180.0)))
    assert effects.scale_to is None
    assert (effects.next_tick.at_s, effects.next_tick.traffic_s) == (210.0, 30.0)
    # Demand as forecast, randomly a little more, and unknown: nothing changes.
    for at_s, requests in ((210.0, 30.0), (240.0, 40.0), (270.0, None)):
        effects = deployment.run_tick(tick_input(at_s, both(1, 1), of=traffic(requests, 30.0)))
        assert effects.scale_to is None
        assert effects.diagnostics.throughput_reason is None
    effects = deployment.run_tick(tick_input(300.0, both(1, 1), of=traffic(1500.0, 30.0)))
    assert effects.diagnostics.throughput_reason is Reason.SCALE
    assert effects.scale_to is not None
    assert effects.scale_to[P] > 1
    assert not effects.diagnostics.run_throughput
    # The next forecast comes at its usual time, with its whole window.
    effects = deployment.run_tick(tick_input(330.0, both(1, 1), of=traffic(30.0, 30.0)))
    assert effects.next_tick.run_throughput
    assert (effects.next_tick.at_s, effects.next_tick.traffic_s) == (360.0, 180.0)


def test_a_lull_between_forecasts_takes_nothing_away() -> None:
    deployment = adaptive(stabilise=False)
    deployment.run_tick(tick_input(180.0, both(4, 4), of=traffic(3600.0, 180.0)))
    for at in range(1, 6):
        effects = deployment.run_tick(
            tick_input(180.0 + 30.0 * at, both(4, 4), of=traffic(0.0, 30.0))
        )
        assert effects.scale_to is None


def test_a_measured_start_changes_the_interval() -> None:
    deployment = adaptive(startup_s=150.0)
    deployment.run_tick(tick_input(180.0, both(1, 1), of=traffic(180.0, 180.0)))
    assert deployment.next_tick.at_s == 360.0
    for _ in range(8):  # one replica starts within 20 s, and leaves again
        at_s = deployment.last_s
        deployment.run_tick(tick_input(at_s + 1.0, both(1, 1) | {P: replicas(1, 1)}, of=None))
        deployment.run_tick(tick_input(at_s + 21.0, both(2, 1), of=None))
        deployment.run_tick(tick_input(at_s + 22.0, both(1, 1), of=None))
    assert deployment.next_tick.at_s - deployment.last_s < 60.0


def test_with_load_scaling_the_floor_rises_and_never_falls() -> None:
    deployment = adaptive(enable_load_scaling=True, scale_interval_seconds=5.0)
    seen = []
    for at in range(1, 73):
        now_s = 5.0 * at
        needs = deployment.tick_needs(now_s)
        seconds = needs.traffic_s or 0.0
        rate = 50.0 if 240.0 <= now_s < 300.0 else 1.0
        of = traffic(rate * seconds, seconds) if seconds else None
        effects = deployment.run_tick(tick_input(now_s, both(1, 1), of=of))
        seen.append((now_s, effects.diagnostics.roles[P].floor))
    within = [floor for now_s, floor in seen if 180.0 <= now_s < 360.0]
    assert within == sorted(within)
    assert within[0] == 1
    assert within[-1] > 1


@given(
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e6),
    st.floats(1.0, 1000.0),
    st.one_of(st.none(), st.floats(0.0, 10.0)),
)
def test_a_forecast_is_raised_by_demand_beyond_chance(
    expected: float, requests: float, seconds: float, variation: float | None
) -> None:
    forecast = ExpectedTraffic(requests=expected, isl=1.0, osl=1.0, demand_requests=expected)
    window = TrafficWindow(duration_s=seconds, requests=requests, arrival_variation=variation)
    raised = raise_forecast(forecast, window, 180.0)
    if raised is None:
        low = requests - 2.0 * max(1.0, variation or 1.0) ** 0.5 * requests**0.5
        assert low * 180.0 / seconds <= expected * (1 + 1e-9) or not requests
        return
    assert expected < raised.demand_requests <= requests * 180.0 / seconds
    assert raised.requests == raised.demand_requests


def test_a_burst_hurts_less_where_replicas_start_soon() -> None:
    """Simulated fleets have starts of 20 s, forecasts every 180 s, and a burst of six minutes."""
    kept = {}
    for is_adaptive in (False, True):
        outcome, _ = run_replay(
            {P: 1, D: 1},
            of=fleet(startup_s=20.0),
            startup_s=20.0,
            adaptive_interval=is_adaptive,
            throughput_adjustment_interval_seconds=180.0,
            scale_interval_seconds=180.0,
            max_gpu_budget=-1,
        )
        kept[is_adaptive] = outcome.attainment
    assert kept[True] > kept[False] + 0.05
