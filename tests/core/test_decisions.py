"""Tests of the records of a decision: the partition's tally and the candidates' terms."""

import numpy as np
import pytest

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker

KEY = PartitionKey("m", "default")


def store(selector, worker_id, tokens, tier=Tier.GPU):
    hashes = compute_block_hashes(np.arange(tokens, dtype=np.uint32), 4)
    writer = selector.fleet.partitions[KEY].table.writer_of(Rank(worker_id, 0))
    writer.store(tier, None, hashes, hashes)


@pytest.fixture
def selector():
    """Return a selector: worker 1 holds four blocks of the usual prompt, worker 2 one."""
    selector = a_selector()
    for worker_id, tokens in ((1, 16), (2, 4)):
        selector.register_worker(a_worker(worker_id, taints=[f"t{worker_id}"]))
        store(selector, worker_id, tokens)
    return selector


def overlaps(tally):
    return tally.best_overlap, tally.chosen_overlap


def test_the_best_reachable_overlap_is_counted_beside_the_chosen_one(selector):
    placing = selector.fleet.partitions[KEY].placer
    assert selector.select(a_select(16), 0.0).selection.worker_id == 1
    assert overlaps(placing.total_tally) == (4, 4)
    selector.reserve(a_reservation("busy", worker_id=1, tokens=400), 0.0)
    assert selector.select(a_select(16), 0.0).selection.worker_id == 2
    assert overlaps(placing.total_tally) == (8, 5)


def test_only_candidates_are_reachable(selector):
    selector.select(a_select(16, allowed_worker_ids=[2]), 0.0)
    assert overlaps(selector.fleet.partitions[KEY].placer.total_tally) == (1, 1)


def test_preferred_taints_scale_the_cost_but_not_of_a_pinned_request(selector):
    wishes = {"routing_constraints": {"preferred_taints": {"t2": 1.0}}}

    def cost_of_worker_2(**fields):
        rows = selector.select(a_select(16, **fields), 0.0, explain=True).candidates
        return next(row["cost"] for row in rows if row["worker_id"] == 2)

    plain = cost_of_worker_2()
    assert cost_of_worker_2(**wishes) == pytest.approx(plain * np.exp(-np.tanh(1.0)), abs=1e-3)
    pinned = {"pinned_worker": {"worker_id": 2, "dp_rank": 0}}
    assert cost_of_worker_2(**wishes, **pinned) == plain


@pytest.mark.parametrize(("tracked", "blocks"), [(True, 3), (False, 2)])
def test_output_blocks_count_unless_they_are_not_tracked(tracked, blocks):
    selector = a_selector(RouterConfig(track_output_blocks=tracked))
    selector.register_worker(a_worker(1))
    selector.select_and_reserve(a_select_and_reserve(8, reservation_id="r"), 0.0)
    selector.add_output_block("r", None, 0.0)
    ((row,),) = [loads.loads for loads in selector.inspection.partition_loads()]
    assert row.potential_decode_blocks == blocks
    selector.free_reservation("r", 0.0)
    assert next(selector.inspection.partition_loads()).loads[0].potential_decode_blocks == 0
