"""Tests of matches with assumed blocks and floors, against a naive union with confirmed blocks."""

import numpy as np
import pytest

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS, Tier
from select_service.core.identity import Rank
from select_service.core.placement.assumption_kernels import WALKED_BLOCKS_MAX
from select_service.core.placement.plan_layout import ASSUMES
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_selector, a_worker

BLOCK_SIZE = 16
TIERS = (Tier.GPU, Tier.CPU, Tier.DISK, Tier.EXTERNAL)


class Ranks:
    """Ranks with confirmed and assumed blocks of one conversation, and the twin's copy."""

    def __init__(self, n_ranks, rng, n_blocks=20):
        self.rng, self.n_ranks = rng, n_ranks
        self.path = rng.integers(0, 2**63, n_blocks, np.uint64)
        selector = a_selector(RouterConfig(policy="reference"), blocks_max=1 << 16)
        for worker_id in range(n_ranks):
            selector.register_worker(a_worker(worker_id, block_size=BLOCK_SIZE))
        (self.partition,) = selector.fleet.partitions.values()
        self.held = np.zeros((n_ranks, N_TIERS, n_blocks), np.bool_)
        self.assumed = np.zeros(n_ranks, np.int64)
        index = PrefixIndex(1 << 16, lock=self.partition.index.lock)
        self.writers = index.open_slots(index.reserve_slots(n_ranks) and n_ranks)
        self.partition.placer.install_assumed_index(index)

    def slot(self, worker_id):
        return self.partition.table.find_slot(Rank(worker_id, 0))

    def confirm(self, worker_id):
        """Store random blocks in random tiers, with gaps."""
        writer = self.partition.table.writer_of(Rank(worker_id, 0))
        for tier in TIERS:
            if self.rng.random() < 0.6:
                end = int(self.rng.integers(1, len(self.path) + 1))
                writer.store(tier, None, self.path[:end], self.path[:end])
                kept = self.rng.random(end) < self.rng.choice([0.5, 0.9, 1.0])
                writer.remove(tier, np.ascontiguousarray(self.path[:end][~kept]))
                self.held[self.slot(worker_id), tier, :end] = kept

    def assume(self, worker_id, n_blocks):
        slot = self.slot(worker_id)
        if n_blocks:
            self.writers[slot].store(Tier.GPU, None, self.path[:n_blocks], self.path[:n_blocks])
        self.assumed[slot] = n_blocks

    def place(self, n_blocks, more_tokens=3):
        path = np.ascontiguousarray(self.path[:n_blocks])
        prompt = Prompt(path, path, BLOCK_SIZE * n_blocks + more_tokens)
        config = RouterConfig(policy="reference")
        self.partition.placer.place_prompt(prompt, config, np.ones(self.n_ranks, np.bool_))
        scratch = self.partition.placer.scratch
        self.partition.placer.check_invariants()
        return scratch.matched[: self.n_ranks], scratch.assumed_blocks[: self.n_ranks]

    def expect(self, n_blocks, floors=None):
        """Return (matched, assumed blocks) of every slot from a walk block by block."""
        matched = np.zeros((self.n_ranks, N_TIERS), np.int64)
        more = np.zeros(self.n_ranks, np.int64)
        for slot in range(self.n_ranks):
            assumed = max(self.assumed[slot], (floors or {}).get(slot, 0))
            confirmed = _walk(self.held[slot], 0, n_blocks)
            matched[slot] = _walk(self.held[slot], min(assumed, n_blocks), n_blocks)
            more[slot] = max(0, min(assumed, n_blocks) - confirmed[0])
        return matched, more


def _walk(held, assumed, n_blocks):
    position, ends = 0, []
    for tier in range(N_TIERS):
        while position < n_blocks and (held[tier, position] or (tier == 0 and position < assumed)):
            position += 1
        ends.append(position)
    return ends


@pytest.mark.parametrize("seed", range(6))
def test_a_match_is_the_union_of_confirmed_and_assumed_blocks(seed):
    rng = np.random.default_rng(seed)
    ranks = Ranks(int(rng.choice([3, 64, 130])), rng)
    for worker_id in range(ranks.n_ranks):
        ranks.confirm(worker_id)
        if rng.random() < 0.7:
            ranks.assume(worker_id, int(rng.integers(0, len(ranks.path) + 1)))
    for _ in range(20):
        n_blocks = int(rng.integers(0, len(ranks.path) + 1))
        floors = {}
        if rng.random() < 0.5:
            slot = int(rng.integers(ranks.n_ranks))
            floors[slot] = int(rng.integers(0, len(ranks.path) + 3))
            ranks.partition.placer.set_session_floor(slot, BLOCK_SIZE * floors[slot] + 5)
        matched, assumed = ranks.place(n_blocks)
        expected, more = ranks.expect(n_blocks, floors)
        assert np.array_equal(matched, expected)
        assert np.array_equal(assumed, more)


