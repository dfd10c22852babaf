from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from indexer.events.feed import StartReplay, StopReplay
from tests.indexer.events.feed_scenes import a_feed
from tests.models.event_feed_model import RANK, Publisher, RecordingWriter, batch, identified


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
