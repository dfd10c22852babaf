"""Tests of a fleet that may scale to zero: its sleep and its wake-up, over hours."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from select_service.planner.wiring import build_deployment
from tests.planner.core.deployments import LIMITS, a_deployment, tick_input, traffic
from tests.planner.invariants import check_deployment

D = Role.DECODE
HOUR, MINUTE = 3600.0, 60.0
STARTUP_S = 40.0
LOOPS: Mapping[str, dict[str, bool]] = {
    "throughput": {"enable_throughput_scaling": True, "enable_load_scaling": False},
    "load": {"enable_throughput_scaling": False, "enable_load_scaling": True},
    "both": {"enable_throughput_scaling": True, "enable_load_scaling": True},
}


class Fleet:
    """Selectors and a platform that follows decisions; requests without any replica are refused.

    rate: function of the time that returns requests a second
    """

    def __init__(
        self, deployment: PlannedDeployment, rate: Callable[[float], float], ready: int
    ) -> None:
        self.deployment, self.rate, self.ready = deployment, rate, ready
        self.expected, self.since, self.now = ready, 0.0, 0.0
        self.reasons: list[Reason] = []
        self.counts: list[tuple[float, int]] = []

    def run(self, until: float) -> None:
        while self.deployment.next_tick.at_s <= until:
            self.now = self.deployment.next_tick.at_s
            effects = self.deployment.run_tick(self._tick_input())
            self.reasons += effects.diagnostics.reasons
            self.counts.append((self.now, self.ready))
            if effects.scale_to is not None:
                self.expected, self.since = effects.scale_to[D], self.now
                self.ready = min(self.ready, self.expected)
            check_deployment(self.deployment)

    def _tick_input(self) -> TickInput:
        if self.ready < self.expected and self.now - self.since >= STARTUP_S:
            self.ready = self.expected
        here = RoleReplicas(
            ready=self.ready,
            expected=self.expected,
            pending=self.expected - self.ready,
            startup_only=True,
            limits=LIMITS if self.ready else EngineLimits(),
        )
        window = self.deployment.tick_needs(self.now).traffic_s
        rate = self.rate(self.now)
        busy = {"decode_requests": 1, "decode_kv_tokens": 3000} if rate else {}
        passes = tuple(ForwardPass(worker=f"w{n}", **busy) for n in range(self.ready))
        return TickInput(
            now_s=self.now,
            replicas={D: here},
            traffic=None if window is None else self._traffic(window, rate),
            passes={D: passes} if passes else None,
        )

    def _traffic(self, window: float, rate: float) -> TrafficWindow:
        requests = rate * window
        served = {"isl": 3000.0, "osl": 150.0} if requests and self.ready else {}
        refused = 0.0 if self.ready else requests
        return TrafficWindow(duration_s=window, requests=requests, rejected=refused, **served)


def settings(**given: Any) -> dict[str, Any]:
    relaxed = {"ttft_ms": 5000.0, "itl_ms": 200.0}
    return {"mode": "agg", "min_endpoint": 0, "startup_s": STARTUP_S, **relaxed, **given}


def learnt_deployment(**given: Any) -> PlannedDeployment:
    return a_deployment(**settings(**given))


def fresh(**given: Any) -> PlannedDeployment:
    """Return a deployment without learnt models, with the product's forecasts."""
    return build_deployment(
        DeploymentSettings(throughput_adjustment_interval_seconds=60.0, **settings(**given)), 0.0
    )


