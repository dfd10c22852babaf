"""When a thread of KV events rests, so that one turn serves several messages."""

import pytest

from indexer.sockets import ingest
from indexer.sockets.arrivals import QUEUED_MESSAGES_MAX
from indexer.sockets.gathering import GATHER_S, Gathering

LONG, SHORT = GATHER_S, GATHER_S / 10


def after(*turns):
    """Of (messages, seconds waited for them, was a queue full)."""
    gathering = Gathering()
    for messages, waited_s, is_full in turns:
        gathering.turned(messages, waited_s, is_full=is_full)
    return gathering.pays


def test_what_comes_alone_is_not_kept_waiting():
    assert not after()
    assert not after((1, LONG, False))
    assert not after((5, LONG, False), (1, LONG, False))


def test_what_comes_close_upon_another_is():
    assert after((1, SHORT, False))
    assert after((1, LONG, False), (1, SHORT, False))


@pytest.mark.parametrize(("messages", "pays"), [(0, False), (1, False), (2, True), (30, True)])
def test_a_rest_that_gathered_nothing_is_the_last(messages, pays):
    assert after((1, SHORT, False), (messages, 0.0, False)) is pays


def test_a_full_queue_is_not_kept_waiting():
    assert not after((40, SHORT, True))
    assert not after((1, SHORT, False), (40, 0.0, True))


class Stub:
    """Readiness, and a socket that has messages."""

    def __init__(self, room):
        self._room = room
        self.has_some = False

    def wait(self, patience):
        return [self.drain]

    def drain(self):
        self._room.count(self.messages)
        return self.is_early

    def again(self, drain):
        self.has_some = True


@pytest.fixture
def thread(monkeypatch):
    """One that is not started, its rests are counted."""
    made = ingest._IngestThread(0, held=False)
    made.rests = 0
    made.readiness.close()
    made.readiness = Stub(made.room)

    def rest(_):
        made.rests += 1

    monkeypatch.setattr(Gathering, "rest", rest)
    yield made
    made._wake_in.close()
    made._wake_out.close()


def turns(thread, count, messages, *, is_early=False):
    """How often it rested in so many turns."""
    thread.readiness.messages, thread.readiness.is_early = messages, is_early
    before = thread.rests
    for _ in range(count):
        thread._turn()
    return thread.rests - before


def test_a_thread_rests_between_turns_that_serve_several(thread, monkeypatch):
    monkeypatch.setattr("indexer.sockets.gathering.GATHER_S", 3600.0)  # whatever the test waits
    assert turns(thread, 1, 3) == 0
    assert turns(thread, 5, 3) == 5
    assert turns(thread, 1, 1) == 1
    assert turns(thread, 1, 3) == 0  # the last rest had gathered one


def test_a_thread_never_rests_over_what_is_there(thread, monkeypatch):
    monkeypatch.setattr("indexer.sockets.gathering.GATHER_S", 3600.0)
    assert turns(thread, 2, 3) == 1
    assert turns(thread, 3, QUEUED_MESSAGES_MAX) == 1
    turns(thread, 2, 3)
    assert turns(thread, 3, 3, is_early=True) == 1


def test_a_thread_never_rests_before_a_change(thread, monkeypatch):
    monkeypatch.setattr("indexer.sockets.gathering.GATHER_S", 3600.0)
    turns(thread, 2, 3)
    thread._to_start = {object(): None}
    thread._make_changes = lambda: None
    assert turns(thread, 3, 3) == 0
