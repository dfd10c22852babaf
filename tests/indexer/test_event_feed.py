from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from indexer.catch_up import (
    ATTEMPTS_MAX,
    FRAME_S_MAX,
    PROBE_S,
    STALL_S_MAX,
    TOTAL_S_MAX,
    WAITING_BATCHES_MAX,
    WAITING_BYTES_MAX,
)
from indexer.event_feed import NOTICE_INTERVAL_S, EventFeed, Fault, StartReplay, StopReplay
from indexer.kv_source import KvSource
from tests.models.event_feed_model import RANK, Publisher, RecordingWriter, batch, identified

REPLAY = "tcp://127.0.0.1:5558"


def a_feed(*, replay=True, writers=None, **source):
    writers = {RANK: RecordingWriter()} if writers is None else writers
    given = {"block_size": 4, "is_eagle": False, "counted": True, **source}
    return EventFeed(
        KvSource(
            worker_id=1,
            dp_rank=RANK,
            endpoint="tcp://127.0.0.1:5557",
            replay_endpoint=REPLAY if replay else None,
            writers=writers,
            **given,
        )
    )


def send(feed, *seqs, now=0.0, life=1):
    """Live batches; returns the last action that is one."""
    last = None
    for seq in seqs:
        action = feed.receive(seq, identified(life, seq), now)
        last = action or last
        feed.check_invariants()
    return last


def reply(feed, *seqs, now=0.0, life=1, rank=None):
    last = None
    for seq in seqs:
        action = feed.receive_replayed(seq, identified(life, seq, rank), now)
        last = action or last
        feed.check_invariants()
    return last


def end(feed, now=0.0):
    return feed.receive_replayed(2**64 - 1, b"", now)


def applied(feed, rank=RANK):
    return [seq for _, seq in feed.writers[rank].identities()]


# --- gaps and replays


def test_batches_in_sequence_are_applied_and_nothing_is_asked_for():
    feed = a_feed()
    assert send(feed, 0, 1, 2) is None
    assert applied(feed) == [0, 1, 2]
    assert (feed.batches, feed.gaps, feed.cursor.last_sequence) == (3, 0, 2)


def test_gap_is_replayed_and_live_batches_wait_for_it():
    feed = a_feed()
    assert send(feed, 0, 3) == StartReplay(1)
    assert send(feed, 4, 5) is None
    assert applied(feed) == [0]
    assert feed.catching_up
    assert reply(feed, 1) is None
    assert reply(feed, 2) == StopReplay()
    assert applied(feed) == [0, 1, 2, 3, 4, 5]
    assert (feed.gaps, feed.replayed, feed.lost, feed.degraded) == (1, 2, 0, False)


def test_late_joiner_asks_for_everything():
    feed = a_feed()
    assert send(feed, 3) == StartReplay(0)
    reply(feed, 0, 1, 2)
    assert applied(feed) == [0, 1, 2, 3]


def test_gap_without_replay_endpoint_is_lost_at_once():
    feed = a_feed(replay=False)
    assert send(feed, 0, 3, 4) is None
    assert applied(feed) == [0, 3, 4]
    assert (feed.gaps, feed.lost, feed.degraded) == (1, 2, True)
    assert feed.take_notices() == {Fault.LOST: "batches 1 to 2"}


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


def test_replay_of_another_rank_is_ignored_and_not_asked_for_again():
    feed = a_feed()
    send(feed, 2)
    assert reply(feed, 0, 1, rank=RANK + 1) is None
    assert end(feed) == StopReplay()
    assert not feed.catching_up
    assert applied(feed) == [2]
    assert feed.applier.dropped["replay_of_other_rank"] == 2
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
        assert feed.catching_up
        pauses.append(feed.wake_at - now)
        assert feed.tick(now) is None
        now = feed.wake_at
        assert feed.tick(now) == StartReplay(0)
    assert pauses == sorted(pauses)
    assert end(feed, now) == StopReplay()
    assert not feed.catching_up
    assert applied(feed) == [3]
    assert (feed.lost, feed.degraded) == (3, True)