@pytest.mark.parametrize("made", [learnt_deployment, fresh])
@pytest.mark.parametrize("loops", LOOPS)
def test_a_fleet_sleeps_wakes_after_hours_and_sleeps_again(loops, made):
    fleet = Fleet(
        made(**LOOPS[loops]), lambda now: 0.2 if 3 * HOUR < now <= 3 * HOUR + 1800 else 0.0, ready=2
    )
    fleet.run(HOUR)
    assert (fleet.ready, fleet.expected) == (0, 0)
    fleet.run(3 * HOUR)
    assert (fleet.ready, fleet.expected) == (0, 0)
    assert Reason.WAKE_UP not in fleet.reasons
    fleet.run(3 * HOUR + 12.0)  # at the next check of load, whichever loops are on
    assert (fleet.ready, fleet.expected) == (0, 1)
    assert Reason.WAKE_UP in fleet.reasons
    fleet.run(3 * HOUR + 1800)
    assert {ready for at, ready in fleet.counts if at > 3 * HOUR + 2 * STARTUP_S} == {1}
    fleet.run(4 * HOUR)
    assert (fleet.ready, fleet.expected) == (0, 0)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_minimum_is_kept_without_any_request(loops):
    fleet = Fleet(learnt_deployment(**LOOPS[loops], min_endpoint=1), lambda _: 0.0, ready=1)
    fleet.run(2 * HOUR)
    assert (fleet.ready, fleet.expected) == (1, 1)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_trickle_keeps_one_replica_up(loops):
    fleet = Fleet(
        learnt_deployment(**LOOPS[loops]), lambda now: 0.2 if now % 240 < 60 else 0.0, ready=1
    )
    fleet.run(2 * HOUR)
    assert {ready for _, ready in fleet.counts} == {1}


def asleep(**given: Any) -> PlannedDeployment:
    """Return a deployment without replicas at its last tick."""
    deployment = learnt_deployment(**given)
    deployment.run_tick(tick_input(60.0, {D: RoleReplicas(ready=0, expected=0)}, of=traffic(0.0)))
    return deployment


def scale_after(
    deployment: PlannedDeployment, now_s: float, of: TrafficWindow | None
) -> dict[Role, int] | None:
    return deployment.run_tick(
        tick_input(now_s, {D: RoleReplicas(ready=0, expected=0)}, of=of)
    ).scale_to


def test_one_refused_request_of_a_window_that_is_not_whole_wakes():
    assert scale_after(asleep(), 65.0, TrafficWindow(duration_s=5.0)) is None
    assert scale_after(asleep(), 65.0, TrafficWindow(duration_s=5.0, rejected=1.0)) == {D: 1}
    assert scale_after(asleep(), 65.0, TrafficWindow(duration_s=5.0, queued_requests=1.0)) == {D: 1}


def test_a_fleet_wakes_after_a_long_time_without_observations():
    deployment = asleep()
    for n in range(1, 6):
        effects = deployment.run_tick(
            tick_input(
                60.0 + 60.0 * n,
                {D: RoleReplicas(ready=0, expected=0)},
                of=TrafficWindow(duration_s=60.0),
            )
        )
    assert Reason.OBSERVATION_STALE in effects.diagnostics.reasons
    assert scale_after(deployment, 425.0, TrafficWindow(duration_s=5.0, rejected=1.0)) == {D: 1}


def test_both_roles_wake_together_and_no_more_than_they_may():
    deployment = a_deployment(min_endpoint=0, max_gpu_budget=2)
    none = RoleReplicas(ready=0, expected=0)
    effects = deployment.run_tick(tick_input(60.0, dict.fromkeys(Role, none), of=traffic(0.0)))
    assert effects.scale_to is None
    effects = deployment.run_tick(
        tick_input(65.0, dict.fromkeys(Role, none), of=TrafficWindow(duration_s=5.0, rejected=9.0))
    )
    assert effects.scale_to == {Role.PREFILL: 1, Role.DECODE: 1}


def test_limits_of_engines_outlive_the_last_of_them():
    """A fleet that wakes to much traffic is then sized at once."""
    deployment = learnt_deployment()
    deployment.run_tick(
        tick_input(60.0, {D: RoleReplicas(ready=1, expected=1, limits=LIMITS)}, of=traffic(60.0))
    )
    gone = {D: RoleReplicas(ready=0, expected=0, limits=EngineLimits(num_gpu=2))}
    effects = deployment.run_tick(
        tick_input(120.0, gone, of=TrafficWindow(duration_s=60.0, requests=600.0))
    )
    assert effects.scale_to is not None
    assert effects.scale_to[D] > 1


def test_the_document_stays_at_zero():
    deployment = a_deployment(document=True, **settings())
    effects = deployment.run_tick(
        tick_input(
            60.0,
            {D: RoleReplicas(ready=0, expected=0)},
            of=TrafficWindow(duration_s=60.0, rejected=9.0),
        )
    )
    assert effects.scale_to is None
