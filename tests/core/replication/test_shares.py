"""Tests of shares: every rank belongs to a single live replica, the same for all replicas."""

import numpy as np

from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication import rank_shares
from select_service.core.replication.rank_shares import find_outside
from select_service.core.replication.replica_liveness import LIVENESS_TIMEOUT_S
from tests.builders import a_select_and_reserve, a_selector, a_worker

RANKS = [Rank(worker_id, dp) for worker_id in (*range(200), 2**64 - 1) for dp in (0, 1)]
IDS = (7, 2**64 - 1, 12345)


def inside(own, ids=IDS):
    mask = find_outside(RANKS, own, [other for other in ids if other != own])
    return {rank for rank, is_outside in zip(RANKS, mask, strict=True) if not is_outside}


def test_every_rank_is_in_one_share_and_shares_are_similar():
    parts = [inside(own) for own in IDS]
    assert sum(map(len, parts)) == len(RANKS)
    assert set().union(*parts) == set(RANKS)
    assert min(map(len, parts)) > len(RANKS) / 5


def test_only_the_ranks_of_a_leaving_replica_change_hands():
    before, after = inside(7), inside(7, IDS[:2])
    assert before < after
    assert after - before < inside(12345)


def test_without_peers_nothing_is_outside():
    assert not find_outside(RANKS, 7, []).any()
    assert find_outside([], 7, [8]).tolist() == []


def a_replica(seed, workers=40):
    selector = a_selector(RouterConfig(policy="work"), seed=seed)
    selector.followers.replicas.start_sending(lambda event: None)
    for worker_id in range(workers):
        selector.register_worker(a_worker(worker_id, data_parallel_size=2))
    return selector


def update_shares(selector, now):
    """Return ({rank: whether outside the share}, number of turns)."""
    turns = 1
    while selector.followers.replicas.shares.run_turn(now):
        turns += 1
    (partition,) = selector.fleet.partitions.values()
    partition.check_invariants()
    column = partition.table.columns.outside
    return {rank: bool(column[slot]) for rank, slot in partition.table.iterate_slots()}, turns


def test_two_replicas_share_the_ranks_while_both_are_alive():
    here, there = a_replica(1), a_replica(2)
    assert not any(update_shares(here, 0.0)[0].values())
    for one, other in ((here, there), (there, here)):
        one.followers.replicas.liveness.record_digest(other.followers.replicas.router_id, 1.0)
    ours, theirs = update_shares(here, 1.0)[0], update_shares(there, 1.0)[0]
    assert ours == {rank: not is_outside for rank, is_outside in theirs.items()}
    assert 0 < sum(ours.values()) < len(ours)
    assert not any(update_shares(here, 1.0 + LIVENESS_TIMEOUT_S)[0].values())


def test_new_ranks_are_shared_and_removed_ranks_leave_nothing():
    here = a_replica(1, workers=2)
    here.followers.replicas.liveness.record_digest(99, 1.0)
    update_shares(here, 1.0)
    for worker_id in range(2, 30):
        here.register_worker(a_worker(worker_id))
    here.delete_worker(0, 1.0)
    here.run_pending(1.0)
    found, _ = update_shares(here, 2.0)
    expected = find_outside(found, here.followers.replicas.router_id, [99]).tolist()
    assert list(found.values()) == expected
    assert any(expected)


def test_many_ranks_take_several_turns(monkeypatch):
    monkeypatch.setattr(rank_shares, "TURN_SLOTS_MAX", 8)
    here = a_replica(1, workers=10)
    here.followers.replicas.liveness.record_digest(99, 1.0)
    found, turns = update_shares(here, 1.0)
    assert turns == 4  # 20 ranks, and one turn that finds no rank left
    assert (
        list(found.values())
        == find_outside(found, here.followers.replicas.router_id, [99]).tolist()
    )
    assert update_shares(here, 2.0)[1] == 1


def test_events_of_the_reference_make_no_shares():
    """Check a replica that sends no digests and therefore has no share."""
    here = a_replica(1)
    here.followers.replicas.liveness.record_event(99, 1.0)
    assert not any(update_shares(here, 1.0)[0].values())


def test_a_selector_prefers_its_share_only_with_peers():
    alone, shared = a_replica(1), a_replica(1)
    shared.followers.replicas.liveness.record_digest(99, 1.0)
    is_outside, _ = update_shares(shared, 1.0)
    update_shares(alone, 1.0)
    chosen = [costs_and_choice(selector) for selector in (alone, shared)]
    (table,) = (partition.table for partition in shared.fleet.partitions.values())
    column = np.zeros(table.n_slots, np.bool_)
    column[[table.find_slot(rank) for rank in is_outside]] = list(is_outside.values())
    (before, _), (after, rank) = chosen
    assert np.array_equal(before[~column], after[~column])
    price = 4096.0 * (400 / (400 + 2048))
    assert np.allclose(after[column], before[column] + price, rtol=1e-12)
    assert not is_outside[rank]


def costs_and_choice(selector):
    """Return the costs of all slots for an uncached prompt, and the chosen rank."""
    selection = selector.select_and_reserve(a_select_and_reserve(400), 1.0).selection
    (partition,) = selector.fleet.partitions.values()
    costs = partition.placer.scratch.costs[: partition.table.n_slots].copy()
    return costs, Rank(selection.worker_id, selection.dp_rank)
