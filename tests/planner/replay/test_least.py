"""Tests of the smallest possible fleet: one replica for its capacity, and more for more load."""

from select_service.planner.core.tick_input import EngineLimits, Role
from select_service.planner.replay.least_gpu_hours import (
    ServicePromise,
    find_least_replicas,
    least_gpu_hours,
)
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions, SimulatedFleet

LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000)
OPTIONS = FleetOptions(
    roles=(Role.PREFILL, Role.DECODE),
    speed=dict.fromkeys(Role, EngineSpeed()),
    limits=dict.fromkeys(Role, LIMITS),
    startup_s=60.0,
)
PROMISE = ServicePromise(ttft_s=0.5, itl_s=0.03, attainment=0.95)


def burst(rates: list[float], interval_s: float) -> list[SimulatedRequest]:
    """Return requests at the rates, in 1/s; a prompt of 2,000 tokens takes 0.108 s."""
    result, now = [], 0.0
    for rate in rates:
        end = now + interval_s
        while now < end:
            result.append(SimulatedRequest(now, 2000, 20, 2000))
            now += 1.0 / rate
        now = end
    return result


def test_replicas_follow_the_rate() -> None:
    requests = burst([5.0, 15.0, 25.0, 5.0], 100.0)
    needed = find_least_replicas(
        requests, OPTIONS, PROMISE, interval_s=100.0, most={Role.PREFILL: 5, Role.DECODE: 5}
    )
    assert needed[Role.PREFILL][:3] == [1, 2, 3]
    assert needed[Role.DECODE] == [1, 1, 1, 1]
    hours = least_gpu_hours(
        needed,
        {Role.PREFILL: 2, Role.DECODE: 1},
        interval_s=100.0,
        least={Role.PREFILL: 2, Role.DECODE: 1},
    )
    assert hours * 3600 == 100 * 2 * sum(max(2, n) for n in needed[Role.PREFILL]) + 400


def test_a_fleet_starts_drains_and_loses_nothing() -> None:
    fleet = SimulatedFleet(OPTIONS, {Role.PREFILL: 1, Role.DECODE: 2}, 0.0)
    fleet.scale_role(Role.PREFILL, 3, 0.0)
    for request in burst([10.0], 50.0):
        fleet.add_request(request, request.arrived_s)
    found = fleet.read_replicas()[Role.PREFILL]
    assert (found.ready, found.pending, found.expected, found.startup_only) == (1, 2, 3, True)
    fleet.advance_to(60.0)
    assert fleet.read_replicas()[Role.PREFILL].ready == 3
    fleet.scale_role(Role.DECODE, 1, 60.0)
    fleet.scale_role(Role.PREFILL, 1, 60.0)
    fleet.advance_to(400.0)
    assert not fleet.read_replicas()[Role.DECODE].in_progress
    assert (len(fleet.done), fleet.failed, fleet.count_held()) == (500, 0, 0)
    assert abs(fleet.gpu_s - (3 * 60 + 2 * 60 + 2 * 340)) < 30


def test_a_scale_down_cancels_starts_first() -> None:
    fleet = SimulatedFleet(OPTIONS, {Role.PREFILL: 2, Role.DECODE: 1}, 0.0)
    fleet.scale_role(Role.PREFILL, 4, 0.0)
    fleet.scale_role(Role.PREFILL, 2, 10.0)
    found = fleet.read_replicas()[Role.PREFILL]
    assert (found.ready, found.pending, found.in_progress) == (2, 0, False)


def test_requests_wait_for_the_first_engine_and_end() -> None:
    fleet = SimulatedFleet(OPTIONS, {Role.PREFILL: 0, Role.DECODE: 1}, 0.0)
    fleet.add_request(SimulatedRequest(0.0, 100, 5, 100), 0.0)
    assert fleet.count_held() == 1
    fleet.scale_role(Role.PREFILL, 1, 0.0)
    fleet.advance_to(70.0)
    assert fleet.count_held() == 0
    assert fleet.done[0].ttft_s is not None
    assert fleet.done[0].ttft_s > 60.0


def test_an_engine_that_is_stopped_with_requests_loses_them() -> None:
    options = FleetOptions(
        roles=(Role.DECODE,),
        speed=dict.fromkeys(Role, EngineSpeed()),
        limits=dict.fromkeys(Role, LIMITS),
        drain_s=0.5,
    )
    fleet = SimulatedFleet(options, {Role.DECODE: 2}, 0.0)
    for _ in range(4):
        fleet.add_request(SimulatedRequest(0.0, 2000, 500, 2000), 0.0)
    fleet.scale_role(Role.DECODE, 1, 0.0)
    fleet.advance_to(100.0)
    assert fleet.failed == 2
    assert len(fleet.done) == 2
