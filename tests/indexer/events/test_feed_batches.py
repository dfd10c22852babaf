"""Tests of the application of batches to the index: events, drops, ranks and steps."""

import pytest

from indexer.events import event_decoder, payload_parser
from indexer.events.fault_notices import NOTICE_INTERVAL_S, StreamFault
from indexer.events.payload_parser import EVENTS_AT_ONCE
from indexer.tiers import Tier
from tests.indexer.events.feed_scenes import a_feed, applied, live, send
from tests.models.event_feed_model import RANK, RecordingWriter, batch, identified


def stored(hashes, parent, tokens, block_size=4, *rest):
    return ["BlockStored", hashes, parent, tokens, block_size, None, *rest]


def apply_to(feed, *events, rank=None):
    seq = feed.cursor.next_seq
    live(feed, seq, batch(*events, rank=rank), 0.0)
    return feed.indexed.writers[RANK].calls


def test_stored_blocks_are_hashed_and_stored_under_their_parent():
    feed = a_feed()
    calls = apply_to(feed, stored([11, 12, 13], 10, list(range(1, 13))))
    hashes = [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert calls == [("store", 0, 10, hashes, [11, 12, 13], True)]
    assert feed.indexed.applier.stored_blocks == 3


def test_set_semantics_reach_the_index():
    feed = a_feed(counted=False)
    assert apply_to(feed, stored([11], None, [1, 2, 3, 4]))[0][-1] is False


def test_event_with_too_few_tokens_stores_the_leading_blocks():
    feed = a_feed()
    calls = apply_to(feed, stored([11, 12], None, [1, 2, 3, 4, 5, 6]))
    assert calls[0][4] == [11]


def test_event_of_another_block_size_is_dropped_and_counted():
    feed = a_feed()
    assert apply_to(feed, stored([11], None, list(range(8)), 8)) == []
    assert feed.indexed.applier.drops.counts["block_size"] == 1
    assert feed.indexed.applier.drops.registration_fault == (
        "dropped: 1 block of 8 tokens on GPU; the registered block_size is 4, "
        "but no block of that size has come: check it against the engine's block size"
    )
    assert feed.indexed.applier.drops.is_size_wrong


@pytest.mark.parametrize("chunk_comes_first", [True, False])
@pytest.mark.parametrize(
    ("event", "reason", "words"),
    [
        (stored([11, 12], None, list(range(512)), 256, "cpu"), "other_size", "2 blocks of 256 tok"),
        (
            stored([11], None, list(range(8)), 8, "GPU", None, None, None, 1, "mla_attention"),
            "other_size",
            "1 block of 8 tokens on GPU, group 1 (mla_attention); the index takes whole ",
        ),
        (
            stored([11], None, [1, 2, 3]),
            "partial_block",
            "1 block of 4 tokens on GPU, with 3 tokens; the",
        ),
    ],
)
def test_chunks_and_partial_blocks_are_no_sign_of_another_block_size(
    event, reason, words, chunk_comes_first
):
    """The block size is right if other blocks have the registered size, in either order."""
    feed, good = a_feed(), stored([21], None, [1, 2, 3, 4])
    for each in [event, good] if chunk_comes_first else [good, event]:
        apply_to(feed, each)
    applier = feed.indexed.applier
    assert (applier.drops.registration_fault, applier.drops.is_size_wrong) == (None, False)
    assert applier.drops.last_skipped.startswith("not indexed: ")
    assert words in applier.drops.last_skipped
    is_known_later = chunk_comes_first and reason == "other_size" and "GPU" in words
    assert applier.drops.counts == {"block_size" if is_known_later else reason: 1}
    assert applier.stored_blocks == 1


def test_a_restart_with_another_block_size_is_reported():
    feed = a_feed()
    apply_to(feed, stored([21], None, [1, 2, 3, 4]))
    live(feed, 0, batch(stored([11], None, list(range(8)), 8)), 1.0)
    assert feed.restarts == 1
    assert feed.indexed.applier.drops.is_size_wrong


def test_an_event_with_too_few_tokens_for_a_block_is_no_sign_of_another_block_size():
    feed = a_feed()
    assert apply_to(feed, stored([11], None, [1, 2, 3])) == []
    applier = feed.indexed.applier
    assert (applier.drops.counts["partial_block"], applier.drops.registration_fault) == (1, None)


def test_event_without_tokens_names_known_blocks():
    feed = a_feed()
    calls = apply_to(feed, stored([11, 12], None, [], 0, "CPU"))
    assert calls == [("store_known", 1, [11, 12], True)]


def test_media_name_tiers_and_unknown_ones_are_dropped():
    feed = a_feed()
    calls = apply_to(
        feed,
        *(["BlockRemoved", [n], medium] for n, medium in enumerate(["GPU", "cpu", "disk", "HBM"])),
    )
    assert [call[1] for call in calls] == [0, 1, 2]
    assert feed.indexed.applier.drops.counts["medium"] == 1
    assert feed.indexed.applier.drops.last_skipped == (
        "not indexed: 1 block on HBM: the medium is unknown"
    )


def test_clearing_empties_the_named_rank_alone():
    writers = {rank: RecordingWriter() for rank in (RANK, 4)}
    feed = a_feed(writers=writers)
    apply_to(feed, ["AllBlocksCleared"], rank=4)
    assert [writers[rank].clears for rank in (RANK, 4)] == [0, 1]
    apply_to(feed, ["AllBlocksCleared"])
    assert [writers[rank].clears for rank in (RANK, 4)] == [1, 1]


def test_clearing_the_own_rank_ends_degraded():
    feed = a_feed(replay=False, writers={rank: RecordingWriter() for rank in (RANK, 4)})
    send(feed, 5)
    apply_to(feed, ["AllBlocksCleared"], rank=4)
    assert feed.degraded
    apply_to(feed, ["AllBlocksCleared"])
    assert (bool(feed.degraded), feed.lost) == (False, 5)


def test_batch_of_a_sibling_rank_goes_to_it_and_of_a_stranger_is_dropped():
    writers = {rank: RecordingWriter() for rank in (RANK, 4)}
    feed = a_feed(writers=writers)
    live(feed, 0, identified(1, 0, rank=4), 0.0)
    live(feed, 1, identified(1, 1, rank=9), 0.0)
    assert (applied(feed), applied(feed, 4)) == ([], [0])
    assert feed.indexed.applier.drops.counts["rank"] == 1
    assert feed.indexed.applier.drops.registration_fault == (
        "dropped: events of dp_rank 9, which the worker does not have; check its "
        "data_parallel_start_rank and data_parallel_size"
    )
    assert feed.cursor.last_sequence == 1


def test_unreadable_batch_is_counted_and_the_next_one_is_no_gap():
    feed = a_feed()
    live(feed, 0, b"\xc1", 0.0)
    send(feed, 1)
    assert (feed.indexed.decode_errors, feed.gaps, applied(feed)) == (1, 0, [1])
    assert feed.indexed.last_error
    assert StreamFault.UNREADABLE in feed.indexed.notices.take_pending()


def test_bad_event_is_counted_and_its_neighbours_are_applied():
    feed = a_feed()
    live(feed, 0, batch(["BlockRemoved", "x"], ["BlockRemoved", [7]], ["Novelty"]), 0.0)
    assert feed.indexed.decode_errors == 2
    assert applied(feed) == [7]


@pytest.mark.parametrize("tail", [[], [None, [["a salt"]]]], ids=["common", "unusual"])
def test_a_large_batch_is_read_and_applied_in_short_steps(tail, monkeypatch):
    """Each step of either reader reads only a few events."""
    read = []
    for module, name in ((event_decoder, "_event_of_row"), (payload_parser, "_parse_event")):
        one = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, one=one: read.append(1) or one(*given))
    feed = a_feed()
    events = [stored([n], None, [1, 2, 3, 4], 4, "GPU", *tail) for n in range(1, 3001)]
    feed.receive(0, batch(*events), 0.0)
    steps, longest = 1, 0
    while feed.is_busy:
        before = len(read)
        feed.continue_work(0.0)
        steps, longest = steps + 1, max(longest, len(read) - before)
    assert len(read) == 3000
    assert longest <= 2 * EVENTS_AT_ONCE
    assert steps > 2 * 3000 // EVENTS_AT_ONCE
    assert len(feed.indexed.writers[RANK].calls) == 3000


