"""Cache groups with numbers that no engine sends: nothing ends, stalls or grows by them."""

import msgspec
import pytest

from indexer.index.cache_groups import GroupsRecord
from tests.indexer.events.grouped_rank import GroupedRank

SIZE = 4


def stored(name, kind, group, **others):
    event = {
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": SIZE,
        "medium": "GPU",
        "group_idx": group,
        "kv_cache_spec_kind": kind,
    }
    return event | others


def sparse(name, **others):
    """A state at the end of a span that begins below a block that the rank never had."""
    span = {"parent_block_hash": 99, "token_ids": list(range(8))}
    return stored(name, "mamba", 1, **span, **others)


@pytest.mark.parametrize("window", [2**31, 2**63, 2**64 - 1])
def test_a_window_of_any_length_is_a_window(window):
    rank = GroupedRank(SIZE)
    window_field = {"kv_cache_spec_sliding_window": window}
    events = [
        stored(7, "full_attention", 0),
        stored(7, "sliding_window", 1, **window_field),
    ]
    rank.apply_batch(events)
    assert rank.answer([1, 2, 3, 4, 5]) == (SIZE, False)


def test_block_sizes_without_a_common_multiple_that_fits_leave_nothing_reusable():
    rank = GroupedRank(SIZE)
    sizes = [2**32 - 5, 2**32 - 17, 2**32 - 65]  # primes
    rank.apply_batch([stored(7, "full_attention", 0)])
    window = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 9}
    rank.apply_batch(
        [
            sparse(8, **window, block_size=size) | {"group_idx": 1 + i}
            for i, size in enumerate(sizes)
        ]
    )
    assert rank.answer([1, 2, 3, 4, 5]) == (0, True)


def test_copies_of_a_name_that_waits_are_counted_once_it_has_a_place():
    rank = GroupedRank(SIZE)
    rank.apply_batch([stored(7, "full_attention", 0), stored(7, "mamba", 1)])
    for _ in range(5000):
        rank.apply_batch([sparse(8)])
    assert rank.groups.waiting == {(1, 8): 5000}
    rank.apply_batch([stored(8, "full_attention", 0, parent_block_hash=7, token_ids=[5, 6, 7, 8])])
    assert not rank.groups.waiting
    prompt = [*range(1, 9), 9]
    for _ in range(5000):
        assert rank.answer(prompt) == (2 * SIZE, False)
        rank.apply_batch(
            [{"type": "BlockRemoved", "block_hashes": [8], "medium": "GPU", "group_idx": 1}]
        )
    assert rank.answer(prompt) == (SIZE, False)


VALID = GroupsRecord(
    groups=[(0, "full_attention", None, 4, 0), (1, "mamba", None, 4, 4)],
    sizes=[4],
    waiting=[(1, 8, 2)],
    open_blocks={5: (None, [1, 2])},
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"waiting": [(1, 8, 2**60)]},
        {"waiting": [(1, 8, 0)]},
        {"waiting": [(1, 2**64, 1)]},
        {"waiting": [(1, -1, 1)]},
        {"open_blocks": {5: (2**64, [1])}},
        {"open_blocks": {5: (None, [2**32])}},
        {"open_blocks": {5: (None, [-1])}},
    ],
)
def test_a_record_with_numbers_out_of_range_is_not_valid(wrong):
    assert VALID.is_valid()
    assert not msgspec.structs.replace(VALID, **wrong).is_valid()
