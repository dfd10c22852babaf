"""Policies of the service in the demo's own process."""

import pytest

from select_service.sim.demo.baselines import round_robin, run_baseline
from select_service.sim.demo.conversations import WorkloadShape, generate_workload
from select_service.sim.demo.core_baseline import run_core
from select_service.sim.demo.prefix_cache import PrefixCache

WORKLOAD = generate_workload(WorkloadShape(requests=300, block_size=16, ranks=4, seed=7))


def engines() -> list[PrefixCache]:
    return [PrefixCache(2000, 16, hash_seed=seed) for seed in range(4)]


@pytest.mark.parametrize("policy", ["work", "reference"])
def test_every_request_is_served_and_more_is_found_than_in_turns(policy: str) -> None:
    world = run_core(WORKLOAD, engines(), policy, seed=1)
    blind = run_baseline(WORKLOAD, engines(), round_robin())
    assert world.tally.requests == blind.tally.requests == WORKLOAD.requests
    assert all(line.live_requests == 0 for line in world.lines)
    assert blind.tally.hit_blocks < world.tally.hit_blocks <= world.tally.reachable_blocks


def test_a_run_is_repeatable() -> None:
    first, second = (run_core(WORKLOAD, engines(), "work", seed=1).tally for _ in range(2))
    assert first == second
