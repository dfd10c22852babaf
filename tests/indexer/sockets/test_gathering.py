"""Tests of the pause of a KV-event thread, by which one turn serves several messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.sockets import ingest
from indexer.sockets.batching_delay import BATCH_TARGET, DELAY_S_MAX, BatchingDelay
from indexer.sockets.read_ahead import QUEUED_MESSAGES_MAX
from tests.builders.hypothesis_profiles import explores


def after(*turns):
    """Return the pause in s after turns.

    turns: tuples of (seconds since the previous turn, messages, messages of one socket)
    """
    gathering, now = BatchingDelay(), 0.0
    for since, messages, of_one in turns:
        now += since
        gathering.note_turn(now, messages, of_one)
    return gathering.pause_s


def test_single_messages_are_not_delayed():
    assert after() == 0.0
    assert after((0.0, 1, 1)) == 0.0
    assert after((0.0, 1, 1), (DELAY_S_MAX, 1, 1)) == 0.0
    assert after((0.0, 9, 9), (1.0, 9, 9)) == 0.0
    assert after((0.0, 9, 9), (DELAY_S_MAX / 100, 0, 0)) == 0.0


@pytest.mark.parametrize(("messages", "of_one"), [(1, 1), (4, 1), (4, 4)])
def test_messages_in_quick_succession_are_delayed(messages, of_one):
    assert after((0.0, 1, 1), (DELAY_S_MAX / 2, messages, of_one)) == DELAY_S_MAX


@given(since=st.floats(1e-6, DELAY_S_MAX), of_one=st.integers(1, 1000), others=st.integers(0, 1000))
@explores(200)
def test_no_rest_fills_a_queue_or_is_long(since, of_one, others):
    """The messages of a pause arrive at the rate of the last messages."""
    rest_s = after((0.0, 1, 1), (since, of_one + others, of_one))
    assert 0.0 <= rest_s <= DELAY_S_MAX
    assert rest_s * of_one / since < BATCH_TARGET + 1 < QUEUED_MESSAGES_MAX


class Stub:
    """Readiness of a socket that has messages."""

    def __init__(self, room):
        self._room = room
        self.has_pending = False

    def wait_for_drains(self, timeout_s):
        return [self.drain]

    def drain(self):
        self._room.count_messages(self.messages)
        return self.is_early

    def call_again(self, drain):
        self.has_pending = True


@pytest.fixture
def thread(monkeypatch):
    """Return a thread that is not started, with pauses that are counted and take no time."""
    made = ingest._IngestThread(0, held=False)
    made.rests = 0
    made.readiness.close()
    made.readiness = Stub(made.budget)

    def rest(_):
        made.rests += 1

    monkeypatch.setattr(BatchingDelay, "pause", rest)
    # The pause is due however long the test waits.
    monkeypatch.setattr("indexer.sockets.batching_delay.DELAY_S_MAX", 3600.0)
    yield made
    made._wake_in.close()
    made._wake_out.close()


def turns(thread, count, messages, *, is_early=False):
    """Return the number of pauses in `count` turns."""
    thread.readiness.messages, thread.readiness.is_early = messages, is_early
    before = thread.rests
    for _ in range(count):
        thread._run_turn()
    return thread.rests - before


def test_a_thread_rests_between_turns_that_have_messages(thread):
    assert turns(thread, 2, 3) == 0
    assert turns(thread, 5, 1) == 5
    assert turns(thread, 3, 0) == 1
    assert turns(thread, 3, 2) == 2


def test_a_thread_never_rests_with_messages_waiting(thread):
    assert turns(thread, 3, 3) == 1
    assert turns(thread, 3, 3, is_early=True) == 1


def test_a_thread_never_rests_before_a_change(thread):
    assert turns(thread, 3, 3) == 1
    thread._to_start = {object(): None}
    thread._make_changes = lambda: None
    assert turns(thread, 3, 3) == 0
