"""Tests of migration plans against the price of every single move."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health.migration.move_cost import (
    LINKS,
    CacheLayout,
    MoveMethod,
    MoveTerms,
    TopologyPosition,
    find_link_between,
    move_cost,
)
from select_service.core.identity import Rank
from tests.builders.migration_plans import GivenReservation, GivenTarget, plan_moves

BLOCK = 16
SIZE = CacheLayout(BLOCK, 80, 8, 128, 2, 8).block_bytes_per_shard
RANKS = [Rank(worker, dp) for worker in (10, 2, 3) for dp in (1, 0)]
N = len(RANKS)


def a_target(rank):
    return st.builds(
        GivenTarget,
        st.just(rank),
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.none() | st.integers(0, 300),
        st.integers(0, 100),
        st.sampled_from([0, 500, 20_000]),
        st.sampled_from(list(LINKS.values())),
        st.sampled_from([3000.0, 9000.0]),
    )


def an_array_of(values, dtype):
    """Return a strategy of one value for each target."""
    return st.lists(values, min_size=N, max_size=N).map(lambda given: np.array(given, dtype))


TARGETS = st.tuples(*map(a_target, RANKS))
AT = {rank: at for at, rank in enumerate(RANKS)}
"""Index of each target; the order differs from the order of names."""
MOVABLES = st.lists(
    st.builds(
        GivenReservation,
        st.text("abcdef", min_size=1, max_size=4),
        st.integers(0, 2),
        st.integers(0, 5).map(float),
        st.integers(1, 3000),
        st.none() | an_array_of(st.integers(0, 250), np.float64),
        st.booleans() | st.just(True),
        st.none() | an_array_of(st.booleans(), np.bool_),
    ),
    unique_by=lambda movable: movable.id,
    max_size=12,
)
TERMS = st.builds(
    MoveTerms,
    st.just(BLOCK),
    st.none() | st.just(SIZE),
    st.booleans(),
    st.sampled_from([1.0, 500.0]),
)


def overlap_of(movable, target):
    return 0 if movable.overlap is None else int(movable.overlap[AT[target.rank]])


def may_go(movable, target):
    return movable.allowed is None or movable.allowed[AT[target.rank]]


class Twin:
    """Free room in a dictionary; every target is priced for every reservation."""

    def __init__(self, targets, terms):
        self.targets = sorted((t for t in targets if t.weight), key=lambda t: t.rank)
        self.terms = terms
        self.room = {t.rank: self.first_room(t) for t in self.targets}
        self.waiting = {t.rank: t.waiting for t in self.targets}

    def first_room(self, target):
        if target.total_blocks is None:
            return float("inf")
        return int(0.95 * target.total_blocks) - target.active_blocks

    def worker_for_all(self, movables):
        blocks = sum(-(-m.tokens // BLOCK) for m in movables)
        found = []
        for worker in sorted({t.rank.worker_id for t in self.targets}):
            mine = [t for t in self.targets if t.rank.worker_id == worker]
            fits = sum(max(0, self.room[t.rank]) for t in mine) >= blocks
            if fits and all(may_go(m, t) for m in movables for t in mine):
                blocks_and_one = sum(t.active_blocks + 1 for t in mine)
                found.append((blocks_and_one / sum(t.weight for t in mine), worker))
        return min(found)[1] if found else None

    def move(self, movable, together):
        blocks = -(-movable.tokens // BLOCK)
        fits = [t for t in self.targets if self.room[t.rank] >= blocks and may_go(movable, t)]
        near = [t for t in fits if t.rank.worker_id == together]
        if not fits:
            return None
        priced = [(self.price(movable, t).ms / t.weight, t.rank, t) for t in near or fits]
        target = min(priced, key=lambda each: each[:2])[2]
        cost = self.price(movable, target)
        self.room[target.rank] -= blocks
        if cost.method is MoveMethod.REPREFILL:
            new = movable.tokens - overlap_of(movable, target) * BLOCK
            self.waiting[target.rank] += max(0, new)
        return target.rank, cost, bool(near)

    def price(self, movable, target):
        overlap, waiting = overlap_of(movable, target), self.waiting[target.rank]
        return move_cost(self.terms, movable.tokens, overlap, target.link, waiting, target.rate)


@given(MOVABLES, TARGETS, TERMS)
def test_a_plan_follows_the_prices(movables, targets, terms):
    moves = {move.id: move for move in plan_moves(movables, targets, terms)}
    order = sorted(movables, key=lambda m: (-m.priority, m.created, m.id))
    assert list(moves) == [movable.id for movable in order]
    twin = Twin(targets, terms)
    together = twin.worker_for_all([m for m in order if m.migratable])
    for movable in order:
        move = moves[movable.id]
        expected = twin.move(movable, together) if movable.migratable else None
        if expected is None:
            assert (move.target, move.method) == (None, MoveMethod.ABORT)
            assert move.why == ("no room" if movable.migratable else "not migratable")
            continue
        rank, cost, lockstep = expected
        assert (move.target, move.method, move.lockstep) == (rank, cost.method, lockstep)
        assert abs(move.ms - cost.ms) <= 1e-9 * max(1.0, cost.ms)
        assert move.missing_blocks == cost.missing_blocks
        assert move.bytes_per_shard == cost.bytes_per_shard


def test_a_plan_can_stop_between_two_moves():
    movables = [GivenReservation(str(n), 0, float(n), 160) for n in range(5)]
    targets = [GivenTarget(RANKS[0], 1.0, None, 0, 0, LINKS["pcie"])]
    moves = plan_moves(movables, targets, MoveTerms(16, None, True))
    assert next(moves).id == "0"
    assert [move.id for move in moves] == ["1", "2", "3", "4"]
    assert list(plan_moves([], [], MoveTerms(16, None, True))) == []


def test_the_fastest_link_that_two_have_in_common():
    here = TopologyPosition("nv", "rack", "fabric", "host")
    assert find_link_between(here, here) is LINKS["nvlink"]
    assert find_link_between(here, here._replace(kv_transfer_domain="x")) is LINKS["nvswitch"]
    assert (
        find_link_between(here, TopologyPosition(fabric="fabric", host="host"))
        is LINKS["infiniband"]
    )
    assert find_link_between(here, TopologyPosition(host="host")) is LINKS["pcie"]
    assert find_link_between(TopologyPosition(), TopologyPosition()) is LINKS["unknown"], (
        "what is unknown is not the same"
    )


def test_heads_that_do_not_divide_evenly_are_rounded_up():
    layout = CacheLayout(16, 80, 8, 128, 2, 8)
    assert layout.block_bytes_per_shard == 655_360
    assert layout._replace(tp=3).block_bytes_per_shard == 3 * 655_360
    assert layout.block_bytes == 8 * 655_360
