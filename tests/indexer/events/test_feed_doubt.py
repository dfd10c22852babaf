"""Tests of a feed in doubt about its place: the feed queries its engine, and judges the answers."""

import pytest

from indexer.events import step_runner
from indexer.events.gap_recovery import FRAME_S_MAX, PROBE_S
from indexer.events.replay_actions import StartReplay, StopReplay
from indexer.events.replay_schedule import IDLE_S, SETTLE_S
from indexer.events.uncertainty import DIGESTED_BYTES_MAX, DoubtReason, payload_digest
from indexer.index.index_snapshot import StreamPosition
from tests.indexer.events.feed_scenes import a_feed, applied, end, live, replayed, reply, send, tick
from tests.models.event_feed_model import RANK, RecordingWriter, batch, identified


def a_feed_at(last, *, replay=True, now=0.0):
    """Return a connected feed that has applied batches 0 to `last` and is in no doubt."""
    feed = a_feed(replay=replay)
    feed.begin(now, nothing_older_comes=True)
    feed.on_connected(now)
    send(feed, *range(last + 1), now=now)
    if replay:
        tick(feed, now + SETTLE_S)
        reply(feed, last, now=now)
        end(feed, now)
    assert feed.doubt is None
    return feed


def reconnect(feed, now=1.0):
    """Break and restore the connection, and return the following request."""
    feed.on_disconnected(now)
    assert feed.doubt.reason is DoubtReason.INTERRUPTED
    assert tick(feed, now + 5 * SETTLE_S) is None  # no request is sent while the connection is down
    feed.on_connected(now)
    assert tick(feed, now) is None
    return tick(feed, now + SETTLE_S)


def a_resumed_feed(place, *, replay=True):
    writer = RecordingWriter()
    writer.position = place
    feed = a_feed(replay=replay, writers={RANK: writer})
    feed.begin(0.0, nothing_older_comes=True)
    assert feed.doubt.reason is DoubtReason.RESUMED
    feed.on_connected(0.0)
    return feed


def a_digest(seq, life=1):
    return payload_digest(identified(life, seq))


def test_a_reconnected_feed_replays_from_the_last_batch_without_a_live_batch():
    feed = a_feed_at(9)
    assert reconnect(feed) == StartReplay(9)
    reply(feed, 9, 10, 11, now=2.0)
    assert feed.doubt is not None
    assert end(feed, 2.0) == StopReplay()
    assert applied(feed) == list(range(12))
    assert (feed.doubt, feed.gaps, feed.lost, feed.restarts, bool(feed.degraded)) == (
        None,
        0,
        0,
        0,
        False,
    )


@pytest.mark.parametrize("numbers", [range(9, 30), range(9, 10)])
def test_another_batch_at_the_last_number_is_a_new_life(numbers):
    feed = a_feed_at(9)
    reconnect(feed)
    assert reply(feed, numbers[0], life=2, now=2.0) == StartReplay(0)
    assert (applied(feed), feed.restarts) == ([], 1)
    reply(feed, *range(numbers[-1] + 1), life=2, now=2.0)
    assert feed.doubt is not None
    end(feed, 2.0)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(numbers[-1] + 1)]
    assert (feed.doubt, feed.lost, bool(feed.degraded)) == (None, 0, False)


def test_numbers_below_are_noticed_at_the_reconnection():
    feed = a_feed_at(9)
    reconnect(feed)
    assert end(feed, 2.0) == StartReplay(0)
    reply(feed, 0, 1, life=2, now=2.0)
    end(feed, 2.0)
    assert feed.indexed.writers[RANK].identities() == [(2, 0), (2, 1)]
    assert feed.doubt is None


def test_an_engine_that_has_nothing_yet_is_forgotten_too():
    feed = a_feed_at(9)
    reconnect(feed)
    end(feed, 2.0)
    end(feed, 2.0)
    assert (applied(feed), feed.doubt, feed.cursor.next_seq) == ([], None, 0)
    send(feed, 0, 1, life=2, now=3.0)
    assert feed.indexed.writers[RANK].identities() == [(2, 0), (2, 1)]


