"""Tests of orphans, limits, slots and the lock of the prefix index, by rule."""

import numpy as np

from indexer.index.block_tree import CLEAR_STEP_MAX
from indexer.index.match_kernels import NARROWED_WORDS_MAX
from indexer.index.prefix_index import PrefixIndex
from indexer.jit.mutex import Mutex
from indexer.tiers import Tier
from tests.indexer.index.rules import CONTENTS, NAMES, an_index, gpu, matched, u64
from tests.indexer.index_view import slot_blocks


class CountingLock(Mutex):
    def __init__(self):
        super().__init__()
        self.held = False
        self.times = 0

    def __enter__(self):
        assert not self.held
        self.held = True
        self.times += 1

    def __exit__(self, *_):
        self.held = False


def test_a_block_of_unknown_parent_waits_for_it():
    index, writer = an_index()
    assert writer.store(Tier.GPU, 11, u64(2, 3), u64(12, 13)) == 2
    assert writer.store(Tier.CPU, 13, u64(4), u64(14)) == 1
    assert gpu(index, 1, 2, 3) == [0]
    assert index.stats().orphans == 3
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert matched(index, 1, 2, 3, 4) == [[3, 4, 4, 4]]
    assert index.stats().orphans == 0


def test_another_slots_announcement_does_not_help_an_orphan():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(1), u64(11))
    two.store(Tier.GPU, 11, u64(2), u64(12))
    assert gpu(index, 1, 2) == [1, 0]
    two.store(Tier.GPU, None, u64(1), u64(11))
    assert gpu(index, 1, 2) == [1, 2]


def test_an_orphan_can_be_removed():
    index, writer = an_index()
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    assert writer.remove(Tier.GPU, u64(12)) == 1
    assert index.stats().orphans == 1
    assert writer.remove(Tier.CPU, u64(12)) == 0
    assert writer.remove(Tier.GPU, u64(12)) == 1
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert gpu(index, 1, 2) == [1]


def test_the_copies_of_an_orphan_are_kept():
    index, writer = an_index()
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.remove(Tier.GPU, u64(12))
    assert gpu(index, 1, 2) == [2]
    writer.remove(Tier.GPU, u64(12))
    assert gpu(index, 1, 2) == [1]


def test_the_copies_of_an_orphan_join_a_chain_that_brings_its_parent():
    index, writer = an_index()
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    writer.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    assert index.stats().orphans == 0
    writer.remove(Tier.GPU, u64(12))
    assert gpu(index, 1, 2) == [2]
    writer.remove(Tier.GPU, u64(12))
    assert gpu(index, 1, 2) == [1]


def test_an_empty_chain_is_stored_even_while_there_are_orphans():
    index, writer = an_index()
    assert writer.store(Tier.GPU, None, u64(), u64()) == 0
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    assert writer.store(Tier.GPU, None, u64(), u64()) == 0
    assert writer.store(Tier.GPU, 99, u64(), u64()) == 0
    assert writer.remove(Tier.GPU, u64()) == writer.store_known(Tier.GPU, u64()) == 0
    assert index.stats().orphans == 1


def test_orphans_beyond_the_limit_are_dropped_and_counted():
    index, writer = an_index(orphan_blocks_max=3)
    assert writer.store(Tier.GPU, 11, u64(2, 3, 4, 5, 6), u64(12, 13, 14, 15, 16)) == 3
    stats = index.stats()
    assert (stats.orphans, stats.dropped_orphans) == (3, 2)
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert gpu(index, 1, 2, 3, 4, 5) == [4]


def test_orphans_come_home_in_bounded_steps():
    lock = CountingLock()
    index, writer = an_index(blocks_max=5000, lock=lock)
    for name in range(3000, 1, -1):
        writer.store(Tier.GPU, name - 1, u64(7), u64(name))
    before = lock.times
    writer.store(Tier.GPU, None, u64(7), u64(1))
    assert lock.times - before > 3000 // 256
    assert index.match(u64(*[7] * 3001))[0, 0] == 3000


