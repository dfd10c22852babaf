"""Tests of matches, tiers, removals, copies and names by rule.

test_prefix_index_model mixes the rules.

"""

import numpy as np
import pytest

from indexer.index import block_tree
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import N_TIERS, Tier
from tests.indexer.index.rules import CONTENTS, NAMES, an_index, gpu, matched, u64
from tests.indexer.index_view import slot_blocks

U64_MAX = 2**64 - 1


def test_a_path_matches_as_far_as_the_slot_holds_it():
    index, writer = an_index()
    assert writer.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES)) == 4
    assert gpu(index, 1, 2, 3, 4, 5) == [4]
    assert gpu(index, 1, 2, 9, 4) == [2]
    assert gpu(index, 9, 1, 2) == [0]


def test_an_empty_path_matches_nothing():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert matched(index) == [[0, 0, 0, 0]]


def test_a_match_without_slots_has_no_rows():
    index = PrefixIndex(10)
    assert index.match(u64(1)).shape == (0, N_TIERS)
    assert index.match(u64(1)).dtype == np.int32


def test_a_match_returns_a_fresh_array():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    first = index.match(u64(1))
    index.match(u64(2))
    assert first.tolist() == [[1, 1, 1, 1]]


def test_a_read_only_path_is_accepted():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    path = np.frombuffer(u64(1).tobytes(), np.uint64)
    assert index.match(path).tolist() == [[1, 1, 1, 1]]


def test_extreme_hashes_are_ordinary_hashes():
    index, writer = an_index()
    assert writer.store(Tier.GPU, None, u64(0, U64_MAX), u64(U64_MAX, 0)) == 2
    assert writer.store(Tier.GPU, 0, u64(0), u64(1)) == 1
    assert gpu(index, 0, U64_MAX, 0) == [3]
    assert writer.remove(Tier.GPU, u64(0)) == 1
    assert gpu(index, 0, U64_MAX, 0) == [1]


def test_the_same_block_below_different_parents_is_two_blocks():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 7), u64(11, 12))
    writer.store(Tier.GPU, None, u64(2, 7), u64(21, 22))
    writer.remove(Tier.GPU, u64(22))
    assert gpu(index, 1, 7) == [2]
    assert gpu(index, 2, 7) == [1]


def test_slots_beyond_a_word_of_bits_are_matched():
    index, *writers = an_index(slots=200)
    for writer in writers[::3]:
        writer.store(Tier.GPU, None, u64(1), u64(11))
    assert gpu(index, 1) == [1 if slot % 3 == 0 else 0 for slot in range(200)]


def test_a_long_path_is_matched_across_branches():
    index, one, two = an_index(slots=2)
    contents, names = np.arange(1, 101, dtype=np.uint64), np.arange(1001, 1101, dtype=np.uint64)
    one.store(Tier.GPU, None, contents, names)
    two.store(Tier.GPU, None, u64(1, 2), u64(1001, 1002))
    two.store(Tier.GPU, 1002, u64(77, 78), u64(5, 6))
    one.store(Tier.GPU, 1050, u64(*range(500, 540)), u64(*range(600, 640)))
    path = [*range(1, 51), *range(500, 540)]
    assert gpu(index, *path) == [90, 2]
    assert gpu(index, 1, 2, 77, 78) == [2, 4]
    assert gpu(index, *range(1, 101)) == [100, 2]


def test_lower_tiers_continue_where_the_tier_above_stopped():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    writer.store(Tier.CPU, 12, u64(3), u64(13))
    writer.store(Tier.DISK, 13, u64(4), u64(14))
    writer.store(Tier.EXTERNAL, 14, u64(5), u64(15))
    assert matched(index, 1, 2, 3, 4, 5) == [[2, 3, 4, 5]]
    writer.remove(Tier.CPU, u64(13))
    assert matched(index, 1, 2, 3, 4, 5) == [[2, 2, 2, 2]]


def test_a_tier_with_nothing_to_add_passes_the_match_on():
    index, disk, mixed = an_index(slots=2)
    disk.store(Tier.DISK, None, u64(1, 2, 3), u64(11, 12, 13))
    mixed.store(Tier.GPU, None, u64(1), u64(11))
    mixed.store(Tier.DISK, 11, u64(2), u64(12))
    assert matched(index, 1, 2, 3) == [[0, 0, 3, 3], [1, 1, 2, 2]]