def test_a_replay_that_begins_later_is_relearned_and_degraded():
    feed = a_feed_at(9)
    reconnect(feed)
    assert reply(feed, 15, now=2.0) == StartReplay(0)
    assert applied(feed) == []
    reply(feed, 15, now=2.0)
    assert tick(feed, feed.wake_at) == StartReplay(0)
    reply(feed, 15, 16, now=2.5)
    end(feed, 2.5)
    assert (applied(feed), feed.lost, bool(feed.degraded), feed.doubt) == ([15, 16], 15, True, None)


def test_live_batches_that_connect_are_not_delayed_by_the_question():
    feed = a_feed_at(9)
    assert reconnect(feed) == StartReplay(9)
    send(feed, 10, 11, now=2.0)
    assert applied(feed)[-1] == 11
    reply(feed, 9, 10, 11, 12, now=2.0)
    end(feed, 2.0)
    assert applied(feed) == list(range(13))


def test_a_new_life_that_goes_on_at_the_very_next_number_is_noticed():
    feed = a_feed_at(9)
    reconnect(feed)
    send(feed, 10, life=2, now=2.0)
    assert reply(feed, 9, life=2, now=2.0) == StartReplay(0)
    reply(feed, *range(11), life=2, now=2.0)
    end(feed, 2.0)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(11)]


def test_a_gap_after_a_reconnection_is_replayed_from_before_the_break():
    feed = a_feed_at(9)
    feed.on_disconnected(1.0)
    feed.on_connected(1.0)
    send(feed, 10, life=2, now=1.0)  # of the new life, which is not detected so far
    assert send(feed, 20, life=2, now=1.0) == StopReplay()
    assert feed.tick(1.0) == StartReplay(9)
    assert reply(feed, 9, life=2, now=1.0) == StartReplay(0)
    reply(feed, *range(21), life=2, now=1.0)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(21)]


def test_a_gap_without_a_reconnection_is_compared_too():
    feed = a_feed_at(9)
    assert send(feed, 20, life=2, now=2.0) == StartReplay(9)
    assert reply(feed, 9, life=2, now=2.0) == StartReplay(0)
    reply(feed, *range(21), life=2, now=2.0)
    end(feed, 2.0)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(21)]


def test_a_dead_replay_endpoint_leaves_the_rank_in_doubt_and_is_retried():
    feed = a_feed_at(9)
    reconnect(feed)
    send(feed, 10, now=2.0)
    assert tick(feed, 1.0 + SETTLE_S + FRAME_S_MAX) == StopReplay()
    send(feed, 11, now=4.0)
    assert (applied(feed)[-1], feed.doubt.reason, feed.lost) == (11, DoubtReason.INTERRUPTED, 0)
    assert tick(feed, feed.wake_at) == StartReplay(9)
    reply(feed, *range(9, 12), now=50.0)
    end(feed, 50.0)
    assert (feed.doubt, applied(feed)) == (None, list(range(12)))


def test_without_a_replay_endpoint_a_batch_that_connects_ends_the_doubt():
    feed = a_feed_at(9, replay=False)
    assert reconnect(feed) is None
    assert feed.wake_at is None
    send(feed, 10, now=2.0)
    assert feed.doubt is None


def test_without_a_replay_endpoint_a_gap_after_a_reconnection_is_degraded():
    feed = a_feed_at(9, replay=False)
    reconnect(feed)
    send(feed, 12, now=2.0)
    assert (bool(feed.degraded), feed.lost) == (True, 2)


def test_a_connection_that_breaks_during_an_answer_makes_it_void():
    feed = a_feed_at(9)
    reconnect(feed)
    reply(feed, 9, 10, now=1.5)
    feed.on_disconnected(2.0)
    assert feed.on_connected(2.0) == StopReplay()
    assert reply(feed, 11, now=2.0) is None
    assert tick(feed, 2.0 + SETTLE_S) == StartReplay(10)
    reply(feed, 10, 11, now=3.0)
    end(feed, 3.0)
    assert (applied(feed), feed.doubt) == (list(range(12)), None)


