"""Tests that a switched service decides as a service with the policy from the start."""

from itertools import product

import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.placement.decision_decoder import decode_row, recorded_terms
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.placement_kernels import COST
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from tests.builders import a_select_and_reserve, a_selector, a_worker

CHOICES = (
    PolicyChoice("work"),
    PolicyChoice("work", ("strict-tail",)),
    PolicyChoice("least_work"),
    PolicyChoice("reference"),
)
FOLLOWING = CHOICES[:3]
CONFIG = RouterConfig(host_cache_hit_weight=0.5)
N_RANKS, SIZE = 5, 4


class Side:
    """Service with bookings on ranks chosen by the callers."""

    def __init__(self, choice):
        self.selector = a_selector(choice.apply_to(CONFIG))
        for worker_id in range(N_RANKS):
            self.selector.register_worker(a_worker(worker_id, block_size=SIZE, total_kv_blocks=64))
        (self.partition,) = self.selector.fleet.partitions.values()

    def book(self, worker_id, path, name):
        hashes = path.tolist()
        asked = {"block_hashes": hashes, "sequence_hashes": hashes, "token_ids": None}
        asked |= {"isl_tokens": SIZE * len(hashes), "allowed_worker_ids": [worker_id]}
        self.selector.select_and_reserve(a_select_and_reserve(reservation_id=name, **asked), 0.0)

    def store(self, worker_id, path):
        self.partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, path, path)

    def complete(self, name):
        self.selector.complete_prefill(name, 0.0)

    def switch_advisory(self, choice):
        policies = self.selector.fleet.policies
        policies.put_rule(PolicyScope("m"), choice)
        for _ in policies.apply_to_partitions():
            pass

    def decide(self, path, config, draw):
        """Return the slot and the terms of all ranks."""
        prompt, placing = Prompt(path, path, SIZE * len(path) + 1), self.partition.placer
        eligible = np.ones(N_RANKS, np.bool_)
        slot = placing.place_prompt(prompt, config, eligible, draw=draw)
        return slot, placing.cost_terms(prompt, config, eligible).tolist()


def paths(rng):
    conversations = rng.integers(1, 2**62, (3, 12), np.uint64)
    return [path[: rng.integers(1, 13)].copy() for path in conversations for _ in range(4)]


def run_life(rng, sides, stores):
    """Apply the same bookings, events and ends to both."""
    some = paths(rng)
    for number in range(20):
        at, path = int(rng.integers(N_RANKS)), some[rng.integers(len(some))]
        for side in sides:
            side.book(at, path, f"r{number}")
        if stores and number % 3 == 0:
            for side in sides:
                side.store(at, path[: len(path) // 2 + 1])
        if number % 4 == 3:
            for side in sides:
                side.complete(f"r{number - 2}")
    return some


def agree(rng, sides, some):
    other = CONFIG._replace(temperature=0.5, disk_cache_hit_weight=0.1)
    for config, path in product((CONFIG, other), some):
        draw = float(rng.random())
        first, second = (side.decide(path, config, draw) for side in sides)
        assert first == second


@pytest.mark.parametrize(("before", "after"), list(product(FOLLOWING, CHOICES)))
@pytest.mark.parametrize("seed", range(4))
def test_decisions_after_a_switch_equal_a_service_with_the_policy_from_the_start(
    seed, before, after
):
    rng = np.random.default_rng(seed)
    switched, fresh = sides = Side(before), Side(after)
    some = run_life(rng, sides, stores=True)
    switched.switch_advisory(after)
    agree(rng, sides, some)
    continue_life(rng, sides)
    for side in (switched, fresh):
        side.selector.check_invariants()


def continue_life(rng, sides):
    for side in sides:
        side.complete("r0")
        side.store(1, np.arange(1, 9, dtype=np.uint64))
    for number in range(6):
        path = rng.integers(1, 2**62, 6, np.uint64)
        for side in sides:
            side.book(number % N_RANKS, path, f"later-{number}")
        agree(rng, sides, [path, path[:3].copy()])


@pytest.mark.parametrize("after", FOLLOWING)
@pytest.mark.parametrize("seed", range(4))
def test_after_the_reference_own_work_is_known_but_no_progress(seed, after):
    rng = np.random.default_rng(seed)
    sides = Side(CHOICES[3]), Side(after)
    some = run_life(rng, sides, stores=False)
    sides[0].switch_advisory(after)
    agree(rng, sides, some)
    path = rng.integers(1, 2**62, 8, np.uint64)
    for number in range(20):
        for side in sides:
            side.complete(f"r{number}")
    for side in sides:
        side.book(2, path, "followed")
        side.store(2, path[:5])
    agree(rng, sides, [path, *some])


def test_an_older_prefill_counts_as_work_until_it_ends():
    side, path = Side(CHOICES[3]), np.arange(1, 9, dtype=np.uint64)
    side.book(2, path, "older")
    side.switch_advisory(CHOICES[0])
    side.store(2, path[:5])
    other = np.arange(100, 104, dtype=np.uint64)
    progress = side.partition.placer.policy.term_names.index("progress")
    booked = side.partition.placer.policy.term_names.index("booked_work")
    terms = side.decide(other, CONFIG, 0.0)[1]
    assert (terms[booked][2], terms[progress][2]) == (32.0, 0.0)
    side.complete("older")
    assert side.decide(other, CONFIG, 0.0)[1][booked][2] == 0.0


def test_decisions_that_were_kept_keep_their_policy():
    side, path, ring = Side(CHOICES[0]), np.arange(1, 9, dtype=np.uint64), DecisionRing(4)
    side.book(2, path, "older")
    given = Prompt(path, path, 33), CONFIG, np.ones(N_RANKS, np.bool_)
    side.partition.placer.place_prompt(*given, ring=ring)
    row = ring.draft_row().copy()
    side.switch_advisory(CHOICES[3])
    found = decode_row(row)
    assert found.policy.name == "work"
    assert recorded_terms(row, found, SIZE)[COST].tolist() == found.costs.tolist()
    side.partition.placer.place_prompt(*given, ring=ring)
    assert decode_row(ring.draft_row()).policy.name == "reference"