def test_empty_payload_ends_a_replay_whatever_its_number():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0)
    assert feed.receive_replayed(7, b"", 0.0) == StopReplay()
    assert applied(feed) == [0]
    assert feed.catching_up


def test_live_batch_that_the_replay_contains_too_is_applied_once():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0, 1, 2, 3)
    end(feed)
    send(feed, 4)
    assert applied(feed) == [0, 1, 2, 3, 4]


def test_retry_asks_for_what_is_still_missing():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0)
    end(feed)
    assert feed.tick(feed.wake_at) == StartReplay(1)
    reply(feed, 1, 2)
    assert applied(feed) == [0, 1, 2, 3]
    assert feed.lost == 0


def test_hole_in_a_replay_is_asked_for_once_more():
    feed = a_feed()
    send(feed, 4)
    assert reply(feed, 0, 2) == StopReplay()
    assert reply(feed, 3) is None  # a left-over of the aborted replay
    assert feed.tick(feed.wake_at) == StartReplay(1)
    reply(feed, 1, 2, 3)
    assert applied(feed) == [0, 1, 2, 3, 4]
    assert feed.lost == 0


def test_hole_that_stays_is_lost_and_the_rest_is_applied():
    feed = a_feed()
    send(feed, 6)
    reply(feed, 2)
    assert feed.tick(feed.wake_at) == StartReplay(0)
    assert reply(feed, 2, 3, 4, 5) == StopReplay()
    assert applied(feed) == [2, 3, 4, 5, 6]
    assert (feed.lost, feed.replayed, feed.degraded) == (2, 4, True)


def test_replay_that_begins_after_the_gap_loses_the_gap_and_no_more():
    feed = a_feed()
    send(feed, 6, 8)
    reply(feed, 7)
    feed.tick(feed.wake_at)
    assert reply(feed, 7) == StopReplay()
    assert applied(feed) == [6, 7, 8]
    assert feed.lost == 6


def test_dead_replay_endpoint_delays_live_batches_by_the_frame_time_and_only_once():
    feed = a_feed()
    send(feed, 5, 6)
    assert feed.wake_at == FRAME_S_MAX
    assert feed.tick(FRAME_S_MAX) == StopReplay()
    assert applied(feed) == [5, 6]
    assert send(feed, 9, now=FRAME_S_MAX + 1) is None
    assert applied(feed) == [5, 6, 9]
    assert send(feed, 12, now=FRAME_S_MAX + PROBE_S) == StartReplay(10)


def test_replay_endpoint_that_cannot_be_opened_is_as_good_as_dead():
    feed = a_feed()
    send(feed, 5)
    assert feed.replay_failed("no such host", 0.0) == StopReplay()
    assert applied(feed) == [5]
    assert feed.take_notices()[Fault.REPLAY_FAILED] == "no such host"


def test_silence_after_progress_earns_another_attempt():
    feed = a_feed()
    send(feed, 3)
    reply(feed, 0, now=1.0)
    assert feed.tick(1.0 + FRAME_S_MAX) == StartReplay(1)
    assert feed.tick(1.0 + 2 * FRAME_S_MAX) == StopReplay()
    assert applied(feed) == [0, 3]


def test_replay_that_never_ends_and_never_helps_is_given_up():
    feed = a_feed()
    send(feed, 0, 2)
    now = 0.0
    while feed.catching_up:
        now += FRAME_S_MAX / 2
        reply(feed, 0, now=now)
        feed.tick(now)
    assert now <= STALL_S_MAX
    assert applied(feed) == [0, 2]


def test_replay_that_dribbles_is_given_up_after_the_total_time():
    feed = a_feed()
    send(feed, 10**6)
    now, seq = 0.0, 0
    while feed.catching_up:
        reply(feed, seq, now=now)
        now, seq = now + 1.0, seq + 1
        feed.tick(now)
    assert now == TOTAL_S_MAX
    assert applied(feed)[-1] == 10**6


