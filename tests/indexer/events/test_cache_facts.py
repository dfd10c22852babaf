"""Tests of registered facts about the KV cache, from the source to the result of a match."""

import msgspec
import numpy as np
import pytest

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.hashing.engine_names import NameScheme, iterate_names
from indexer.index.cache_groups import CacheGroups
from indexer.index.kv_cache_facts import NO_FACTS, HashFacts, KvCacheFacts
from indexer.index.prefix_index import PrefixIndex, PromptUnits
from indexer.index.reuse_layout import AT_LEAST, EXACT, UNCERTAIN, UNSURE
from tests.indexer.events.feed_scenes import a_feed, live
from tests.models.event_feed_model import RANK

SIZE, BLOCKS = 4, 4
TOKENS = list(range(100, 100 + SIZE * BLOCKS))
PATH = compute_block_hashes(np.array(TOKENS, np.uint32), SIZE)
DROP = KvCacheFacts(eagle_drop=True)

NOTHING = msgspec.msgpack.encode([0.0, []])
"""Batch without an event."""


@pytest.fixture
def writer():
    return PrefixIndex(1000).open_slot()


def begin(writer, facts, **source):
    """Return a connected feed of a new listener of the rank."""
    feed = a_feed(writers={RANK: writer}, facts=facts, block_size=SIZE, **source)
    feed.begin(0.0, nothing_older_comes=True)
    feed.on_connected(0.0)
    return feed


def stored(**fields):
    event = {
        "type": "BlockStored",
        "block_hashes": list(range(1, BLOCKS + 1)),
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": SIZE,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **fields,
    }
    return msgspec.msgpack.encode([0.0, [event]])


def plain_stored(**fields):
    """Return an event of an engine that does not number its groups."""
    return stored(group_idx=None, kv_cache_spec_kind=None, **fields)


def layout_of(writer):
    found = []
    writer.change_tree(lambda tree: found.append(tree.layouts.layout_of(writer.slot)) or 0)
    return found[0]


def reusable_blocks(writer, index):
    """Return blocks and certainty for a prompt with all blocks and one additional token."""
    found = index.match_reuse(PATH, PromptUnits(len(TOKENS) + 1))
    return int(found.matched[writer.slot, 0]), bool(
        found.certainty is not None and found.certainty[writer.slot]
    )


def test_a_registered_drop_is_in_the_index_before_any_event(writer):
    begin(writer, DROP)
    assert layout_of(writer).drop == 1


@pytest.mark.parametrize(
    "facts",
    [
        NO_FACTS,
        KvCacheFacts(groups=1),
        KvCacheFacts(eagle_groups=(1,)),
        KvCacheFacts(salted=True, context_parallel=True, hash=HashFacts("sha256", "1")),
    ],
)
def test_facts_about_groups_cost_plain_ranks_nothing(writer, facts):
    feed = begin(writer, facts)
    assert (layout_of(writer), writer.cache_groups) == (None, None)
    live(feed, 0, stored(), 1.0)
    assert layout_of(writer) is None
    assert writer.cache_groups.facts == facts


def test_other_facts_apply_to_the_blocks_that_are_there():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, NO_FACTS)
    live(feed, 0, stored(), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, False)
    cases = (
        (DROP, (BLOCKS - 1, False)),
        (KvCacheFacts(certainty="at_most"), (BLOCKS, True)),
        (KvCacheFacts(may_drop=True), (BLOCKS, True)),
        (KvCacheFacts(eagle_drop=True, eagle_groups=(1,)), (BLOCKS, True)),
        (KvCacheFacts(chunk=64), (BLOCKS, True)),
        (KvCacheFacts(groups=2), (BLOCKS, True)),
        (KvCacheFacts(replay=8), (BLOCKS, False)),
        (KvCacheFacts(replay=SIZE * BLOCKS), (0, False)),
        (NO_FACTS, (BLOCKS, False)),
    )
    for seq, (facts, found) in enumerate(cases, 1):
        feed.close()
        feed = begin(writer, facts, replay=False)
        # Only the next batch shows that none is missing.
        live(feed, seq, NOTHING, 1.0)
        assert reusable_blocks(writer, index) == found
        index.check_invariants()
    live(
        feed,
        len(cases) + 1,
        stored(block_hashes=[9], parent_block_hash=4, token_ids=[1, 2, 3, 4]),
        2.0,
    )
    assert index.stats().blocks == BLOCKS + 1