def test_an_answer_while_the_connection_is_down_ends_no_doubt():
    feed = a_feed_at(9)
    reconnect(feed)
    feed.on_disconnected(2.0)
    reply(feed, 9, now=2.0)
    end(feed, 2.0)
    assert feed.doubt is not None


def test_an_answer_of_another_rank_ends_no_doubt_and_forgets_nothing():
    feed = a_feed_at(9)
    reconnect(feed)
    reply(feed, 9, 10, rank=RANK + 1, now=2.0)
    assert end(feed, 2.0) == StopReplay()
    assert (applied(feed), feed.doubt.reason) == (list(range(10)), DoubtReason.INTERRUPTED)


def test_hostile_numbers_in_an_answer_are_ignored():
    feed = a_feed_at(9)
    reconnect(feed)
    reply(feed, 2**63, 2**64 - 2, 0, now=2.0)
    reply(feed, 9, 10, now=2.0)
    end(feed, 2.0)
    assert (applied(feed), feed.doubt, feed.lost) == (list(range(11)), None, 0)


def test_clearing_ends_the_doubt():
    feed = a_feed_at(9)
    reconnect(feed)
    live(feed, 10, batch(["AllBlocksCleared"]), 2.0)
    assert feed.doubt is None


def test_a_restart_that_a_live_batch_shows_ends_the_doubt():
    feed = a_feed_at(9)
    feed.on_disconnected(1.0)
    feed.on_connected(1.0)
    send(feed, 0, life=2, now=1.0)
    assert (feed.doubt, feed.indexed.writers[RANK].identities()) == (None, [(2, 0)])


def test_a_fresh_rank_replays_the_batches_of_a_silent_engine():
    feed = a_feed()
    feed.on_connected(0.0)
    assert tick(feed, SETTLE_S) == StartReplay(0)
    reply(feed, 0, 1, 2)
    end(feed)
    assert (applied(feed), feed.gaps, feed.has_seen_nothing) == ([0, 1, 2], 0, False)
    send(feed, 3)
    assert applied(feed) == [0, 1, 2, 3]


def test_a_fresh_rank_of_an_empty_engine_is_in_no_doubt():
    feed = a_feed()
    feed.on_connected(0.0)
    tick(feed, SETTLE_S)
    assert end(feed) == StopReplay()
    assert (feed.doubt, feed.has_seen_nothing) == (None, True)


def test_a_fresh_rank_with_unknown_history_is_in_doubt_until_the_first_batch():
    feed = a_feed()
    feed.on_connected(0.0)
    tick(feed, SETTLE_S)
    tick(feed, SETTLE_S + FRAME_S_MAX)
    assert feed.doubt.reason is DoubtReason.SILENT
    send(feed, 0, now=10.0)
    assert feed.doubt is None


def test_a_resumed_rank_is_in_doubt_until_the_engine_confirms_its_last_batch():
    feed = a_resumed_feed(StreamPosition(5, 0, a_digest(4)))
    assert tick(feed, SETTLE_S) == StartReplay(4)
    reply(feed, 4, 5, 6)
    end(feed)
    assert (feed.doubt, applied(feed)) == (None, [5, 6])


@pytest.mark.parametrize("answer", [(4, 5, 6), ()])
def test_a_resumed_rank_of_another_life_is_learned_anew(answer):
    feed = a_resumed_feed(StreamPosition(5, 0, a_digest(4)))
    tick(feed, SETTLE_S)
    assert (reply(feed, *answer[:1], life=2) if answer else end(feed)) == StartReplay(0)
    reply(feed, *range(3), life=2)
    end(feed)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(3)]
    assert (feed.doubt, feed.restarts) == (None, 1)