def test_too_many_waiting_batches_end_the_wait():
    feed = a_feed()
    feed.receive(1, batch(), 0.0)
    for seq in range(2, WAITING_BATCHES_MAX):
        assert feed.receive(seq, b"\x93\x00\x90\xc0", 0.0) is None
    assert feed.receive(WAITING_BATCHES_MAX, batch(), 0.0) == StopReplay()
    assert feed.batches == WAITING_BATCHES_MAX


def test_too_many_waiting_bytes_end_the_wait():
    feed = a_feed()
    feed.receive(1, batch(), 0.0)
    assert feed.receive(2, bytes(WAITING_BYTES_MAX), 0.0) == StopReplay()
    assert (feed.decode_errors, feed.cursor.last_sequence) == (1, 2)


# --- restarts and hostile numbers


def test_restart_forgets_the_rank_and_begins_again():
    feed = a_feed()
    send(feed, *range(50))
    send(feed, 0, 1, life=2)
    assert feed.writers[RANK].identities() == [(2, 0), (2, 1)]
    assert (feed.restarts, feed.writers[RANK].clears, feed.lost) == (1, 1, 0)


def test_restart_seen_late_is_believed_at_the_second_number_and_loses_no_batch_it_saw():
    feed = a_feed(replay=False)
    send(feed, *range(50))
    send(feed, 5, life=2)
    assert len(applied(feed)) == 50
    send(feed, 6, 7, life=2)
    assert feed.writers[RANK].identities() == [(2, 5), (2, 6), (2, 7)]
    assert (feed.restarts, feed.lost, feed.degraded) == (1, 5, True)


def test_restart_seen_late_is_replayed_from_0():
    feed = a_feed()
    send(feed, *range(50))
    assert send(feed, 2, 3, life=2) == StartReplay(0)
    reply(feed, 0, 1, life=2)
    assert feed.writers[RANK].identities() == [(2, seq) for seq in range(4)]
    assert not feed.degraded


def test_restart_while_a_replay_runs_drops_what_waits():
    feed = a_feed()
    send(feed, 0, 10, 11)
    assert send(feed, 0, life=2) == StopReplay()
    assert feed.writers[RANK].identities() == [(2, 0)]
    assert not feed.catching_up


def test_restart_ends_degraded_and_the_rest_from_a_dead_endpoint():
    feed = a_feed()
    send(feed, 3)
    feed.tick(FRAME_S_MAX)
    assert feed.degraded
    send(feed, 0, life=2, now=FRAME_S_MAX)
    assert not feed.degraded
    assert send(feed, 2, life=2, now=FRAME_S_MAX) == StartReplay(1)


def test_restart_empties_the_sibling_ranks_the_stream_has_fed_and_no_other():
    writers = {rank: RecordingWriter() for rank in (RANK, 4, 5)}
    feed = a_feed(writers=writers)
    feed.receive(0, identified(1, 0, rank=4), 0.0)
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
    feed.tick(feed.wake_at)
    reply(feed, 2**64 - 1, 2**64 - 2)
    assert (feed.cursor.last_sequence, feed.lost) == (2, 2)


# --- what a batch does


def stored(hashes, parent, tokens, block_size=4, *rest):
    return ["BlockStored", hashes, parent, tokens, block_size, None, *rest]


def apply_to(feed, *events, rank=None):
    seq = feed.cursor.next_seq
    feed.receive(seq, batch(*events, rank=rank), 0.0)
    return feed.writers[RANK].calls


