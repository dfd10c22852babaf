"""Tests of cache groups with numbers that no engine sends: no failure, no stall, no growth."""

from itertools import pairwise
from random import Random

import msgspec
import pytest

from indexer.events.lane_writer import NAMES_AT_ONCE, WAITING_AT_ONCE
from indexer.events.part_writer import PARTS_AT_ONCE
from indexer.events.payload_parser import parse_batch
from indexer.hashing.engine_names import NameScheme
from indexer.index.groups_record import OPEN_BLOCKS_MAX, GroupsRecord
from tests.indexer.events.grouped_rank import GroupedRank
from tests.models.cache_groups_model import DENSE, STATE, CacheGroupsModel, GroupModel
from tests.models.grouped_engine import GroupedEngine

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
    """Return a state at the end of a span that begins below a block that the rank never had."""
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


def test_names_that_wait_are_placed_in_bounded_steps():
    """States are published before the dense blocks that show their places."""
    blocks = 4096
    rank = GroupedRank(SIZE)
    first = {"token_ids": [9, 9, 9, 9]}
    rank.apply_batch([stored(8, "mamba", 0, **first), stored(8, "full_attention", 1, **first)])
    tokens = list(range((blocks + 1) * SIZE))
    span = {"token_ids": tokens, "parent_block_hash": None}
    states = stored(0, "mamba", 0, **span) | {"block_hashes": list(range(102, blocks + 102))}
    dense = stored(0, "full_attention", 1, **span) | {
        "block_hashes": list(range(101, blocks + 102))
    }
    batch = parse_batch(msgspec.msgpack.encode([0.0, [states, dense], None]))
    waiting = [
        len(rank.groups.waiting) for _ in rank.applier.apply_in_steps(batch, {0: rank.writer})
    ]
    assert max(waiting) == blocks
    assert waiting[-1] == 0
    assert max(a - b for a, b in pairwise(waiting)) <= WAITING_AT_ONCE
    assert rank.answer(tokens) == (blocks * SIZE, False)


def open_block(name, tokens):
    """Return a partial block at the start of a sequence, of a window of finer blocks."""
    fields = {"token_ids": tokens, "block_size": 2, "kv_cache_spec_sliding_window": 3}
    return stored(name, "sliding_window", 1, **fields)


def test_an_open_block_that_was_forgotten_makes_a_bound():
    """The event that continues the forgotten block shows no whole block."""
    rank = GroupedRank(SIZE)
    rank.apply_batch([stored(1, "full_attention", 0), open_block(10, [1, 2])])
    for i in range(1, OPEN_BLOCKS_MAX + 2):
        rank.apply_batch([open_block(10 + i, [i, 7])])
    assert len(rank.groups.open_blocks) == OPEN_BLOCKS_MAX
    prompt = [1, 2, 3, 4, 5]
    assert rank.answer(prompt) == (0, False)
    more = {"parent_block_hash": 10, "token_ids": [3, 4], "block_size": 2}
    # The end of the block has a name of the dense group; another part has none, and waits.
    rank.apply_batch([open_block(5000, [3, 9]) | more | {"token_ids": [3, 9]}])
    assert rank.groups.waiting == {(1, 5000): 1}
    assert rank.answer(prompt) == (SIZE, True)
    rank.index.check_invariants()


def test_lanes_that_were_placed_by_names_are_bounds_once_hits_end_at_whole_blocks():
    """A window of whole blocks that publishes late ends hits inside blocks."""
    random = Random(0)
    groups = [GroupModel(0, DENSE, SIZE), GroupModel(1, STATE, SIZE)]
    scheme = NameScheme("sha256", "vllm-none-hash", 2, 0)
    engine = GroupedEngine(CacheGroupsModel(groups, 2), random, scheme)
    rank = GroupedRank(SIZE)
    prompt = list(range(1, 19))
    rank.apply_batch(engine.introduce(prompt))
    assert rank.answer([*prompt, 1]) == (18, False)
    window = {"kv_cache_spec_sliding_window": 3, "token_ids": [9, 9, 9, 9]}
    rank.apply_batch([stored(77, "sliding_window", 2, **window)])
    tokens, is_bound = rank.answer([*prompt, 1])
    assert is_bound
    assert tokens >= 16
    rank.apply_batch([{"type": "AllBlocksCleared"}])
    assert rank.answer([*prompt, 1]) == (0, False)


def test_a_stop_between_the_parts_of_a_long_event_leaves_the_rest_to_the_next_stream():
    blocks = 4 * NAMES_AT_ONCE
    rank = GroupedRank(SIZE)
    tokens = list(range(blocks * SIZE))
    span = {"token_ids": tokens, "parent_block_hash": None}
    names = {"block_hashes": list(range(1, blocks + 1))}
    window = {"kv_cache_spec_sliding_window": 10**6}
    first = {"kv_cache_spec_sliding_window": 10**6, "token_ids": [9, 9, 9, 9]}
    begin = [stored(9999, "full_attention", 0), stored(9998, "sliding_window", 1, **first)]
    rank.apply_batch(begin)
    rank.apply_batch([stored(0, "full_attention", 0, **span) | names])
    event = stored(0, "sliding_window", 1, **span, **window) | names
    batch = parse_batch(msgspec.msgpack.encode([0.0, [event], None]))
    applying = rank.applier.apply_in_steps(batch, {0: rank.writer})
    next(applying)
    applying.close()
    assert not rank.writer.is_whole
    assert rank.writer.pending_steps is not None
    prompt = [*tokens, 1]
    # The next stream of the rank finishes the event before its own batches.
    rank.apply_batch([{"type": "BlockRemoved", "block_hashes": [12345], "group_idx": 1}])
    assert rank.answer(prompt) == (blocks * SIZE, False)
    rank.index.check_invariants()


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


@pytest.mark.parametrize("dense_first", [True, False])
def test_a_long_event_of_a_finer_window_is_placed_in_bounded_steps(dense_first):
    """The event names only tails, so that its tokens place all of its blocks together."""
    n_blocks, rank = 300, GroupedRank(SIZE)
    tokens = list(range(SIZE * n_blocks))
    spec = {"token_ids": tokens, "kv_cache_spec_sliding_window": 9}
    names = [n if n % 2 == 0 else 10_000 + n for n in range(2, 2 * n_blocks + 1)]
    dense = stored(0, "full_attention", 0, token_ids=tokens)
    dense["block_hashes"] = list(range(2, 2 * n_blocks + 1, 2))
    window = stored(0, "sliding_window", 1, **spec) | {"block_hashes": names, "block_size": 2}
    rank.apply_batch([stored(7, "full_attention", 0), stored(7, "sliding_window", 1)])
    events = [dense, window] if dense_first else [window, dense]
    batch = parse_batch(msgspec.msgpack.encode([0.0, events, None]))
    steps = list(rank.applier.apply_in_steps(batch, {0: rank.writer}))
    assert len(steps) > len(names) // PARTS_AT_ONCE
    assert not rank.groups.waiting
    assert not rank.writer.is_filling
    rank.index.check_invariants()