def test_a_group_that_has_not_published_blocks_makes_a_bound():
    """The lower of two group numbers is missing."""
    index = PrefixIndex(1000)
    writer = index.open_slot()
    live(begin(writer, NO_FACTS), 0, stored(group_idx=1), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, True)
    assert writer.cache_groups.bound_reasons() == (
        "not every cache group has published blocks so far",
    )
    live(begin(writer, KvCacheFacts(groups=1)), 1, stored(group_idx=1), 2.0)
    assert reusable_blocks(writer, index) == (BLOCKS, False)


def test_facts_of_ranks_without_groups_in_their_events_apply_as_well():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    live(begin(writer, DROP), 0, plain_stored(), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS - 1, False)


def test_batches_of_ranks_without_groups_are_applied_at_once(writer):
    feed = begin(writer, KvCacheFacts(certainty="at_most"))
    for seq in range(2):
        feed.receive(seq, plain_stored(), 1.0)
        assert not feed.is_busy


def test_lookahead_in_events_ends_the_doubt_about_drops():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, KvCacheFacts(may_drop=True), is_eagle=True)
    live(feed, 0, stored(lookahead_token_ids=[[7]] * BLOCKS), 1.0)
    assert reusable_blocks(writer, index)[1] is False


def test_lookahead_that_the_registration_ignores_is_a_bound():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    live(begin(writer, NO_FACTS), 0, stored(lookahead_token_ids=[[7]] * BLOCKS), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, True)
    assert "register `is_eagle`" in writer.group_status.reasons[0]


def test_speculation_without_lookahead_is_a_bound_with_a_reason():
    groups = CacheGroups(SIZE, KvCacheFacts(may_drop=True))
    assert ["give kv_cache.eagle_drop" in why for why in groups.bound_reasons()] == [True]
    groups.lookahead = 1
    assert groups.is_plain
    assert groups.bound_reasons() == ()


def named_groups(facts, seed="odd seed"):
    """Return groups with states, and the first block of a sequence with the names of this seed."""
    groups = CacheGroups(SIZE, facts)
    groups.learn(0, "full_attention", None, SIZE)
    groups.learn(1, "mamba", None, SIZE)
    scheme = NameScheme("sha256", seed, 2, 0)
    name = list(iterate_names(scheme, TOKENS[:SIZE]))[-1]
    groups.first_block = name, TOKENS[:SIZE], []
    return groups, scheme


@pytest.mark.parametrize(
    ("hashing", "is_proven"),
    [
        (None, False),
        (HashFacts(seed="odd seed"), True),
        (HashFacts("sha256", "odd seed"), True),
        (HashFacts("xxhash", "odd seed"), False),
        (HashFacts("sha256", "another"), False),
    ],
)
def test_a_registered_seed_is_tried_first(hashing, is_proven):
    groups, scheme = named_groups(KvCacheFacts(hash=hashing))
    assert groups.prove_names() is is_proven
    assert groups.scheme == (scheme if is_proven else None)


def test_usual_seeds_are_tried_behind_the_registered_one():
    groups, _ = named_groups(KvCacheFacts(hash=HashFacts(seed="stale")), seed="vllm-none-hash")
    assert groups.prove_names()


def test_another_hash_allows_new_proofs():
    groups, scheme = named_groups(KvCacheFacts(hash=HashFacts("xxhash")))
    first = groups.first_block
    assert not groups.prove_names()
    groups.replace_facts(KvCacheFacts(hash=HashFacts("sha256", "odd seed")))
    groups.first_block = first
    assert groups.prove_names()
    assert groups.scheme == scheme


# --- Windows of TensorRT-LLM ----------------------------------------------------------------------


def removed(*names, **fields):
    event = {"type": "BlockRemoved", "block_hashes": [*names], **fields}
    return msgspec.msgpack.encode([0.0, [event]])


@pytest.mark.parametrize("is_v2", [False, True])
def test_one_window_is_a_plain_rank(is_v2):
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, NO_FACTS)
    group = {"window_size": 4096} | ({"layer_group_id": 0, "hash_algo": "v2"} if is_v2 else {})
    live(feed, 0, plain_stored(**group), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, False)
    live(feed, 1, removed(4, **group), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS - 1, False)
    assert feed.indexed.unknown_fields == {}