def test_stored_blocks_are_hashed_and_stored_under_their_parent():
    feed = a_feed()
    calls = apply_to(feed, stored([11, 12, 13], 10, list(range(1, 13))))
    hashes = [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert calls == [("store", 0, 10, hashes, [11, 12, 13], True)]
    assert feed.applier.stored_blocks == 3


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
    assert feed.applier.dropped["block_size"] == 1


def test_event_without_tokens_names_blocks_that_are_known():
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
    assert feed.applier.dropped["medium"] == 1


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
    assert (feed.degraded, feed.lost) == (False, 5)


def test_batch_of_a_sibling_rank_goes_to_it_and_of_a_stranger_is_dropped():
    writers = {rank: RecordingWriter() for rank in (RANK, 4)}
    feed = a_feed(writers=writers)
    feed.receive(0, identified(1, 0, rank=4), 0.0)
    feed.receive(1, identified(1, 1, rank=9), 0.0)
    assert (applied(feed), applied(feed, 4)) == ([], [0])
    assert feed.applier.dropped["rank"] == 1
    assert feed.cursor.last_sequence == 1


def test_unreadable_batch_is_counted_and_the_next_one_is_no_gap():
    feed = a_feed()
    feed.receive(0, b"\xc1", 0.0)
    send(feed, 1)
    assert (feed.decode_errors, feed.gaps, applied(feed)) == (1, 0, [1])
    assert feed.last_error
    assert Fault.UNREADABLE in feed.take_notices()


def test_bad_event_is_counted_and_its_neighbours_are_applied():
    feed = a_feed()
    feed.receive(0, batch(["BlockRemoved", "x"], ["BlockRemoved", [7]], ["Novelty"]), 0.0)
    assert feed.decode_errors == 2
    assert applied(feed) == [7]


GROUP_CASES = [
    # group_idx and kind of: a store before (None = none), the event; is the event kept?
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
def test_attention_group_decides_whether_an_event_counts(before, event, kept):
    feed = a_feed()
    tail = ["GPU", None, None]
    if before is not None:
        apply_to(feed, stored([1], None, [1, 2, 3, 4], 4, *tail, *before))
        feed.writers[RANK].calls.clear()
    calls = apply_to(
        feed,
        stored([2], None, [1, 2, 3, 4], 4, *tail, *event),
        ["BlockRemoved", [2], "GPU", *event],
    )
    assert len(calls) == (2 if kept else 0)


def test_attention_groups_are_learned_per_rank():
    feed = a_feed(writers={rank: RecordingWriter() for rank in (RANK, 4)})
    apply_to(
        feed, stored([1], None, [1, 2, 3, 4], 4, "GPU", None, None, 0, "sliding_window"), rank=4
    )
    assert len(apply_to(feed, ["BlockRemoved", [2], "GPU", 0])) == 1


def test_notices_come_once_per_episode():
    feed = a_feed(replay=False)
    send(feed, 1, 3, 5)
    assert list(feed.take_notices()) == [Fault.LOST]
    send(feed, 7, now=NOTICE_INTERVAL_S - 1)
    assert feed.take_notices() == {}
    send(feed, 9, now=NOTICE_INTERVAL_S)
    assert list(feed.take_notices()) == [Fault.LOST]


# --- anything may happen


class FeedUnderAnyNetwork(RuleBasedStateMachine):
    """Losses, copies, swaps, short rings, broken replays, restarts and hostile numbers.

    The twin is arithmetic: since the last clear, numbers were applied in rising order, and every
    number below the cursor was applied or lost.
    """

    @initialize(ring_max=st.sampled_from([0, 2, 8, 1000]), can_replay=st.booleans())
    def begin(self, ring_max, can_replay):
        self.set_up(ring_max, can_replay)

    def set_up(self, ring_max, can_replay):
        self.writer = RecordingWriter()
        self.feed = a_feed(replay=can_replay, writers={RANK: self.writer})
        self.publisher = Publisher(ring_max)
        self.wire = deque()
        self.replay = None
        self.now = 0.0
        self.last = None
        self.lost_before = 0

    def act(self, action):
        if isinstance(action, StartReplay):
            self.replay = self.publisher.replay(action.start)
        elif isinstance(action, StopReplay):
            self.replay = None

    def receive(self, seq, payload):
        restarts, lost = self.feed.restarts, self.feed.lost
        self.act(self.feed.receive(seq, payload, self.now))
        if self.feed.restarts != restarts:
            self.lost_before = lost

    @rule(n=st.integers(1, 4))
    def publish(self, n):
        self.wire.extend(self.publisher.publish() for _ in range(n))

    @precondition(lambda self: self.wire)
    @rule(n=st.integers(1, 6))
    def deliver(self, n):
        for _ in range(min(n, len(self.wire))):
            self.last = self.wire.popleft()
            self.receive(*self.last)

    @precondition(lambda self: self.wire)
    @rule(n=st.integers(1, 4))
    def lose(self, n):
        for _ in range(min(n, len(self.wire))):
            self.wire.popleft()

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self):
        self.receive(*self.last)

    @precondition(lambda self: len(self.wire) > 1)
    @rule()
    def swap(self):
        self.wire[0], self.wire[1] = self.wire[1], self.wire[0]

    @rule()
    def restart(self):
        self.publisher.restart()
        self.wire.clear()
        self.replay = None
        self.last = None

    @precondition(lambda self: self.replay)
    @rule(n=st.integers(1, 20), lost=st.booleans())
    def answer(self, n, lost):
        self.hand_over(n, lost)

    def hand_over(self, n, lost):
        for _ in range(n):
            if not self.replay:
                return
            seq, payload = self.replay.popleft()
            if not lost or not payload:
                self.act(self.feed.receive_replayed(seq, payload, self.now))

    @rule(seq=st.integers(0, 2**64 - 1) | st.integers(0, 12), rank=st.sampled_from([None, 77]))
    def answer_nonsense(self, seq, rank):
        """Frames of another engine: taken only where they could be the right ones."""
        if rank is not None:
            self.act(self.feed.receive_replayed(seq, identified(0, seq, rank), self.now))
        elif seq >= 2**41:
            self.act(self.feed.receive_replayed(seq, b"\xc1", self.now))

    @rule(seq=st.sampled_from([2**64 - 1, 2**64 - 2, 2**63, 2**63 + 1]))
    def hostile(self, seq):
        self.receive(seq, batch())

    @rule(s=st.sampled_from([0.01, 0.3, 2.0, 10.0, 40.0]))
    def wait(self, s):
        self.pass_time(s)

    def pass_time(self, s):
        self.now += s
        self.act(self.feed.tick(self.now))

    @invariant()
    def books_are_kept(self):
        self.feed.check_invariants()
        seqs = [seq for _, seq in self.writer.identities()]
        assert seqs == sorted(set(seqs))
        lost = self.feed.lost - self.lost_before
        if self.feed.cursor.next_seq < 2**40:  # no hostile number was believed
            assert len(seqs) + lost == self.feed.cursor.next_seq

    @invariant()
    def a_new_life_never_mixes_with_an_old_one(self):
        lives = [life for life, _ in self.writer.identities()]
        assert lives == sorted(lives)

    def teardown(self):
        """Once the network is whole again, three batches bring the feed up to date."""
        self.wire.clear()
        for _ in range(3):
            self.receive(*self.publisher.publish())
            self.settle()
        assert self.feed.cursor.next_seq == self.publisher.next_seq
        assert self.writer.identities()[-1] == (self.publisher.life, self.publisher.next_seq - 1)

    def settle(self):
        while self.feed.catching_up:
            if self.replay:
                self.act(self.feed.receive_replayed(*self.replay.popleft(), self.now))
            else:
                self.pass_time(self.feed.wake_at - self.now)


TestFeedUnderAnyNetwork = FeedUnderAnyNetwork.TestCase


class FeedThatOnlyMissesLiveBatches(FeedUnderAnyNetwork):
    """The wire loses, the ring is long, the replay is honest and answers in time."""

    repeat = swap = restart = answer_nonsense = hostile = wait = None

    @initialize()
    def begin(self):
        self.set_up(ring_max=10**6, can_replay=True)

    @precondition(lambda self: self.replay)
    @rule(n=st.integers(1, 20))
    def answer(self, n):
        self.hand_over(n, lost=False)

    @precondition(lambda self: self.feed.catching_up and not self.replay)
    @rule()
    def back_off(self):
        self.pass_time(self.feed.wake_at - self.now)

    def teardown(self):
        super().teardown()
        assert self.writer.identities() == [(1, seq) for seq in range(self.publisher.next_seq)]
        assert (self.feed.lost, self.feed.degraded) == (0, False)


TestFeedThatOnlyMissesLiveBatches = FeedThatOnlyMissesLiveBatches.TestCase
