"""Tests of a feed with a slot from a dump: no loss, and no block counted twice."""

import msgspec
import numpy as np
import pytest

from indexer.events.event_cursor import EventCursor, SequenceVerdict
from indexer.events.event_feed import EventFeed
from indexer.events.kv_event_source import KvSource
from indexer.events.replay_actions import StartReplay
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from tests.indexer.events.feed_scenes import live, replayed, tick


def u64(*values):
    return np.array(values, np.uint64)


def batch(*events):
    return msgspec.msgpack.encode([0.0, list(events), None])


def stored(name, parent=None):
    return ["BlockStored", [name], parent, [name, 0, 0, 0], 4]


def removed(name):
    return ["BlockRemoved", [name]]


def a_feed(place, *, replay=True, nothing_older_comes=True):
    """Return a feed and its writer, which holds block 10, announced once."""
    writer = PrefixIndex(100).open_slot()
    writer.store(Tier.GPU, None, u64(99), u64(10))
    writer.position = place
    writer.has_unpositioned_blocks = place is None
    endpoint = "tcp://r:1" if replay else None
    feed = EventFeed(KvSource(1, 0, "tcp://e:1", endpoint, 4, False, True, {0: writer}))
    feed.begin(0.0, nothing_older_comes=nothing_older_comes)
    return feed, writer


def count_blocks(writer):
    return writer._tree.count_blocks(writer.slot)


def test_a_replay_begins_at_the_place():
    feed, _ = a_feed(StreamPosition(5))
    live(feed, 8, batch(stored(1)), 0.0)
    assert tick(feed, 0.0) == StartReplay(4)


def test_the_next_batch_needs_no_replay():
    feed, writer = a_feed(StreamPosition(5))
    assert live(feed, 5, batch(stored(1)), 0.0) is None
    assert (count_blocks(writer), writer.position.sort_key) == (2, (6, 0))


def test_events_that_the_dump_has_already_are_skipped():
    feed, writer = a_feed(StreamPosition(5, 2))
    live(feed, 5, batch(stored(10), stored(10), stored(1)), 0.0)
    live(feed, 6, batch(removed(10)), 0.0)
    assert count_blocks(writer) == 1


def test_batches_that_waited_since_before_the_dump_are_stale():
    feed, writer = a_feed(StreamPosition(5), nothing_older_comes=False)
    for seq in range(3, 7):
        live(feed, seq, batch(stored(seq)), 0.0)
    assert (feed.stale, feed.restarts, feed.lost, count_blocks(writer)) == (2, 0, 0, 3)


@pytest.mark.parametrize("nothing_older_comes", [True, False])
def test_the_very_first_batch_shows_a_restart(nothing_older_comes):
    feed, writer = a_feed(StreamPosition(5), nothing_older_comes=nothing_older_comes)
    live(feed, 0, batch(stored(1)), 0.0)
    assert (feed.restarts, count_blocks(writer), writer.position.sort_key) == (1, 1, (1, 0))


def test_lower_numbers_show_a_restart_to_a_late_listener():
    feed, writer = a_feed(StreamPosition(50), replay=False)
    live(feed, 2, batch(stored(1)), 0.0)
    live(feed, 3, batch(stored(2)), 0.0)
    assert (feed.restarts, count_blocks(writer)) == (1, 2)


def test_a_complete_replay_replaces_blocks_of_unknown_place():
    feed, writer = a_feed(None)
    live(feed, 1, batch(stored(2)), 0.0)
    assert tick(feed, 0.0) == StartReplay(0)
    replayed(feed, 0, batch(stored(1)), 0.0)
    assert (count_blocks(writer), writer.has_unpositioned_blocks) == (2, False)


def test_a_partial_replay_does_not_count_blocks_of_unknown_place_again():
    feed, writer = a_feed(None)
    live(feed, 7, batch(stored(2)), 0.0)
    missing = batch(stored(10))
    for now in (0.0, 1.0):
        tick(feed, now)
        replayed(feed, 6, missing, now)
        tick(feed, now + 0.9)
    assert feed.lost == 6
    live(feed, 8, batch(removed(10)), 2.0)
    assert count_blocks(writer) == 1


def test_the_first_batch_of_an_engine_replaces_blocks_of_unknown_place():
    feed, writer = a_feed(None)
    live(feed, 0, batch(stored(1)), 0.0)
    assert count_blocks(writer) == 1


def test_a_restart_forgets_the_place():
    feed, writer = a_feed(StreamPosition(5))
    live(feed, 5, batch(stored(1)), 0.0)
    live(feed, 0, batch(), 0.0)
    assert (count_blocks(writer), writer.position.sort_key) == (0, (1, 0))


def test_a_resumed_cursor_takes_the_next_number():
    cursor = EventCursor()
    cursor.resume(5, nothing_older_comes=True)
    cursor.check_invariants()
    assert cursor.last_sequence == 4
    assert cursor.observe(5) is SequenceVerdict.NEXT
    cursor.resume(5, nothing_older_comes=False)
    assert [cursor.observe(seq) for seq in (3, 4, 5)] == [
        SequenceVerdict.STALE,
        SequenceVerdict.STALE,
        SequenceVerdict.NEXT,
    ]


def test_only_live_batches_update_the_live_time():
    feed, writer = a_feed(StreamPosition(5))
    writer.live_at = 1.0
    live(feed, 7, batch(stored(1)), 2.0)
    assert tick(feed, 2.0) == StartReplay(4)
    replayed(feed, 4, batch(), 3.0)
    replayed(feed, 5, batch(stored(2)), 3.0)
    assert (writer.position.sort_key, writer.live_at) == ((6, 0), 1.0)
    replayed(feed, 6, batch(stored(3)), 4.0)
    assert (writer.position.sort_key, writer.live_at) == ((8, 0), 4.0)
    live(feed, 0, batch(), 9.0)
    assert (writer.position.sort_key, writer.live_at) == ((1, 0), 9.0)


def test_a_replayed_new_life_has_no_live_time():
    feed, writer = a_feed(StreamPosition(50))
    writer.live_at = 1.0
    live(feed, 3, batch(stored(1)), 2.0)
    assert live(feed, 4, batch(stored(2)), 2.0) == StartReplay(0)
    replayed(feed, 0, batch(stored(3)), 3.0)
    assert (writer.position.sort_key, writer.live_at) == ((1, 0), None)
