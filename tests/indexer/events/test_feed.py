"""Tests of a feed's gaps, replays, losses and restarts."""

import pytest

from indexer.events.fault_notices import StreamFault
from indexer.events.gap_recovery import (
    ATTEMPTS_MAX,
    FRAME_S_MAX,
    PROBE_S,
    STALL_S_MAX,
    TOTAL_S_MAX,
    WAITING_BATCHES_MAX,
    WAITING_BYTES_MAX,
)
from indexer.events.replay_actions import StartReplay, StopReplay
from tests.indexer.events.feed_scenes import (
    a_feed,
    applied,
    end,
    live,
    replay_failed,
    replayed,
    reply,
    send,
    tick,
)
from tests.models.event_feed_model import RANK, RecordingWriter, batch, identified


def test_batches_in_sequence_are_applied_without_a_replay():
    feed = a_feed()
    assert send(feed, 0, 1, 2) is None
    assert applied(feed) == [0, 1, 2]
    assert (feed.indexed.batches, feed.gaps, feed.cursor.last_sequence) == (3, 0, 2)


def test_gap_is_replayed_and_live_batches_wait_for_it():
    feed = a_feed()
    assert send(feed, 0, 3) == StartReplay(0)
    assert send(feed, 4, 5) is None
    assert applied(feed) == [0]
    assert feed.is_catching_up
    assert reply(feed, 1) is None
    assert reply(feed, 2) == StopReplay()
    assert applied(feed) == [0, 1, 2, 3, 4, 5]
    assert (feed.gaps, feed.replayed, feed.lost, bool(feed.degraded)) == (1, 2, 0, False)


def test_late_joiner_replays_everything():
    feed = a_feed()
    assert send(feed, 3) == StartReplay(0)
    reply(feed, 0, 1, 2)
    assert applied(feed) == [0, 1, 2, 3]


def test_gap_without_replay_endpoint_is_lost_at_once():
    feed = a_feed(replay=False)
    assert send(feed, 0, 3, 4) is None
    assert applied(feed) == [0, 3, 4]
    assert (feed.gaps, feed.lost, bool(feed.degraded)) == (1, 2, True)
    told = feed.indexed.notices.take_pending()
    assert told == {StreamFault.LOST: "batches 1 to 2: there is no replay endpoint"}


def test_degraded_names_missing_batches_reason_and_first_loss():
    feed = a_feed(replay=False)
    send(feed, 0, 2, now=5.0)
    assert feed.degraded == ("lost batches 1 to 1: there is no replay endpoint", 5.0)
    send(feed, 3, 7, now=9.0)
    assert feed.degraded == ("lost batches 4 to 6: there is no replay endpoint", 5.0)


def test_degraded_names_a_replay_without_a_useful_answer():
    feed = a_feed()
    send(feed, 0, 3, now=1.0)
    tick(feed, feed.wake_at)
    why = "the replay endpoint could not provide them: no useful answer in time"
    assert feed.degraded is not None
    assert feed.degraded.reason == f"lost batches 1 to 2: {why}"


def test_degraded_names_batches_dropped_by_the_engine():
    feed = a_feed()
    send(feed, 0, 9, now=1.0)
    reply(feed, 5)
    tick(feed, feed.wake_at)
    reply(feed, 5)
    assert feed.degraded is not None
    assert feed.degraded.reason == "lost batches 1 to 4: the engine no longer has them"


def test_replay_running_past_the_gap_closes_gaps_of_the_waiting_batches_too():
    feed = a_feed()
    assert send(feed, 2, 4) == StartReplay(0)
    assert reply(feed, 0, 1, 2, 3) == StopReplay()
    assert applied(feed) == [0, 1, 2, 3, 4]
    assert (feed.gaps, feed.lost) == (1, 0)


def test_replayed_batches_that_are_already_applied_are_ignored():
    feed = a_feed()
    send(feed, 0, 1, 4)
    reply(feed, 0, 1, 2, 0, 3)
    assert applied(feed) == [0, 1, 2, 3, 4]


def test_replies_without_a_request_are_ignored():
    feed = a_feed()
    send(feed, 0)
    assert reply(feed, 1, 7) is None
    assert applied(feed) == [0]


def test_replay_of_another_rank_is_ignored_and_not_retried():
    feed = a_feed()
    send(feed, 2)
    assert reply(feed, 0, 1, rank=RANK + 1) is None
    assert end(feed) == StopReplay()
    assert not feed.is_catching_up
    assert applied(feed) == [2]
    assert feed.indexed.applier.drops.counts["replay_of_other_rank"] == 2
    assert "from this rank's replay endpoint" in feed.indexed.applier.drops.registration_fault
    assert (feed.lost, feed.cursor.last_sequence) == (2, 2)