@pytest.mark.parametrize("order", [(4096, 8), (8, 4096)])
@pytest.mark.parametrize("is_v2", [False, True])
def test_narrower_windows_are_dropped_and_make_a_bound(order, is_v2):
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, NO_FACTS)

    def group(window):
        return {"window_size": window} | ({"layer_group_id": 4096 // window} if is_v2 else {})

    for seq, window in enumerate(order):
        live(feed, seq, plain_stored(**group(window)), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, True)
    assert ["window of 8" in why for why in writer.cache_groups.bound_reasons()] == [True]
    # A name identifies a block in both groups: a removal from the window removes nothing.
    live(feed, 2, removed(1, 2, 3, **group(8)), 1.0)
    assert reusable_blocks(writer, index) == (BLOCKS, True)
    assert feed.indexed.applier.drops.counts["attention_group"] > 0
    again = CacheGroups.from_record(writer.groups_record, SIZE)
    assert again.bound_reasons() == writer.cache_groups.bound_reasons()
    index.check_invariants()


def test_the_number_of_narrow_windows_is_bounded():
    groups = CacheGroups(SIZE)
    for window in range(1, 100):
        groups.learn(window, groups.guess_kind(window, window), window, SIZE)
    assert groups.overflowed
    assert groups.to_record().is_valid()


def test_lost_batches_make_overlaps_uncertain_until_the_rank_is_empty():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, KvCacheFacts(replay=SIZE - 1), replay=False)
    live(feed, 0, stored(), 1.0)
    assert certainty_of(writer, index) == EXACT
    live(feed, 2, NOTHING, 2.0)
    assert feed.degraded is not None
    assert certainty_of(writer, index) == UNCERTAIN
    assert (writer.group_status.certainty, writer.group_status.reasons) == (
        "unknown",
        (feed.degraded.reason,),
    )
    live(feed, 3, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]]]), 3.0)
    live(feed, 4, stored(), 4.0)
    assert certainty_of(writer, index) == EXACT


def test_a_rank_that_is_not_verified_is_uncertain():
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, KvCacheFacts(replay=SIZE - 1), replay=False)
    live(feed, 0, stored(), 1.0)
    feed.on_disconnected(2.0)
    assert (feed.doubt is not None, certainty_of(writer, index)) == (True, UNCERTAIN)
    feed.on_connected(3.0)
    assert certainty_of(writer, index) == UNCERTAIN
    live(feed, 1, NOTHING, 4.0)
    assert (feed.doubt, certainty_of(writer, index)) == (None, EXACT)


def certainty_of(writer, index):
    found = index.match_reuse(PATH, PromptUnits(len(TOKENS) + 1))
    return int(found.certainty[writer.slot])


@pytest.mark.parametrize(("tokens", "certainty"), [(True, EXACT), (False, AT_LEAST)])
def test_hashes_of_a_caller_may_miss_blocks_with_several_tokens_behind(tokens, certainty):
    index = PrefixIndex(1000)
    writer = index.open_slot()
    feed = begin(writer, NO_FACTS, is_eagle=True)
    live(feed, 0, stored(lookahead_token_ids=[[7, 8, 9]] * BLOCKS), 1.0)
    assert index.lookahead == 3
    ids = np.array(TOKENS, np.uint32)
    units = PromptUnits(len(TOKENS) + 1, ids if tokens else None)
    found = index.match_reuse(PATH, units)
    assert found.certainty[writer.slot] == certainty


def test_ranks_with_another_lookahead_than_the_scope_are_uncertain():
    index = PrefixIndex(1000)
    writers = [index.open_slot() for _ in range(2)]
    for writer, ahead in zip(writers, (3, 2), strict=True):
        feed = begin(writer, NO_FACTS, is_eagle=True)
        live(feed, 0, stored(lookahead_token_ids=[[7] * ahead] * BLOCKS), 1.0)
    assert index.lookahead == 3
    assert [certainty_of(writer, index) for writer in writers] == [AT_LEAST, UNCERTAIN]


@pytest.mark.parametrize(("is_array", "is_bound"), [(True, True), (False, False)])
def test_the_drop_of_engines_with_arrays_is_followed_for_one_group_only(is_array, is_bound):
    """vLLM 0.23 drops the matches of several groups by another rule than 0.33."""
    groups = CacheGroups(SIZE, KvCacheFacts(eagle_drop=True), is_array_form=is_array)
    groups.learn(0, "full_attention", None, SIZE)
    assert (groups.layout().drop, groups.bound_reasons()) == (1, ())
    groups.learn(1, "mamba", None, SIZE)
    assert bool(groups.bound_reasons()) == is_bound
    assert groups.layout().drop == (0 if is_bound else 1)


def test_salts_of_states_alone_are_not_shown_so_that_overlaps_are_uncertain():
    groups = CacheGroups(SIZE, KvCacheFacts(salted=True))
    groups.learn(0, "mamba", None, SIZE)
    assert groups.layout().bound == UNSURE