def test_a_floor_lasts_for_one_placement_and_leaves_nothing():
    ranks = Ranks(4, np.random.default_rng(1))
    placer = ranks.partition.placer
    placer.install_assumed_index(None)
    ranks.place(8)
    assert placer.plan[ASSUMES] == 0
    slot = ranks.slot(2)
    placer.set_session_floor(slot, 5 * BLOCK_SIZE + 1)
    matched, assumed = ranks.place(8)
    assert matched[slot].tolist() == [5, 5, 5, 5]
    assert assumed.tolist() == [5 if each == slot else 0 for each in range(4)]
    placer.count_placement(Prompt(ranks.path[:8], ranks.path[:8], 131), slot, True)
    assert placer.last_summary()[-1] == 5, "the cheapest rank is the one of the floor"
    assert placer.total_tally.assumed_tokens == 5 * BLOCK_SIZE
    assert placer.total_tally.exact_tokens == 0
    matched, assumed = ranks.place(8)
    assert not matched.any()
    assert not assumed.any()
    ranks.place(8)
    assert placer.plan[ASSUMES] == 0, "the test of a match without assumptions is one word again"


def test_a_floor_is_within_the_prompt_and_ignores_slots_that_do_not_exist():
    ranks = Ranks(2, np.random.default_rng(1))
    ranks.partition.placer.set_session_floor(1, 1 << 40)
    matched, _ = ranks.place(3, more_tokens=15)
    assert matched[1].tolist() == [3, 3, 3, 3]
    for slot in (-1, 64, 1 << 30):
        ranks.partition.placer.set_session_floor(slot, 1 << 40)
        assert not ranks.place(3)[0].any()


def test_long_prompts_keep_the_longer_prefix_where_a_walk_would_take_too_long():
    n_blocks = WALKED_BLOCKS_MAX // 8
    ranks = Ranks(20, np.random.default_rng(1), n_blocks)
    for worker_id in range(20):
        writer = ranks.partition.table.writer_of(Rank(worker_id, 0))
        writer.store(Tier.CPU, None, ranks.path, ranks.path)
        ranks.held[ranks.slot(worker_id), Tier.CPU] = True
        # Only a walk finds the blocks behind the gap.
        writer.remove(Tier.CPU, ranks.path[:1])
        ranks.held[ranks.slot(worker_id), Tier.CPU, 0] = False
        ranks.assume(worker_id, 1)
    matched, _ = ranks.place(n_blocks)
    expected, _ = ranks.expect(n_blocks)
    walked = (matched == expected).all(axis=1)
    assert walked.any()
    assert not walked.all()
    assert (matched[~walked] == 1).all()


def test_assumed_blocks_fill_a_rank_too():
    """Check that full ranks pay for blocks of another rank, whether from events or bookings."""
    ranks, config = Ranks(2, np.random.default_rng(3)), RouterConfig(policy_options=("copy-price",))
    placer, everywhere = ranks.partition.placer, np.ones(2, np.bool_)
    placer.switch_policy(PolicyChoice("work", config.policy_options))
    ranks.partition.table.columns.kv_blocks[:2] = 20.0
    asked = Prompt(ranks.path[:10].copy(), ranks.path[:10].copy(), 10 * BLOCK_SIZE + 3)
    other = np.arange(1, 19, dtype=np.uint64)
    for holder, filled in ((0, 1), (1, 0)):
        ranks.assume(holder, 10)
        row = placer.policy.term_names.index("copy_price")
        for n_blocks, price in ((17, 0.0), (18, 0.5 * 10 * BLOCK_SIZE)):
            ranks.writers[filled].clear()
            ranks.writers[filled].store(Tier.GPU, None, other[:n_blocks], other[:n_blocks])
            placer.place_prompt(asked, config, everywhere)
            found = placer.cost_terms(asked, config, everywhere)[row]
            assert found.tolist() == [price if slot == filled else 0.0 for slot in range(2)]
        for writer in ranks.writers:
            writer.clear()