def test_a_full_index_records_the_leading_blocks_that_fit():
    index, one, two = an_index(slots=2, blocks_max=3)
    assert one.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES)) == 3
    assert gpu(index, *CONTENTS) == [3, 0]
    assert index.stats().refused_blocks == 1
    assert two.store(Tier.GPU, None, u64(1, 2, 9), u64(21, 22, 29)) == 2
    assert gpu(index, *CONTENTS) == [3, 2]
    assert index.stats().refused_blocks == 2


def test_removal_makes_room_again():
    index, writer = an_index(blocks_max=4)
    writer.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES))
    writer.remove(Tier.GPU, u64(14, 13))
    assert writer.store(Tier.GPU, None, u64(5, 6), u64(15, 16)) == 2
    assert gpu(index, 5, 6) == [2]


def test_tables_grow_with_their_entries():
    index, *writers = an_index(slots=3, blocks_max=30_000)
    contents = np.arange(20_000, dtype=np.uint64)
    for seed, writer in enumerate(writers):
        for start in range(0, 20_000, 50):
            part = contents[start : start + 50]
            names = part * np.uint64(3) + np.uint64(seed)
            writer.store(Tier(seed), None, part, names)
    for start in range(0, 20_000, 50):
        rows = index.match(contents[start : start + 50])
        assert rows.tolist() == [[50, 50, 50, 50], [0, 50, 50, 50], [0, 0, 50, 50]]
    index.check_invariants()
    for writer in writers:
        writer.close()
    index.check_invariants()
    assert index.stats().blocks == 0


def test_many_distinct_holder_sets_fit():
    index, *writers = an_index(slots=10, blocks_max=2000)
    for content in range(1024):
        for slot, writer in enumerate(writers):
            if content >> slot & 1:
                writer.store(Tier.GPU, None, u64(content), u64(content))
    index.check_invariants()
    assert index.stats().holder_sets == 1023
    for content in (0, 5, 1023):
        assert gpu(index, content) == [content >> slot & 1 for slot in range(10)]


def test_chains_stay_in_one_piece_when_nodes_are_reused():
    index, writer = an_index(blocks_max=1000)
    for turn in range(20):
        names = np.arange(turn * 1000, turn * 1000 + 900, dtype=np.uint64)
        assert writer.store(Tier.GPU, None, names, names) == 900
        assert index.stats().edges == 0
        writer.remove(Tier.GPU, names if turn % 2 else names[::-1].copy())
        index.check_invariants()


def test_clear_forgets_one_slot_in_every_tier():
    index, one, two = an_index(slots=2)
    for tier in Tier:
        one.store(tier, None, u64(1, 2), u64(11, 12))
        two.store(tier, None, u64(1, 2), u64(21, 22))
        two.store(tier, None, u64(1, 2), u64(11, 12))
    one.store(Tier.GPU, 99, u64(5), u64(15))
    two.store(Tier.GPU, 99, u64(5), u64(15))
    two.clear()
    assert matched(index, 1, 2) == [[2, 2, 2, 2], [0, 0, 0, 0]]
    assert slot_blocks(index)[1].tolist() == [0, 0, 0, 0]
    assert index.stats().orphans == 1
    assert two.store(Tier.GPU, None, u64(1), u64(11)) == 1
    assert gpu(index, 1, 2) == [2, 1]


def test_a_closed_writer_does_nothing_and_its_slot_is_reused():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(1), u64(11))
    one.close()
    assert one.store(Tier.GPU, None, u64(1), u64(11)) == 0
    assert one.store_known(Tier.GPU, u64(11)) == 0
    assert one.remove(Tier.GPU, u64(11)) == 0
    one.clear()
    one.close()
    three = index.open_slot()
    assert (three.slot, two.slot, index.n_slots) == (0, 1, 2)
    assert three.store(Tier.GPU, None, u64(1), u64(11)) == 1
    one.close()
    assert gpu(index, 1) == [1, 0]


