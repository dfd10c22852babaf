"""Tests of feeds as state machines, under any network and with honest engines."""

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from indexer.events.replay_actions import StartReplay, StopReplay
from indexer.events.replay_schedule import SETTLE_S
from tests.builders.hypothesis_profiles import explored
from tests.indexer.events.feed_scenes import a_feed, finish
from tests.models.event_feed_model import RANK, Publisher, RecordingWriter, batch, identified


class FeedUnderAnyNetwork(RuleBasedStateMachine):
    """Feed under losses, copies, swaps, broken replays, reconnections and restarts.

    Rings may be short, engines silent, and restarts begin at any number; numbers may be hostile.
    The twin is arithmetic: since the last clear, numbers were applied in rising order, and every
    number below the cursor was applied or lost.
    """

    @initialize(ring_max=st.sampled_from([0, 2, 8, 1000]), can_replay=st.booleans())
    def begin(self, ring_max, can_replay):
        self.set_up(ring_max, can_replay)

    def set_up(self, ring_max, can_replay):
        self.writer = RecordingWriter()
        self.feed = a_feed(replay=can_replay, writers={RANK: self.writer})
        self.feed.begin(0.0, nothing_older_comes=True)
        self.publisher = Publisher(ring_max)
        self.wire = deque()
        self.replay = None
        self.now = 0.0
        self.last = None
        self.lost_before = 0

    def act(self, action):
        restarts, lost = self.feed.restarts, self.feed.lost
        action = finish(self.feed, action, self.now)
        if self.feed.restarts != restarts:
            self.lost_before = lost
        if isinstance(action, StartReplay):
            self.replay = self.publisher.replay(action.start)
        elif isinstance(action, StopReplay):
            self.replay = None

    def do(self, verb, *given):
        restarts, lost = self.feed.restarts, self.feed.lost
        action = verb(*given, self.now)
        if self.feed.restarts != restarts:
            self.lost_before = lost
        self.act(action)

    def receive(self, seq, payload):
        self.do(self.feed.receive, seq, payload)

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

    @rule(published=st.integers(0, 12), deaf=st.booleans())
    def restart(self, published, deaf):
        """deaf: whether the connection stays open, as behind a proxy"""
        self.begin_a_life(published, deaf=deaf)

    def begin_a_life(self, published, *, deaf):
        self.publisher.restart()
        self.wire.clear()
        self.replay = self.last = None
        if not deaf:
            self.feed.on_disconnected(self.now)
        for _ in range(published):
            self.publisher.publish()
        if not deaf:
            self.do(self.feed.on_connected)

    @rule(published=st.integers(0, 4))
    def reconnect(self, published):
        self.wire.clear()
        self.feed.on_disconnected(self.now)
        for _ in range(published):
            self.publisher.publish()
        self.do(self.feed.on_connected)

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
                self.do(self.feed.receive_replayed, seq, payload)

    @rule(seq=st.integers(0, 2**64 - 1) | st.integers(0, 12), rank=st.sampled_from([None, 77]))
    def answer_nonsense(self, seq, rank):
        """Answer with frames of another engine, which are accepted only where plausible."""
        if rank is not None:
            self.do(self.feed.receive_replayed, seq, identified(0, seq, rank))
        elif seq >= 2**41:
            self.do(self.feed.receive_replayed, seq, b"\xc1")

    @rule(seq=st.sampled_from([2**64 - 1, 2**64 - 2, 2**63, 2**63 + 1]))
    def hostile(self, seq):
        self.receive(seq, batch())

    @rule(s=st.sampled_from([0.01, 0.3, 2.0, 10.0, 40.0, 100.0]))
    def wait(self, s):
        self.pass_time(s)

    def pass_time(self, s):
        self.now += s
        self.do(self.feed.tick)

    @invariant()
    def books_are_kept(self):
        self.feed.check_invariants()
        seqs = [seq for _, seq in self.writer.identities()]
        assert seqs == sorted(set(seqs))
        lost = self.feed.lost - self.lost_before
        if self.feed.cursor.next_seq < 2**40:  # no hostile number was accepted
            assert len(seqs) + lost == self.feed.cursor.next_seq
            assert bool(self.feed.degraded) == (lost > 0)

    @invariant()
    def places_match_applied_batches(self):
        place = self.writer.position
        if place is not None and place.next_seq == self.feed.cursor.next_seq and place.digest:
            assert self.feed.indexed.last_batch == (place.next_seq - 1, place.digest)

    def teardown(self):
        """Check that three batches bring the feed up to date once the network is whole again.

        After a replay ahead of the live batches, batches of a new life look like replayed batches.
        This ends with the number of the last replayed batch.
        """
        self.wire.clear()
        cursor, next_seq = self.feed.cursor, self.publisher.next_seq
        is_ahead = cursor._live_next <= next_seq < cursor.next_seq
        for _ in range(max(3, cursor.next_seq + 1 - next_seq) if is_ahead else 3):
            self.receive(*self.publisher.publish())
            self.settle()
        assert self.feed.cursor.next_seq == self.publisher.next_seq
        assert self.writer.identities()[-1] == (self.publisher.life, self.publisher.next_seq - 1)

    def settle(self):
        """Answer all requests of the feed at once."""
        while self.feed.is_requesting:
            if self.replay:
                self.do(self.feed.receive_replayed, *self.replay.popleft())
            else:
                self.pass_time(max(0.0, self.feed.wake_at - self.now))