GROUP_CASES = [
    # group_idx and kind of an earlier store (None means no store) and of the event; whether the
    # event is of dense blocks
    (None, (None, "full_attention"), True),
    (None, (None, "mla_attention"), True),
    (None, (3, "sink_full_attention"), True),
    (None, (None, "sliding_window"), False),
    (None, (0, "mamba"), False),
    (None, (None, "novelty"), False),
    (None, (None, None), True),
    (None, (0, None), True),
    (None, (1, None), False),
    ((1, "full_attention"), (1, None), True),
    ((0, "sliding_window"), (0, None), False),
    ((1, "full_attention"), (2, None), False),
]


@pytest.mark.parametrize(("before", "event", "kept"), GROUP_CASES)
def test_attention_group_decides_whether_an_event_is_of_dense_blocks(before, event, kept):
    feed = a_feed()
    tail = ["GPU", None, None]
    if before is not None:
        apply_to(feed, stored([1], None, [1, 2, 3, 4], 4, *tail, *before))
        feed.indexed.writers[RANK].calls.clear()
    calls = apply_to(
        feed,
        stored([2], None, [1, 2, 3, 4], 4, *tail, *event),
        ["BlockRemoved", [2], "GPU", *event],
    )
    assert len([call for call in calls if call[1] == Tier.GPU]) == (2 if kept else 0)


def test_attention_groups_are_learned_per_rank():
    feed = a_feed(writers={rank: RecordingWriter() for rank in (RANK, 4)})
    apply_to(
        feed, stored([1], None, [1, 2, 3, 4], 4, "GPU", None, None, 0, "sliding_window"), rank=4
    )
    assert len(apply_to(feed, ["BlockRemoved", [2], "GPU", 0])) == 1


def test_notices_come_once_per_episode():
    feed = a_feed(replay=False)
    send(feed, 1, 3, 5)
    assert list(feed.indexed.notices.take_pending()) == [StreamFault.LOST]
    send(feed, 7, now=NOTICE_INTERVAL_S - 1)
    assert feed.indexed.notices.take_pending() == {}
    send(feed, 9, now=NOTICE_INTERVAL_S)
    assert list(feed.indexed.notices.take_pending()) == [StreamFault.LOST]
