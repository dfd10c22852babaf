"""Tests of the bounds on memory and work of assumed blocks, whatever callers book."""

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.assumed import assumed_layout as layout
from select_service.core.assumed.assumed_blocks import (
    EVICTED_MAX,
    STEP_BLOCKS,
    AssumedBlocks,
    AssumedRank,
)
from select_service.core.assumed.assumed_size import AssumedSize
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX

BYTES_MAX = 1 << 22


def assumed_ranks(*sizes, bytes_max=BYTES_MAX, blocks_max=1 << 20):
    index, load = PrefixIndex(blocks_max, bytes_max=bytes_max), ActiveLoad()
    index.reserve_slots(len(sizes))
    index.open_slots(len(sizes))
    load.ensure_slots(len(sizes))
    blocks = AssumedBlocks(index, load)
    for slot, size in enumerate(sizes):
        blocks.set_rank(slot, AssumedRank(AssumedSize(size, 16)))
    return blocks


def use(blocks, slot, path, now=0.0):
    blocks.use_prompt(slot, path, blocks.name_prompt(path, path), now)


def matched(blocks, path):
    return blocks.index.match(path)[:, Tier.GPU].tolist()


def test_a_hundred_thousand_distinct_prompts_stay_within_the_memory():
    blocks = assumed_ranks(1 << 40, 1 << 40)
    rng = np.random.default_rng(1)
    for number in range(4000):
        use(blocks, number % 2, rng.integers(0, 2**63, 25, np.uint64), float(number))
    stats = blocks.stats()
    assert stats.blocks <= stats.blocks_max == BYTES_MAX // 4 // layout.ENTRY_BYTES
    assert blocks.index.stats().bytes <= BYTES_MAX
    assert stats.bytes <= 2 * BYTES_MAX
    assert stats.evicted + stats.refused > 50_000
    blocks.check_invariants()
    newest = rng.integers(0, 2**63, 25, np.uint64)
    use(blocks, 0, newest, 5000.0)
    assert matched(blocks, newest)[1] == 0
    blocks.check_invariants()


def test_a_full_index_keeps_the_beginning_and_drops_rejected_blocks():
    blocks = assumed_ranks(1 << 40, blocks_max=1024)
    path = np.arange(1, 3001, dtype=np.uint64)
    use(blocks, 0, path)
    (held,) = matched(blocks, path)
    assert 0 < held <= 1024
    assert blocks.count_blocks(0) == held
    assert blocks.stats().refused == 3000 - held
    blocks.check_invariants()


def test_a_huge_prompt_counts_with_its_beginning():
    blocks = assumed_ranks(1 << 40, bytes_max=1 << 28)
    path = np.random.default_rng(1).integers(0, 2**63, BOOKED_BLOCKS_MAX + 5, np.uint64)
    use(blocks, 0, path)
    assert matched(blocks, path) == [BOOKED_BLOCKS_MAX]


def test_one_booking_evicts_a_bounded_number_and_later_ones_the_rest():
    blocks = assumed_ranks(1 << 40, bytes_max=1 << 28)
    rng = np.random.default_rng(1)
    for number in range(6):
        use(blocks, 0, rng.integers(0, 2**63, BOOKED_BLOCKS_MAX, np.uint64), float(number))
    blocks.set_rank(0, AssumedRank(AssumedSize(10, 16)))
    one = rng.integers(0, 2**63, 1, np.uint64)
    use(blocks, 0, one, 7.0)
    assert blocks.count_blocks(0) == 6 * BOOKED_BLOCKS_MAX + 1 - EVICTED_MAX
    for number in range(4):
        use(blocks, 0, one, 8.0 + number)
    assert blocks.count_blocks(0) == 10
    blocks.check_invariants()


def test_a_clear_takes_as_many_turns_as_it_needs():
    blocks = assumed_ranks(1 << 40, 1 << 40, bytes_max=1 << 28)
    path = np.random.default_rng(1).integers(0, 2**63, 3 * STEP_BLOCKS + 1, np.uint64)
    for slot in (0, 1):
        use(blocks, slot, path)
    blocks.begin_clear(0, 1.0, keeps_live=False)
    left = []
    while blocks.run_step(2.0):
        left.append(blocks.count_blocks(0))
    assert left == [2 * STEP_BLOCKS + 1, STEP_BLOCKS + 1, 1, 0]
    assert matched(blocks, path) == [0, len(path)]


def test_repeated_clears_of_a_slot_are_one():
    blocks = assumed_ranks(1 << 40, 1 << 40, bytes_max=1 << 28)
    path = np.random.default_rng(1).integers(0, 2**63, 3, np.uint64)
    use(blocks, 0, path, 1.0)
    for number in range(1000):
        blocks.begin_clear(0, 1.0 + number, keeps_live=False)
        blocks.begin_clear(0, 1.0, keeps_live=True)
    use(blocks, 0, path, 500.0)
    use(blocks, 1, path, 1.0)
    n_steps = 0
    while blocks.run_step(2000.0):
        n_steps += 1
    assert n_steps <= 2
    assert matched(blocks, path) == [0, len(path)]


def test_a_booking_during_a_clear_is_kept():
    blocks = assumed_ranks(1 << 40, bytes_max=1 << 28)
    path = np.random.default_rng(1).integers(0, 2**63, 3 * STEP_BLOCKS, np.uint64)
    use(blocks, 0, path, 1.0)
    blocks.begin_clear(0, 1.0, keeps_live=False)
    assert blocks.run_step(2.0)
    use(blocks, 0, path[:5], 2.0)
    while blocks.run_step(3.0):
        pass
    assert matched(blocks, path) == [5]
    assert blocks.count_blocks(0) == 5


def test_more_slots_can_come_later():
    blocks = assumed_ranks(100)
    path = np.arange(1, 9, dtype=np.uint64)
    use(blocks, 0, path)
    blocks.reserve_slots(200)
    blocks.ensure_slots(200)
    blocks.set_rank(199, AssumedRank(AssumedSize(100, 16)))
    use(blocks, 199, path)
    use(blocks, 7, path)  # a rank without an assumed index
    found = matched(blocks, path)
    assert [slot for slot, held in enumerate(found) if held] == [0, 199]
    blocks.check_invariants()