TestFeedUnderAnyNetwork = explored(FeedUnderAnyNetwork)


class FeedOfAnHonestEngine(FeedUnderAnyNetwork):
    """Feed of engines that restart at any number, on a wire that loses and disconnects.

    The replay endpoint is alive and honest, and its ring is long. After an answered question
    nothing is ever wrong, with or without a live batch.
    """

    repeat = swap = answer_nonsense = hostile = wait = None

    @initialize()
    def begin(self):
        self.set_up(ring_max=10**6, can_replay=True)
        self.do(self.feed.on_connected)

    @rule(published=st.integers(0, 40))
    def restart(self, published):
        self.begin_a_life(published, deaf=False)

    @precondition(lambda self: self.replay)
    @rule(n=st.integers(1, 20))
    def answer(self, n):
        self.hand_over(n, lost=False)

    @precondition(lambda self: self.feed.is_requesting and not self.replay)
    @rule()
    def back_off(self):
        self.pass_time(max(0.0, self.feed.wake_at - self.now))

    @rule()
    def let_it_ask(self):
        """Let the feed send its request after all messages on the wire have arrived."""
        self.deliver_all()
        self.hand_over(10**6, lost=False)
        self.pass_time(SETTLE_S)

    @rule()
    def rest(self):
        """Stay silent for a while, so that all questions are sent and answered."""
        self.deliver_all()
        self.settle()
        self.pass_time(70.0)
        self.settle()
        self.check_state()

    def deliver_all(self):
        while self.wire:
            self.receive(*self.wire.popleft())

    def check_state(self):
        life, next_seq = self.publisher.life, self.publisher.next_seq
        assert self.writer.identities() == [(life, seq) for seq in range(next_seq)]
        assert (self.feed.degraded, self.feed.doubt) == (None, None)

    @invariant()
    def wrong_state_is_marked(self):
        lives = {life for life, _ in self.writer.identities()}
        if lives - {self.publisher.life}:
            assert self.feed.doubt is not None

    def teardown(self):
        self.rest()
        super().teardown()
        self.check_state()


TestFeedOfAnHonestEngine = explored(FeedOfAnHonestEngine)


class FeedWithADeadReplayEndpoint(FeedOfAnHonestEngine):
    """Feed of the same engines without answers: a state that may be wrong is never called right."""

    answer = back_off = None

    def act(self, action):
        super().act(action)
        self.replay = None

    def rest(self):
        pass

    @rule(s=st.sampled_from([0.1, 3.0, 50.0, 100.0]))
    def wait(self, s):
        self.deliver_all()
        self.pass_time(s)

    @invariant()
    def wrong_state_is_marked(self):
        if self.wire or self.feed.is_requesting or self.feed.has_seen_nothing:
            return
        life, next_seq = self.publisher.life, self.publisher.next_seq
        if self.writer.identities() != [(life, seq) for seq in range(next_seq)]:
            heard = self.feed.last_event_at
            silent = self.now - heard >= 60.0 if heard is not None else True
            lost_unseen = not silent and self.feed.cursor.next_seq < next_seq
            assert self.feed.doubt is not None or self.feed.degraded or lost_unseen

    def teardown(self):
        pass


TestFeedWithADeadReplayEndpoint = explored(FeedWithADeadReplayEndpoint)
