"""Tests of the demo's workload on simulated engines, and of the baselines."""

import numpy as np
import pytest

from select_service.core.placement.router_config import RouterConfig
from select_service.sim.demo.baselines import run_baselines
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.demo_fleet import FleetShape, fresh_engines
from select_service.sim.demo.report_tables import percentile
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.gpu_hardware import A100_40
from select_service.sim.engine.prefix_cache import VllmBlockStored
from select_service.sim.engine.replay_world import ReplayWorld, RunRecord, StepKind
from select_service.sim.engine.simple_routers import LeastRequestsRouter, RoundRobinRouter

BLOCK_SIZE = 16
RANKS = 3
ENDLESS = 10**5


def a_workload(requests: int = 120) -> ConversationWorkload:
    return generate_workload(WorkloadShape(requests, BLOCK_SIZE, RANKS, seed=3))


def a_shape(blocks: int = 1000, ranks: int = RANKS) -> FleetShape:
    return FleetShape(ranks, 1, blocks, BLOCK_SIZE, seed=1)


def cached_blocks(record: RunRecord) -> int:
    return sum(each.cached for each in record.histories) // BLOCK_SIZE


def round_robin(workload: ConversationWorkload, shape: FleetShape) -> ReplayWorld:
    """Return a finished world with round-robin placement."""
    world = fresh_engines(shape, workload.catalog).make_world(workload)
    world.run_open(RoundRobinRouter(shape.ranks, 1), 1.0)
    return world


def test_each_request_passes_its_steps_in_order_and_time_never_goes_back() -> None:
    workload = a_workload()
    world = fresh_engines(a_shape(), workload.catalog).make_world(workload)
    steps: dict[int, list[StepKind]] = {}
    before_s = 0.0
    for step in world.open_steps(1.0):
        assert world.time >= before_s
        before_s = world.time
        if step.kind not in (StepKind.KV_EVENTS, StepKind.RELEASED):
            steps.setdefault(step.number, []).append(step.kind)
        if step.kind is StepKind.CHOOSE:
            world.assign_rank(step.number, 0)
    assert len(steps) == workload.requests
    for number, passed in steps.items():
        session, turn = world.turn_of(number)
        assert passed[:2] == [StepKind.CHOOSE, StepKind.FIRST_TOKEN]
        assert set(passed[2:-1]) == {StepKind.OUTPUT_BLOCK}
        outputs = workload.sessions[session].turns[turn].output_tokens // BLOCK_SIZE
        assert len(passed) == 3 + outputs
        assert passed[-1] is StepKind.FINISHED


@pytest.mark.parametrize("router", [RoundRobinRouter, LeastRequestsRouter])
def test_every_request_is_served_once_even_by_caches_hardly_large_enough(router) -> None:
    workload = a_workload()
    engines = fresh_engines(a_shape(workload.places_max), workload.catalog)
    record = engines.make_world(workload).run_open(router(RANKS, 1), 1.0)
    assert len(record.histories) == workload.requests
    assert all(each.end_s >= each.first_s > each.arrived_s for each in record.histories)
    for engine in engines.engines:
        engine.check_invariants()
        assert engine.pool.has_room(engine.pool.places, np.empty(0, np.int32))


def test_an_endless_cache_reaches_all_that_can_be_reached() -> None:
    workload = a_workload()
    record = round_robin(workload, a_shape(ENDLESS, ranks=1)).record
    assert 0 < cached_blocks(record) == workload.count_reachable()


def test_round_robin_is_even_and_finds_less_than_one_endless_cache() -> None:
    workload = a_workload()
    record = round_robin(workload, a_shape()).record
    assert np.bincount([each.rank for each in record.histories]).tolist() == [40] * RANKS
    assert cached_blocks(record) < workload.count_reachable()


def test_baselines_are_repeatable_and_the_core_finds_more_than_round_robin() -> None:
    workload = generate_workload(WorkloadShape(300, BLOCK_SIZE, 4, seed=7))
    shape = a_shape(2000, ranks=4)
    first, again = (run_baselines(workload, shape, "reference") for _ in range(2))
    assert first == again
    assert list(first) == ["work", "round robin", "least loaded"]
    reachable = workload.count_reachable()
    assert cached_blocks(first["round robin"]) < cached_blocks(first["work"]) <= reachable


def test_a_lone_prompt_takes_the_modelled_time() -> None:
    workload = a_workload(requests=1)
    (first,) = round_robin(workload, a_shape(ranks=1)).record.histories
    prompt_tokens = workload.sessions[0].turns[0].prompt_tokens
    assert prompt_tokens < A100_40.batch_tokens
    expected_s = A100_40.step_s(prompt_tokens, prompt_tokens**2 / 2, 0)
    assert first.first_s - first.arrived_s == pytest.approx(expected_s)


def test_every_computed_block_is_announced_when_it_is_allocated() -> None:
    workload = a_workload()
    engines = fresh_engines(a_shape(ENDLESS, ranks=1), workload.catalog)
    (cache,), stored = engines.caches, list[int]()
    world = engines.make_world(workload)
    for step in world.open_steps(1.0):
        if step.kind is StepKind.KV_EVENTS:
            for event in cache.render_events(step.changes):
                assert isinstance(event, VllmBlockStored)
                stored += event.block_hashes
        elif step.kind is StepKind.CHOOSE:
            assert len(stored) == len(cache.pool.cached_blocks())
            world.assign_rank(step.number, 0)
    assert sorted(stored) == sorted(map(cache.block_hash, cache.pool.cached_blocks()))


def test_caches_continue_in_the_next_world() -> None:
    workload = a_workload()
    engines = fresh_engines(a_shape(ENDLESS, ranks=1), workload.catalog)
    records = [engines.make_world(workload).run_open(RoundRobinRouter(1, 1), 1.0) for _ in "12"]
    prompts = [(each.turn.prompt_tokens - 1) // BLOCK_SIZE for each in records[1].histories]
    assert cached_blocks(records[0]) < cached_blocks(records[1]) == sum(prompts)


def test_a_core_without_delay_indexes_every_cached_block() -> None:
    workload, shape = a_workload(), a_shape()
    world = fresh_engines(shape, workload.catalog).make_world(workload)
    router = CoreRouter(CoreScene(shape.hardware, workload.catalog.size, 1), RouterConfig())
    world.run_open(router, 1.0)
    held = sum(len(engine.pool.cached_blocks()) for engine in world.engines)
    assert router.partition.index.stats().memberships == held


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([3.0], 50) == 3.0
