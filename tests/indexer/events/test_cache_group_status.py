"""Tests of the shown status of cache groups: kinds, blocks, certainty, faults of the record."""

import numpy as np
import pytest

from indexer.events import lane_writer
from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index.cache_group_status import ALIGNMENT_REASON
from indexer.index.kv_cache_facts import KvCacheFacts
from indexer.index.prefix_index import PromptUnits
from tests.indexer.events.test_block_identity import PROMPT, SIZE, Rank, stored

DENSE = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
STATE = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
WINDOW = {
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 2 * SIZE,
}
CHUNKED = {"group_idx": 1, "kv_cache_spec_kind": "chunked_local_attention"}


def group_status(rank):
    return rank.feed.indexed.read_cache_groups()


def end_inside_block(name, tokens, **fields):
    """Return the end of a prompt two tokens behind block 0."""
    return stored(1, 1, block_hashes=[name], token_ids=tokens, block_size=2, **fields)


@pytest.mark.parametrize("group", [{}, DENSE])
def test_a_plain_rank_shows_no_groups(group):
    rank = Rank().send(stored(0, 3, **group))
    assert group_status(rank) is None
    assert not rank.feed.indexed.applier.groups.inside_block_events


def test_blocks_are_counted_by_group():
    rank = Rank().send([stored(0, 4, **DENSE), stored(2, 2, **WINDOW)])
    found = group_status(rank)
    assert [group[:4] for group in found.groups] == [
        (0, "full_attention", SIZE, 0),
        (1, "sliding_window", SIZE, 4),
    ]
    assert [group.blocks for group in found.groups] == [4, 2]
    assert (found.unit, found.lookahead, found.reasons) == (SIZE, 0, ())
    rank.writer.clear()
    assert [group.blocks for group in group_status(rank).groups] == [0, 0]
    rank.writer.close()
    assert [group.blocks for group in group_status(rank).groups] == [0, 0]


def test_a_bound_has_its_reason():
    rank = Rank().send([stored(0, 4, **DENSE), stored(0, 2, **CHUNKED)])
    assert group_status(rank).reasons == (
        "group 1 (chunked_local_attention): the size of a chunk is unknown, give kv_cache.chunk",
    )
    rank = Rank(facts=KvCacheFacts(chunk=2 * SIZE))
    rank.send([stored(0, 4, **DENSE), stored(0, 2, **CHUNKED)])
    assert not group_status(rank).is_bound


def test_long_kinds_are_cut():
    kind = "k" * 1000
    rank = Rank().send([stored(0, 4, **DENSE), stored(0, 1, group_idx=1, kv_cache_spec_kind=kind)])
    assert group_status(rank).groups[1].kind == kind[:64]
    assert len(group_status(rank).reasons[0]) == 256


def test_sizes_that_do_not_fit_the_registered_one_are_a_bound():
    six = {"block_size": 6, "token_ids": list(range(6))}
    rank = Rank().send([stored(0, 1, **six, **DENSE), stored(0, 1, **six, **STATE)])
    assert group_status(rank).reasons == (ALIGNMENT_REASON,)


def test_groups_are_forgotten_with_the_engines_life():
    rank = Rank().send([stored(0, 4, **DENSE), stored(2, 2, **WINDOW)])
    rank.feed.indexed.applier.groups.forget_groups(rank.writer)
    assert group_status(rank) is None


def test_ranks_without_a_dense_group_are_recognised():
    rank = Rank().send(stored(0, 4, **WINDOW))
    assert group_status(rank).has_only_sparse_groups
    rank.send(stored(0, 4, **DENSE))
    assert not group_status(rank).has_only_sparse_groups


def test_lookahead_is_that_of_the_events():
    ahead = {"lookahead_token_ids": [[7], [8]]}
    rank = Rank(is_eagle=True).send(
        [stored(0, 2, **DENSE, **ahead), stored(0, 2, **WINDOW, **ahead)]
    )
    assert group_status(rank).lookahead == 1


def test_the_end_of_a_prompt_inside_a_block_is_no_wrong_block_size():
    rank = Rank().send(end_inside_block(77, [100, 101], parent_block_hash=None, **DENSE))
    status = rank.feed.indexed.applier
    assert (status.groups.inside_block_events, status.drops.is_size_wrong) == (1, False)
    assert (status.drops.registration_fault, dict(status.drops.counts)) == (None, {})
    rank.send(stored(0, 1, **DENSE), end_inside_block(78, [104, 105], **DENSE))
    assert (status.groups.inside_block_events, status.drops.size_fits) == (2, True)
    assert (status.drops.last_skipped, dict(status.drops.counts)) == (None, {})


def test_several_smaller_blocks_of_the_dense_group_are_a_wrong_block_size():
    rank = Rank().send(stored(0, 4, block_size=2, token_ids=list(range(8)), **DENSE))
    drops = rank.feed.indexed.applier.drops
    assert (drops.is_size_wrong, drops.counts["block_size"]) == (True, 1)
    assert "the registered block_size is 4, but no block of that size" in drops.registration_fault


def test_a_lane_without_planes_holds_nothing():
    """Planes come in steps after the layout, and other holder sets follow a short set."""
    rank = Rank().send(stored(0, 4, **DENSE))
    sibling = rank.index.open_slot()
    path = compute_block_hashes(np.array(PROMPT[: 4 * SIZE], np.uint32), SIZE)
    for n_blocks in range(1, 5):
        names = np.arange(n_blocks, dtype=np.uint64)
        sibling.store(0, None, path[:n_blocks], names)
    lanes = rank.feed.indexed.applier.groups.lanes_of(rank.writer.cache_groups, rank.writer)
    lanes.groups.learn(1, "sliding_window", SIZE, SIZE)
    lanes.update_layout()
    assert lanes.needs_lanes
    match = rank.index.match_reuse(path, PromptUnits(4 * SIZE + 1))
    assert match.matched[rank.writer.slot, 0] == 0
    assert not match.certainty[rank.writer.slot]


def test_without_memory_for_lanes_overlaps_are_a_bound(monkeypatch):
    rank = Rank().send(stored(0, 4, **DENSE))

    def refuse(lanes, tree):
        raise MemoryError

    monkeypatch.setattr(lane_writer, "add_lane_step", refuse)
    rank.send(stored(2, 2, **WINDOW))
    assert "group 1 (sliding_window) has no lane" in group_status(rank).reasons
    assert [group.blocks for group in group_status(rank).groups] == [4, 0]
    rank.send(stored(2, 2, **WINDOW))
    assert rank.feed.indexed.applier.drops.counts["attention_group"] == 2
