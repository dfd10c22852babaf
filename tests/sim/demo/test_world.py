"""Virtual time, the baselines, and the figures made of them."""

import math

import pytest

from select_service.sim.demo.baselines import least_loaded, round_robin, run_baseline
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.prefix_cache import KvEvent, PrefixCache, VllmBlockStored
from select_service.sim.demo.statistics_of_runs import coefficient_of_variation, mean, percentile
from select_service.sim.demo.virtual_world import (
    PREFILL_FIXED_S,
    PREFILL_TOKEN_S,
    DemoRequest,
    RequestStep,
    VirtualWorld,
)
from tests.sim.demo.caches import cached_keys

BLOCK_SIZE = 16
RANKS = 3


def a_workload(requests: int = 120) -> ConversationWorkload:
    return generate_workload(WorkloadShape(requests, BLOCK_SIZE, RANKS, seed=3))


def engines(blocks_max: int = 1000) -> list[PrefixCache]:
    return [PrefixCache(blocks_max, BLOCK_SIZE, hash_seed=i) for i in range(RANKS)]


def always_first(world: VirtualWorld, request: DemoRequest) -> int:
    return 0


def test_each_request_passes_its_steps_in_order_and_time_never_goes_back() -> None:
    workload = a_workload()
    world = VirtualWorld(workload, engines())
    steps: dict[str, list[RequestStep]] = {}
    before_s = 0.0
    while (happening := world.next_step()) is not None:
        assert world.now_s >= before_s
        before_s = world.now_s
        steps.setdefault(happening.request.name, []).append(happening.step)
        if happening.step is RequestStep.CHOOSE:
            world.assign_rank(happening.request, 0)
    assert len(steps) == workload.requests
    for passed in steps.values():
        assert passed[:2] == [RequestStep.CHOOSE, RequestStep.PREFILL_DONE]
        assert set(passed[2:-1]) == {RequestStep.OUTPUT_BLOCK}
        assert passed[-1] is RequestStep.FINISHED


@pytest.mark.parametrize("policy", [always_first, round_robin(), least_loaded(seed=1)])
def test_every_request_is_served_once_even_by_caches_hardly_large_enough(policy) -> None:
    workload = a_workload()
    world = run_baseline(workload, engines(workload.places_max), policy)
    assert world.tally.requests == workload.requests
    assert sum(line.requests for line in world.lines) == workload.requests
    assert all(line.live_requests == 0 for line in world.lines)
    for line in world.lines:
        line.engine.check_invariants()


def test_an_endless_cache_reaches_all_that_can_be_reached() -> None:
    world = run_baseline(a_workload(), engines(blocks_max=10**6), always_first)
    assert 0 < world.tally.hit_blocks == world.tally.reachable_blocks < world.tally.prompt_blocks


def test_round_robin_is_even_and_finds_less_than_one_endless_cache() -> None:
    world = run_baseline(a_workload(), engines(), round_robin())
    assert {line.requests for line in world.lines} == {40}
    assert world.tally.hit_blocks < world.tally.reachable_blocks


def test_least_loaded_chooses_a_rank_with_fewest_live_requests() -> None:
    policy = least_loaded(seed=1)
    chosen: list[bool] = []

    def watched(world: VirtualWorld, request: DemoRequest) -> int:
        rank_index = policy(world, request)
        live = [line.live_requests for line in world.lines]
        chosen.append(live[rank_index] == min(live))
        return rank_index

    run_baseline(a_workload(), engines(), watched)
    assert all(chosen)


def test_baselines_are_repeatable() -> None:
    def hits() -> int:
        return run_baseline(a_workload(), engines(), least_loaded(seed=5)).tally.hit_blocks

    assert hits() == hits()


def test_a_lone_prompt_takes_the_modelled_time() -> None:
    workload = a_workload(requests=1)
    world = run_baseline(workload, engines(), always_first)
    prompt_tokens = workload.sessions[0].turns[0].prompt_tokens
    expected_s = PREFILL_FIXED_S + PREFILL_TOKEN_S * prompt_tokens
    assert world.tally.first_token_s == pytest.approx([expected_s])


def test_every_computed_block_is_emitted_once() -> None:
    stored: list[int] = []

    def collect(rank_index: int, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, VllmBlockStored):
                stored.extend(event.block_hashes)

    world = VirtualWorld(a_workload(), [PrefixCache(10**6, BLOCK_SIZE)], collect)
    while (happening := world.next_step()) is not None:
        if happening.step is RequestStep.CHOOSE:
            world.assign_rank(happening.request, 0)
    assert sorted(stored) == sorted(cached_keys(world.lines[0].engine))


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([3.0], 50) == 3.0
    assert math.isnan(percentile([], 50))


def test_variation_is_zero_for_equal_values_and_for_none() -> None:
    assert coefficient_of_variation([5.0, 5.0]) == 0.0
    assert coefficient_of_variation([0.0, 0.0]) == 0.0
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(0.5)
    assert mean([1.0, 3.0]) == 2.0
