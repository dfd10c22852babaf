"""Tests of a replay ahead of the live batches: later live batches must match the replay."""

from indexer.events.replay_actions import StartReplay
from indexer.events.replay_schedule import SETTLE_S
from tests.indexer.events.feed_scenes import a_feed, applied, end, reply, send, tick
from tests.models.event_feed_model import RANK


def a_replayed_feed(last):
    """Return a feed with batches from a replay only, and no live batch so far."""
    feed = a_feed()
    feed.begin(0.0, nothing_older_comes=True)
    feed.on_connected(0.0)
    assert tick(feed, SETTLE_S) == StartReplay(0)
    reply(feed, *range(last + 1))
    end(feed)
    assert feed.doubt is None
    return feed


def test_live_batches_that_a_replay_has_brought_are_those_of_the_same_life():
    feed = a_replayed_feed(3)
    assert send(feed, 1, 2, 3, 4) is None
    assert feed.restarts == 0
    assert applied(feed) == [0, 1, 2, 3, 4]


def test_a_missed_new_life_behind_a_replay_is_detected_at_the_last_replayed_number():
    feed = a_replayed_feed(3)
    assert send(feed, 1, 2, life=2) is None
    assert send(feed, 3, life=2) == StartReplay(0)
    reply(feed, 0, 1, 2, life=2)
    send(feed, 4, life=2)
    writer = feed.indexed.writers[RANK]
    assert writer.identities() == [(2, seq) for seq in range(5)]
    assert (feed.restarts, feed.doubt, feed.degraded) == (1, None, None)


def test_a_new_life_behind_a_replay_that_is_under_way_ends_the_question():
    feed = a_feed()
    feed.begin(0.0, nothing_older_comes=True)
    feed.on_connected(0.0)
    tick(feed, SETTLE_S)
    reply(feed, 0, 1)
    assert send(feed, 1, life=2) == StartReplay(0)
    reply(feed, 0, life=2)
    assert feed.indexed.writers[RANK].identities() == [(2, 0), (2, 1)]
