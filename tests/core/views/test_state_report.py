"""Tests of the state report against the selector's own views."""

import numpy as np
import pytest

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey, Rank
from select_service.core.views import state_report
from select_service.core.views.state_report import RankLoadSums
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.steps import result_of
from tests.builders.ticks import ticked

RANKS = 1000
KEY = PartitionKey("m", "default")


@pytest.fixture
def selector():
    selector = a_selector(ttl_s=10.0)
    selector.register_worker(a_worker(1, data_parallel_size=2))
    selector.register_worker(a_worker(2))
    return selector


def report(selector, ranks_max):
    parts = selector.fleet, selector.ledger, selector.replay.pending
    return result_of(state_report.build_state_report(*parts, ranks_max))


def hold(selector, rank, tokens):
    """Store the complete blocks of tokens 0, 1, 2 ... on `rank`."""
    partition = selector.fleet.partitions[KEY]
    blocks = compute_block_hashes(np.arange(tokens, dtype=np.uint32), partition.block_size)
    partition.table.writer_of(rank).store(Tier.GPU, None, blocks, blocks)


def test_an_empty_selector_reports_zeros_for_every_lifecycle():
    assert report(a_selector(), RANKS) == (
        (),
        {"incomplete": 0, "schedulable": 0, "unschedulable": 0},
        0,
        0,
        0,
        0,
        0,
        (0, 0, 0, 0, 0),
    )


def test_workers_are_counted_by_lifecycle(selector):
    selector.register_worker(a_worker(3, endpoint=None))
    selector.delete_worker(2, 0.0)
    assert report(selector, RANKS).workers == {
        "incomplete": 1,
        "schedulable": 1,
        "unschedulable": 1,
    }


def test_ranks_report_the_numbers_of_loads(selector):
    selector.reserve(a_reservation("a", 1, tokens=8), 0.0)
    selector.reserve(a_reservation("b", 2, tokens=20), 0.0)
    selector.complete_prefill("b", 0.0)
    (partition,) = report(selector, RANKS).partitions
    (shown,) = selector.inspection.partition_loads()
    assert [(r.worker_id, r.dp_rank, *r.load[:3]) for r in partition.ranks] == [
        (
            row.worker_id,
            row.dp_rank,
            row.potential_prefill_tokens,
            row.potential_decode_blocks,
            row.active_requests,
        )
        for row in shown.loads
    ]
    assert partition.load == RankLoadSums(
        prefill_tokens=8, active_blocks=7, active_requests=2, kv_blocks_active=7, kv_blocks_max=0
    )


def test_kv_blocks_in_use_are_the_engines_reading_or_the_reserved_ones(selector):
    selector.register_worker(a_worker(2, total_kv_blocks=100))
    selector.reserve(a_reservation("a", 2, tokens=20), 0.0)
    (partition,) = selector.fleet.partitions.values()
    usages = {1: 0.5, 2: None}  # worker 1 has not declared its number of blocks
    for rank, slot in partition.table.iterate_slots():
        partition.table.set_kv_usage(slot, usages[rank.worker_id])
    seen = report(selector, RANKS).partitions[0]
    assert [rank.load[3:] for rank in seen.ranks] == [(0, 0), (0, 0), (5, 100)]
    partition.table.set_kv_usage(slot, 0.314)
    seen = report(selector, RANKS).partitions[0]
    assert (seen.ranks[-1].load.kv_blocks_active, seen.load.kv_blocks_active) == (31, 31)
    assert (seen.ranks[-1].load.active_blocks, seen.load.kv_blocks_max) == (5, 100)


def test_ranks_beyond_the_bound_are_only_in_the_sum(selector):
    selector.register_worker(a_worker(3, model_name="other"))
    selector.reserve(a_reservation("a", 2, tokens=8), 0.0)
    first, second = report(selector, 2).partitions
    assert [(rank.worker_id, rank.dp_rank) for rank in first.ranks] == [(1, 0), (1, 1)]
    assert second.ranks == ()
    assert (first.n_ranks, second.n_ranks) == (3, 1)
    assert first.load[:3] == (8, 2, 1)
    assert report(selector, 2).n_ranks == 4


def test_reservations_are_counted_by_state_and_by_their_end(selector):
    for reservation_id in ("a", "b"):
        selector.reserve(a_reservation(reservation_id, 1, tokens=8), 0.0)
    selector.complete_prefill("b", 1.0)
    selector.reserve(a_reservation("c", 2, tokens=8), 5.0)
    before = report(selector, RANKS)
    assert (before.reservations_prefill, before.reservations_decode) == (2, 1)
    assert before.reserved_blocks == 6
    ticked(selector, 11.5)
    selector.delete_worker(2, 0.0)
    selector.run_pending(11.5)
    after = report(selector, RANKS)
    assert (after.reservations_prefill, after.reservations_decode) == (0, 0)
    assert (after.expired, after.dropped_with_rank) == (2, 1)


def test_decisions_and_overlap_are_tallied_in_blocks(selector):
    hold(selector, Rank(1, 0), 8)
    hold(selector, Rank(2, 0), 16)
    selector.select(a_select(20), 0.0)
    selector.select_and_reserve(a_select_and_reserve(20, allowed_worker_ids=[1]), 0.0)
    (partition,) = report(selector, RANKS).partitions
    tally = partition.tally
    assert (tally.selected, tally.reserved, tally.prompt_blocks) == (1, 1, 10)
    assert tally.best_overlap >= tally.chosen_overlap >= tally.matched_gpu > 0


def test_the_index_is_measured(selector):
    hold(selector, Rank(1, 0), 16)
    hold(selector, Rank(2, 0), 16)
    (partition,) = report(selector, RANKS).partitions
    assert (partition.prefix_index.blocks, partition.prefix_index.memberships) == (4, 8)
    assert partition.block_size == 4


def test_a_report_does_not_change_afterwards(selector):
    (before,) = report(selector, RANKS).partitions
    selector.select(a_select(8), 0.0)
    assert before.tally.selected == 0


def test_a_partition_without_ranks_is_gone(selector):
    selector.delete_worker(1, 0.0)
    selector.delete_worker(2, 0.0)
    assert report(selector, RANKS).partitions == ()