def test_a_gpu_block_after_a_lower_tier_is_not_seen():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 2, 3), u64(11, 12, 13))
    writer.store(Tier.CPU, 11, u64(2), u64(12))
    writer.remove(Tier.GPU, u64(12))
    assert matched(index, 1, 2, 3) == [[1, 2, 2, 2]]


def test_a_removal_acts_on_its_tier_alone():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.store_known(Tier.CPU, u64(11))
    assert writer.remove(Tier.DISK, u64(11)) == 0
    assert writer.remove(Tier.CPU, u64(11)) == 1
    assert matched(index, 1) == [[1, 1, 1, 1]]


def test_a_hash_alone_moves_a_known_block_to_another_tier():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    assert writer.store_known(Tier.CPU, u64(11, 12)) == 2
    writer.remove(Tier.GPU, u64(12, 11))
    assert matched(index, 1, 2) == [[0, 2, 2, 2]]
    assert slot_blocks(index).tolist() == [[0, 2, 0, 0]]


def test_a_hash_alone_of_an_unknown_block_is_ignored_and_counted():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(1), u64(11))
    assert two.store_known(Tier.CPU, u64(11, 12)) == 0
    assert index.stats().unannounced_blocks == 2
    assert matched(index, 1) == [[1, 1, 1, 1], [0, 0, 0, 0]]


def test_a_hash_alone_copies_an_orphan_to_another_tier():
    index, writer = an_index()
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    assert writer.store_known(Tier.CPU, u64(12)) == 1
    assert index.stats().unannounced_blocks == 0
    writer.remove(Tier.GPU, u64(12))
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert matched(index, 1, 2) == [[1, 2, 2, 2]]


def test_a_removed_middle_block_hides_its_descendants_until_it_is_back():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES))
    assert writer.remove(Tier.GPU, u64(12)) == 1
    assert gpu(index, *CONTENTS) == [1]
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    assert gpu(index, *CONTENTS) == [4]


def test_a_removed_root_comes_back_with_everything_below():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES))
    writer.remove(Tier.GPU, u64(11))
    assert gpu(index, *CONTENTS) == [0]
    writer.store(Tier.GPU, None, u64(1), u64(11))
    assert gpu(index, *CONTENTS) == [4]


def test_unknown_hashes_are_not_removed():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(1), u64(11))
    assert two.remove(Tier.GPU, u64(11, 12)) == 0
    assert gpu(index, 1) == [1, 0]


@pytest.mark.parametrize("order", [(11, 12, 13, 14), (14, 13, 12, 11), (12, 14, 11, 13)])
def test_blocks_without_holders_are_freed_in_any_order(order):
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES))
    assert writer.remove(Tier.GPU, u64(*order)) == 4
    index.check_invariants()
    assert index.stats().blocks == 0
    assert index.stats().memberships == 0


def test_counted_copies_are_removed_one_by_one():
    index, writer = an_index()
    for _ in range(3):
        writer.store(Tier.GPU, None, u64(1), u64(11))
    assert index.stats().memberships == 1
    assert [(writer.remove(Tier.GPU, u64(11)), gpu(index, 1)) for _ in range(4)] == [
        (1, [1]),
        (1, [1]),
        (1, [0]),
        (0, [0]),
    ]


def test_a_store_as_a_set_is_idempotent():
    index, writer = an_index()
    for _ in range(3):
        writer.store(Tier.GPU, None, u64(1), u64(11), counted=False)
    writer.remove(Tier.GPU, u64(11))
    assert gpu(index, 1) == [0]


def test_slots_may_name_the_same_block_differently():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(*CONTENTS), u64(*NAMES))
    two.store(Tier.GPU, None, u64(1, 2), u64(21, 22))
    two.store(Tier.GPU, 22, u64(3), u64(23))
    two.store(Tier.CPU, 23, u64(4), u64(24))
    assert matched(index, *CONTENTS) == [[4, 4, 4, 4], [3, 4, 4, 4]]
    two.remove(Tier.GPU, u64(11, 12, 13))
    assert gpu(index, *CONTENTS) == [4, 3]
    two.remove(Tier.GPU, u64(22))
    assert gpu(index, *CONTENTS) == [4, 1]