class OpensMeanwhile(CountingLock):
    """Lock that runs the work of another thread whenever the lock is free."""

    def __init__(self):
        super().__init__()
        self.meanwhile = None

    def __exit__(self, *_):
        super().__exit__()
        if self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            work()
            self.meanwhile = work


def test_a_large_clear_lets_others_work_and_keeps_its_slot_until_done():
    lock = OpensMeanwhile()
    index, one, two = an_index(slots=2, blocks_max=4 * CLEAR_STEP_MAX, lock=lock)
    names = np.arange(1, 3 * CLEAR_STEP_MAX, dtype=np.uint64)
    one.store(Tier.GPU, None, names, names)
    two.store(Tier.GPU, None, names[:5000], names[:5000] + np.uint64(10**9))
    taken = []

    def meanwhile():
        taken.append((len(index.match(names)), one.store(Tier.GPU, None, u64(1), u64(1))))
        one.clear()
        two.store(Tier.GPU, None, u64(1), u64(10**9 + 1))

    lock.meanwhile = meanwhile
    one.close()
    lock.meanwhile = None
    assert len(taken) > 3
    assert {stored for _, stored in taken} == {0}
    assert index.match(names)[:, 0].tolist() == [0, 5000]
    assert index.open_slot().slot == 0
    index.check_invariants()


def test_a_writer_closed_during_its_clear_is_closed_after_it():
    lock = OpensMeanwhile()
    index, writer = an_index(lock=lock)
    writer.store(Tier.GPU, None, u64(1), u64(11))
    lock.meanwhile = writer.close
    writer.clear()
    lock.meanwhile = None
    assert index.open_slot().slot == 0
    assert gpu(index, 1) == [0]


def test_every_public_step_holds_the_lock_and_gives_it_back():
    lock = CountingLock()
    index, writer = an_index(lock=lock)
    for step in (
        lambda: writer.store(Tier.GPU, None, u64(1), u64(11)),
        lambda: writer.store_known(Tier.CPU, u64(11)),
        lambda: writer.remove(Tier.GPU, u64(11)),
        lambda: index.match(u64(1)),
        index.stats,
        index.snapshot,
        writer.clear,
        writer.close,
        index.open_slot,
        index.check_invariants,
    ):
        before = lock.times
        step()
        assert lock.times > before
        assert not lock.held


def test_a_match_ends_where_it_would_narrow_more_words_than_it_may():
    """64 slots in as many words hold a chain, another slot every second block, too."""
    words, limit = 64, NARROWED_WORDS_MAX // 64
    chain = np.arange(1, 2 * limit, dtype=np.uint64)
    index = PrefixIndex(len(chain))
    index.reserve_slots(64 * words)
    writers = index.open_slots(64 * words)
    for writer in writers[::64]:
        writer.store(Tier.GPU, None, chain, chain)
    writers[0].store(Tier.CPU, None, chain, chain)
    writers[0].remove(Tier.CPU, chain[1::2].copy())
    assert index.match(chain[: limit + 1])[::64, Tier.GPU].tolist() == [limit + 1] * words
    assert index.match(chain)[::64, Tier.GPU].tolist() == [limit + 1] * words


def test_holders_that_drop_out_one_by_one_are_all_matched_as_far_as_they_hold():
    chain = np.arange(1, 4097, dtype=np.uint64)
    index = PrefixIndex(len(chain))
    index.reserve_slots(len(chain))
    for depth, writer in enumerate(index.open_slots(len(chain)), 1):
        if depth % 16 == 0:
            writer.store(Tier.GPU, None, chain[:depth], chain[:depth])
    matched = index.match(chain)[15::16, Tier.GPU]
    assert matched.tolist() == [*range(16, 4097, 16)]