def test_replay_naming_the_own_rank_is_taken():
    feed = a_feed()
    send(feed, 2)
    reply(feed, 0, 1, rank=RANK)
    assert applied(feed) == [0, 1, 2]


def test_replay_that_ends_early_is_retried_with_growing_pauses_and_then_lost():
    feed = a_feed()
    send(feed, 3)
    now, pauses = 0.0, []
    for _ in range(ATTEMPTS_MAX - 1):
        assert end(feed, now) == StopReplay()
        assert feed.is_catching_up
        pauses.append(feed.wake_at - now)
        assert tick(feed, now) is None
        now = feed.wake_at
        assert tick(feed, now) == StartReplay(0)
    assert pauses == sorted(pauses)
    assert end(feed, now) == StopReplay()
    assert not feed.is_catching_up
    assert applied(feed) == [3]
    assert (feed.lost, bool(feed.degraded)) == (3, True)


def test_empty_payload_of_any_number_ends_a_replay():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0)
    assert replayed(feed, 7, b"", 0.0) == StopReplay()
    assert applied(feed) == [0]
    assert feed.is_catching_up


def test_live_batch_that_the_replay_contains_too_is_applied_once():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0, 1, 2, 3)
    end(feed)
    send(feed, 4)
    assert applied(feed) == [0, 1, 2, 3, 4]


def test_retry_requests_the_missing_batches():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0)
    end(feed)
    assert tick(feed, feed.wake_at) == StartReplay(0)
    reply(feed, 1, 2)
    assert applied(feed) == [0, 1, 2, 3]
    assert feed.lost == 0


def test_hole_in_a_replay_is_requested_again():
    feed = a_feed()
    send(feed, 4)
    assert reply(feed, 0, 2) == StopReplay()
    assert reply(feed, 3) is None  # leftover of the aborted replay
    assert tick(feed, feed.wake_at) == StartReplay(0)
    reply(feed, 0, 1, 2, 3)
    assert applied(feed) == [0, 1, 2, 3, 4]
    assert feed.lost == 0


def test_hole_that_stays_is_lost_and_the_rest_is_applied():
    feed = a_feed()
    send(feed, 6)
    reply(feed, 2)
    assert tick(feed, feed.wake_at) == StartReplay(0)
    assert reply(feed, 2, 3, 4, 5) == StopReplay()
    assert applied(feed) == [2, 3, 4, 5, 6]
    assert (feed.lost, feed.replayed, bool(feed.degraded)) == (2, 4, True)


def test_replay_that_begins_after_the_gap_loses_the_gap_and_no_more():
    feed = a_feed()
    send(feed, 6, 8)
    reply(feed, 7)
    tick(feed, feed.wake_at)
    assert reply(feed, 7) == StopReplay()
    assert applied(feed) == [6, 7, 8]
    assert feed.lost == 6


def test_dead_replay_endpoint_delays_live_batches_by_the_frame_time_and_only_once():
    feed = a_feed()
    send(feed, 5, 6)
    assert feed.wake_at == FRAME_S_MAX
    assert tick(feed, FRAME_S_MAX) == StopReplay()
    assert applied(feed) == [5, 6]
    assert send(feed, 9, now=FRAME_S_MAX + 1) is None
    assert applied(feed) == [5, 6, 9]
    assert send(feed, 12, now=FRAME_S_MAX + PROBE_S) == StartReplay(9)


def test_replay_endpoint_that_cannot_be_opened_is_as_good_as_dead():
    feed = a_feed()
    send(feed, 5)
    assert replay_failed(feed, "no such host", 0.0) == StopReplay()
    assert applied(feed) == [5]
    assert feed.indexed.notices.take_pending()[StreamFault.REPLAY_FAILED] == "no such host"


def test_silence_after_progress_earns_another_attempt():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0, now=1.0)
    assert tick(feed, 1.0 + FRAME_S_MAX) == StartReplay(0)
    assert tick(feed, 1.0 + 2 * FRAME_S_MAX) == StopReplay()
    assert applied(feed) == [0, 3]


def test_replay_that_never_ends_and_never_helps_is_given_up():
    feed = a_feed()
    send(feed, 0, 2)
    now = 0.0
    while feed.is_catching_up:
        now += FRAME_S_MAX / 2
        reply(feed, 0, now=now)
        tick(feed, now)
    assert now <= STALL_S_MAX
    assert applied(feed) == [0, 2]