def test_slots_may_use_one_name_for_different_blocks():
    index, one, two = an_index(slots=2)
    one.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    two.store(Tier.GPU, None, u64(5, 6), u64(11, 12))
    one.store(Tier.GPU, 12, u64(3), u64(13))
    two.store(Tier.GPU, 12, u64(7), u64(13))
    assert gpu(index, 1, 2, 3) == [3, 0]
    assert gpu(index, 5, 6, 7) == [0, 3]
    one.remove(Tier.GPU, u64(12))
    assert gpu(index, 5, 6, 7) == [0, 3]
    assert gpu(index, 1, 2, 3) == [1, 0]


def test_a_block_is_held_until_its_last_name_is_removed():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.store(Tier.GPU, None, u64(1), u64(12))
    writer.store(Tier.GPU, 12, u64(2), u64(13))
    writer.remove(Tier.GPU, u64(11))
    assert gpu(index, 1, 2) == [2]
    writer.remove(Tier.GPU, u64(12))
    assert gpu(index, 1, 2) == [0]


def test_a_name_in_one_tier_is_a_parent_in_every_tier():
    index, writer = an_index()
    writer.store(Tier.DISK, None, u64(1), u64(11))
    writer.store(Tier.GPU, 11, u64(2), u64(12))
    assert matched(index, 1, 2) == [[0, 0, 1, 1]]
    assert index.stats().orphans == 0


def test_a_name_announced_elsewhere_leaves_its_earlier_block():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.store(Tier.GPU, None, u64(5), u64(11))
    assert gpu(index, 1, 2) == [0]
    assert gpu(index, 5) == [1]
    assert writer.remove(Tier.GPU, u64(11)) == 1
    assert gpu(index, 5) == [0]


def test_a_name_announced_as_an_orphan_leaves_its_earlier_block():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.store(Tier.GPU, 99, u64(5), u64(11))
    assert gpu(index, 1) == [0]
    assert index.stats().orphans == 1


@pytest.mark.parametrize("parent", [None, 11])
def test_a_chain_that_repeats_its_own_names_does_no_harm(parent):
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1), u64(11))
    writer.store(Tier.GPU, parent, u64(2, 3, 4, 2), u64(11, 12, 11, 12))
    index.check_invariants()
    writer.remove(Tier.GPU, u64(11, 12))
    index.check_invariants()
    assert index.stats().blocks == 0


def test_a_name_moves_below_the_block_that_it_named():
    index, writer = an_index()
    writer.store(Tier.GPU, None, u64(1, 2), u64(11, 12))
    writer.remove(Tier.GPU, u64(11))
    writer.store(Tier.GPU, None, u64(1), u64(12))
    assert gpu(index, 1, 2) == [1]
    assert index.stats().blocks == 1


def test_a_clear_that_is_stopped_in_between_is_gone_on_with(monkeypatch):
    monkeypatch.setattr(block_tree, "CLEAR_STEP_MAX", 4)
    for go_on in ("clear", "close"):
        index = PrefixIndex(1000)
        writer, other = index.open_slot(), index.open_slot()
        names = np.arange(1, 101, dtype=np.uint64)
        for each in (writer, other):
            each.store(Tier.GPU, None, names, names)
        steps = writer.clear_in_steps()
        next(steps)
        steps.close()
        assert writer.is_half_cleared
        assert writer.store(Tier.GPU, None, names, names) == 0
        assert writer.slot not in index.snapshot().slots
        getattr(writer, go_on)()
        assert slot_blocks(index)[:, Tier.GPU].tolist() == [0, 100]
        assert writer.is_open == (go_on == "clear")
        assert index.open_slot().slot == (2 if writer.is_open else 0)
        index.check_invariants()


def test_a_clear_looks_at_a_bounded_part_of_the_index_at_a_time(monkeypatch):
    monkeypatch.setattr(block_tree, "CLEAR_STEP_MAX", 4)
    index = PrefixIndex(1000)
    writer = index.open_slot()
    names = np.arange(1, 101, dtype=np.uint64)
    writer.store(Tier.GPU, None, names, names)
    assert len(list(writer.clear_in_steps())) >= 100 / 4
    assert writer.store(Tier.GPU, None, names, names) == 100
