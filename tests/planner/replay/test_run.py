"""Tests of the core in simulated time: growth, shrinking, the ceiling, and equal repeated runs."""

from random import Random
from typing import Any

import msgspec
import pytest

from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import EngineLimits, Role, TickInput
from select_service.planner.replay.planner_run import (
    ChangeCounts,
    PlannerRun,
    ReplayCourse,
    ReplayOutcome,
)
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions
from tests.builders.simulated_engines import generate_requests
from tests.planner.core.deployments import a_deployment

LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000)
BOTH = (Role.PREFILL, Role.DECODE)


def fleet(**given: Any) -> FleetOptions:
    base = {
        "roles": BOTH,
        "speed": dict.fromkeys(BOTH, EngineSpeed()),
        "limits": dict.fromkeys(BOTH, LIMITS),
        "startup_s": 60.0,
    }
    return FleetOptions(**{**base, **given})


def lengths(rng: Random) -> tuple[int, int, int]:
    return 3000, rng.randint(2000, 3000), rng.randint(100, 200)


def run_replay(
    replicas: dict[Role, int],
    *,
    seconds: float = 1200.0,
    of: FleetOptions | None = None,
    **given: Any,
) -> tuple[ReplayOutcome, list[tuple[TickInput, TickEffects]]]:
    """Run few requests, four times as many in the middle third, and few again."""
    deployment = a_deployment(**given)
    course = ReplayCourse(fleet=of or fleet(), replicas=replicas, until_s=seconds)
    ticks: list[tuple[TickInput, TickEffects]] = []
    run = PlannerRun(deployment.settings, deployment, course, lambda *tick: ticks.append(tick))
    third = seconds / 3.0
    requests = generate_requests(
        lambda now: 16.0 if third <= now < 2 * third else 4.0,
        until_s=seconds,
        rate_max=16.0,
        lengths=lengths,
        seed=3,
    )
    return run.run_course(requests), ticks


def test_a_fleet_follows_demand_up_and_down() -> None:
    found, ticks = run_replay({Role.PREFILL: 2, Role.DECODE: 1}, down_window_s=120.0)
    assert found.ticks == len(ticks) == 240
    assert found.most_replicas[Role.PREFILL] >= 4
    ready = [told.replicas[Role.PREFILL].ready for told, _ in ticks]
    assert ready[-1] < max(ready)
    assert found.failed == found.rejected == found.unfinished == 0
    assert 0.5 < found.attainment < 1.0
    assert found.attainment <= min(found.attainment_ttft, found.attainment_itl)
    hours = sum(
        sum(each.ready + each.pending for each in told.replicas.values()) for told, _ in ticks
    )
    assert found.gpu_hours == pytest.approx(hours * 5.0 / 3600.0, rel=0.03)


def test_the_same_run_twice_gives_the_same_bytes() -> None:
    runs = [run_replay({Role.PREFILL: 1, Role.DECODE: 1}, seconds=600.0) for _ in range(2)]
    first, second = (msgspec.json.encode(run, order="deterministic") for run in runs)
    assert first == second


def test_the_ceiling_is_never_exceeded_under_any_demand() -> None:
    found, _ = run_replay({Role.PREFILL: 2, Role.DECODE: 1}, max_gpu_budget=4)
    assert (found.most_gpus, found.over_budget_s) == (4, 0.0)


def test_advice_scales_nothing() -> None:
    found, _ = run_replay({Role.PREFILL: 1, Role.DECODE: 1}, seconds=300.0, advisory=True)
    assert found.scale_ups == {Role.PREFILL: 0, Role.DECODE: 0}
    assert found.gpu_hours == pytest.approx(2 * 300 / 3600)


def test_refused_requests_are_seen_by_the_planner_and_in_the_result() -> None:
    found, ticks = run_replay(
        {Role.PREFILL: 1, Role.DECODE: 1},
        seconds=600.0,
        of=fleet(queue_tokens_max=4000.0),
        max_gpu_budget=2,
    )
    assert found.rejected > 100
    assert found.unfinished == 0
    assert found.attainment_ttft < 1.0 - found.rejected / found.requests + 1e-9
    assert any(told.traffic is not None and told.traffic.rejected for told, _ in ticks)


def test_a_stopped_engine_fails_its_requests() -> None:
    quick = fleet(drain_s=0.1)
    found, _ = run_replay({Role.PREFILL: 6, Role.DECODE: 6}, of=quick, down_window_s=60.0)
    assert sum(found.scale_downs.values()) > 0
    assert found.failed > 0


def test_turns_are_counted_by_role() -> None:
    turns = ChangeCounts(BOTH)
    for role, up in (
        (Role.PREFILL, True),
        (Role.DECODE, False),
        (Role.PREFILL, True),
        (Role.PREFILL, False),
        (Role.PREFILL, True),
        (Role.DECODE, False),
    ):
        turns.count_change(role, up)
    assert turns.ups == {Role.PREFILL: 3, Role.DECODE: 0}
    assert turns.downs == {Role.PREFILL: 1, Role.DECODE: 2}
    assert turns.reversals == {Role.PREFILL: 2, Role.DECODE: 0}


def test_a_request_that_never_ends_is_no_request_that_was_kept() -> None:
    deployment = a_deployment(advisory=True)
    course = ReplayCourse(fleet=fleet(), replicas={Role.PREFILL: 0, Role.DECODE: 1}, until_s=60.0)
    found = PlannerRun(deployment.settings, deployment, course).run_course(
        [SimulatedRequest(1.0, 100, 10, 100)]
    )
    assert (found.requests, found.unfinished, found.attainment) == (1, 1, 0.0)