def test_a_place_without_digest_from_an_older_file_is_accepted():
    feed = a_resumed_feed(StreamPosition(5))
    tick(feed, SETTLE_S)
    reply(feed, 4, 5)
    end(feed)
    assert (feed.doubt, applied(feed)) == (None, [5])


def test_without_a_replay_endpoint_a_resumed_rank_is_in_doubt_until_a_batch_connects():
    feed = a_resumed_feed(StreamPosition(5, 0, a_digest(4)), replay=False)
    assert feed.doubt is not None
    send(feed, 5)
    assert feed.doubt is None


def test_blocks_of_unknown_place_are_forgotten_when_the_engine_has_published_nothing():
    writer = RecordingWriter()
    writer.has_unpositioned_blocks = True
    feed = a_feed(writers={RANK: writer})
    feed.begin(0.0, nothing_older_comes=True)
    feed.on_connected(0.0)
    assert tick(feed, SETTLE_S) == StartReplay(0)
    end(feed)
    assert (writer.clears, feed.doubt) == (1, None)


def test_places_carry_the_digest_of_their_last_batch():
    feed = a_feed_at(9)
    assert feed.indexed.writers[RANK].position == StreamPosition(10, 0, a_digest(9))


def test_digests_distinguish_payloads_of_any_length():
    for size in (0, 5, 2 * DIGESTED_BYTES_MAX, 2 * DIGESTED_BYTES_MAX + 1, 10**7):
        payload = bytes(size)
        others = [payload + b"x", b"x" + payload[1:] + b"y"]
        assert len({payload_digest(each) for each in (payload, *others)}) == 3


def test_a_silent_stream_is_checked_at_intervals():
    feed = a_feed_at(9)
    assert tick(feed, IDLE_S - 1) is None
    send(feed, 10, now=IDLE_S - 1)
    assert tick(feed, IDLE_S) is None
    assert feed.wake_at == pytest.approx(2 * IDLE_S - 1)
    assert tick(feed, 2 * IDLE_S) == StartReplay(10)
    assert feed.doubt is None
    reply(feed, 10, 11, now=2 * IDLE_S)
    end(feed, 2 * IDLE_S)
    assert (applied(feed)[-1], feed.doubt) == (11, None)
    assert feed.wake_at == pytest.approx(3 * IDLE_S)


def test_silence_without_an_answer_is_a_doubt_that_a_batch_which_connects_ends():
    feed = a_feed_at(9)
    assert tick(feed, IDLE_S) == StartReplay(9)
    tick(feed, IDLE_S + FRAME_S_MAX)
    assert feed.doubt.reason is DoubtReason.SILENT
    send(feed, 10, now=IDLE_S + 10)
    assert feed.doubt is None


def test_an_interruption_after_an_unanswered_silence_is_not_ended_by_a_batch_that_connects():
    feed = a_feed_at(9)
    tick(feed, IDLE_S)
    tick(feed, IDLE_S + FRAME_S_MAX)
    reconnect(feed, 70.0)
    send(feed, 10, life=2, now=71.0)
    assert feed.doubt.reason is DoubtReason.INTERRUPTED


def test_an_empty_answer_behind_an_unbroken_connection_forgets_nothing():
    feed = a_feed_at(9)
    tick(feed, IDLE_S)
    end(feed, IDLE_S)
    assert (applied(feed), feed.doubt.reason) == (list(range(10)), DoubtReason.SILENT)
    assert tick(feed, IDLE_S + PROBE_S) == StartReplay(9)


def test_another_life_behind_an_unbroken_connection_is_noticed():
    feed = a_feed_at(9)
    tick(feed, IDLE_S)
    assert reply(feed, 9, life=2, now=IDLE_S) == StartReplay(0)
    reply(feed, *range(10), life=2, now=IDLE_S)
    end(feed, IDLE_S)
    assert (feed.doubt, feed.restarts) == (None, 1)