def test_replay_that_dribbles_is_given_up_after_the_total_time():
    feed = a_feed()
    send(feed, 10**6)
    now, seq = 0.0, 0
    while feed.is_catching_up:
        reply(feed, seq, now=now)
        now, seq = now + 1.0, seq + 1
        tick(feed, now)
    assert now == TOTAL_S_MAX
    assert applied(feed)[-1] == 10**6


def test_too_many_waiting_batches_end_the_wait():
    feed = a_feed()
    live(feed, 1, batch(), 0.0)
    for seq in range(2, WAITING_BATCHES_MAX):
        assert live(feed, seq, b"\x93\x00\x90\xc0", 0.0) is None
    assert live(feed, WAITING_BATCHES_MAX, batch(), 0.0) == StopReplay()
    assert feed.indexed.batches == WAITING_BATCHES_MAX


def test_too_many_waiting_bytes_end_the_wait():
    feed = a_feed()
    live(feed, 1, batch(), 0.0)
    assert live(feed, 2, bytes(WAITING_BYTES_MAX), 0.0) == StopReplay()
    assert (feed.indexed.decode_errors, feed.cursor.last_sequence) == (1, 2)


def test_restart_forgets_the_rank_and_begins_again():
    feed = a_feed()
    send(feed, *range(50))
    send(feed, 0, 1, life=2)
    assert feed.indexed.writers[RANK].identities() == [(2, 0), (2, 1)]
    assert (feed.restarts, feed.indexed.writers[RANK].clears, feed.lost) == (1, 1, 0)


def test_restart_seen_late_is_accepted_at_the_second_number_without_loss():
    feed = a_feed(replay=False)
    send(feed, *range(50))
    send(feed, 5, life=2)
    assert len(applied(feed)) == 50
    send(feed, 6, 7, life=2)
    assert feed.indexed.writers[RANK].identities() == [(2, 5), (2, 6), (2, 7)]
    assert (feed.restarts, feed.lost, bool(feed.degraded)) == (1, 5, True)


def test_restart_seen_late_is_replayed_from_0():
    feed = a_feed()
    send(feed, *range(50))
    assert send(feed, 2, 3, life=2) == StartReplay(0)
    reply(feed, 0, 1, life=2)
    assert feed.indexed.writers[RANK].identities() == [(2, seq) for seq in range(4)]
    assert not feed.degraded


def test_restart_during_a_replay_drops_waiting_batches():
    feed = a_feed()
    send(feed, 0, 10, 11)
    assert send(feed, 0, life=2) == StopReplay()
    assert feed.indexed.writers[RANK].identities() == [(2, 0)]
    assert not feed.is_catching_up


def test_restart_ends_degraded_and_the_rest_from_a_dead_endpoint():
    feed = a_feed()
    send(feed, 3)
    tick(feed, FRAME_S_MAX)
    assert feed.degraded
    send(feed, 0, life=2, now=FRAME_S_MAX)
    assert not feed.degraded
    assert send(feed, 2, life=2, now=FRAME_S_MAX) == StartReplay(0)


def test_restart_empties_the_sibling_ranks_the_stream_has_fed_and_no_other():
    writers = {rank: RecordingWriter() for rank in (RANK, 4, 5)}
    feed = a_feed(writers=writers)
    live(feed, 0, identified(1, 0, rank=4), 0.0)
    send(feed, 0, life=2)
    assert [writers[rank].clears for rank in (RANK, 4, 5)] == [1, 1, 0]


def test_one_late_copy_changes_nothing():
    feed = a_feed()
    send(feed, 0, 1, 2, 1, 3)
    assert applied(feed) == [0, 1, 2, 3]
    assert (feed.restarts, feed.stale) == (0, 1)


@pytest.mark.parametrize("absurd", [2**64 - 1, 2**64 - 2, 2**63])
def test_batch_with_an_absurd_number_is_applied_and_does_not_poison(absurd):
    feed = a_feed()
    send(feed, 0, 1, absurd, 2, 3)
    assert [seq % 2**48 for seq in (0, 1, absurd, 2, 3)] == applied(feed)
    assert (feed.cursor.last_sequence, feed.lost, feed.restarts) == (3, 0, 0)


def test_batch_with_an_absurd_number_waits_its_turn_during_a_replay():
    feed = a_feed()
    send(feed, 1, 2**63, 2)
    reply(feed, 0)
    assert applied(feed) == [0, 1, 2**63 % 2**48, 2]


def test_absurd_numbers_in_a_replay_do_not_move_the_cursor_past_the_gap():
    feed = a_feed()
    send(feed, 2)
    reply(feed, 2**64 - 2)
    tick(feed, feed.wake_at)
    reply(feed, 2**64 - 1, 2**64 - 2)
    assert (feed.cursor.last_sequence, feed.lost) == (2, 2)