def test_batches_that_waited_for_a_replay_are_applied_in_steps(monkeypatch):
    monkeypatch.setattr(step_runner, "STEP_COST_MAX", 1000)
    feed = a_feed()
    send(feed, *range(1, 500))
    steps, action = 0, feed.receive_replayed(0, identified(1, 0), 0.0)
    while feed.is_busy:
        before = len(applied(feed))
        action = feed.continue_work(0.0)
        assert len(applied(feed)) - before <= 1000 / 64 + 1
        steps += 1
    assert (applied(feed), action) == (list(range(500)), StopReplay())
    assert steps > 20


def test_a_batch_of_many_events_is_applied_in_steps(monkeypatch):
    monkeypatch.setattr(step_runner, "STEP_COST_MAX", 1000)
    feed = a_feed()
    feed.receive(0, batch(*(["BlockRemoved", [n]] for n in range(300))), 0.0)
    assert feed.is_busy
    while feed.is_busy:
        before = len(feed.indexed.writers[RANK].calls)
        feed.continue_work(0.0)
        assert len(feed.indexed.writers[RANK].calls) - before <= 1000 / 32 + 1
    assert len(feed.indexed.writers[RANK].calls) == 300
    assert feed.cursor.next_seq == 1


def test_a_feed_that_is_closed_at_work_goes_on_at_the_event_where_it_was():
    feed = a_feed()
    feed.receive(0, batch(*(["BlockRemoved", [n]] for n in range(300))), 0.0)
    assert feed.is_busy
    feed.close()
    writer = feed.indexed.writers[RANK]
    assert writer.next_position == StreamPosition(0, len(writer.calls))


def test_replays_meanwhile_are_none_of_its_business():
    feed = a_feed_at(3)
    assert replayed(feed, 4, identified(1, 4), 0.0) is None
    assert applied(feed) == [0, 1, 2, 3]


def stored(*names):
    return [["BlockStored", [name], None, [name, 0, 0, 0], 4] for name in names]


def an_inflated_feed(*, replay=True):
    """Return a feed with an engine of two blocks that announces a single block three times."""
    feed = a_feed(replay=replay, total_blocks=2)
    if replay:
        feed.on_connected(0.0)
        tick(feed, SETTLE_S)
        end(feed)
    for seq in range(3):
        live(feed, seq, batch(*stored(7)), 1.0)
    return feed


def test_more_copies_than_blocks_prove_that_they_are_none():
    feed = an_inflated_feed()
    assert tick(feed, feed.wake_at) == StartReplay(0)
    assert (feed.doubt.reason, feed.inflations, feed.restarts) == (DoubtReason.INFLATED, 1, 0)
    for seq in range(3):
        replayed(feed, seq, batch(*stored(7)), 1.0)
    end(feed, 1.0)
    calls = feed.indexed.writers[RANK].calls
    assert [call[-1] for call in calls] == [False] * 3
    assert (feed.doubt, feed.degraded, feed.indexed.applier.copies.is_counted) == (
        None,
        None,
        False,
    )
    for seq in range(3, 9):
        live(feed, seq, batch(*stored(7)), 1.0)
    assert feed.inflations == 1


def test_without_a_replay_endpoint_an_inflated_rank_begins_anew_degraded():
    feed = an_inflated_feed(replay=False)
    tick(feed, feed.wake_at)
    assert (bool(feed.degraded), feed.inflations, feed.indexed.writers[RANK].calls) == (True, 1, [])
    live(feed, 3, batch(*stored(8)), 1.0)
    assert len(feed.indexed.writers[RANK].calls) == 1


@pytest.mark.parametrize("total", [None, 2])
def test_as_many_copies_as_blocks_prove_nothing(total):
    feed = a_feed(replay=False, total_blocks=total)
    for seq in range(12):
        live(feed, seq, batch(*stored(7), ["BlockRemoved", [7]]), 1.0)
    live(feed, 12, batch(*stored(7, 8)), 1.0)
    live(feed, 13, batch(["AllBlocksCleared"], *stored(7, 8)), 1.0)
    tick(feed, 100.0)
    assert feed.inflations == 0
    assert feed.wake_at is None
