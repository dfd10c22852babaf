"""Messages of a socket come in their order, whatever is read ahead, and bytes are bounded."""

from collections import deque

import pytest
import zmq
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.sockets import arrivals
from indexer.sockets.arrivals import AHEAD_BYTES_MAX, Arrivals, Room
from tests.exploring import explores

FRAMES_MAX = 3


class Frame:
    def __init__(self, content, more):
        self.bytes, self.more = content, more


class FakeSocket:
    """What libzmq has for us."""

    def __init__(self):
        self.frames = deque()

    def arrive(self, message):
        self.frames += [Frame(each, i < len(message) - 1) for i, each in enumerate(message)]

    def getsockopt(self, option):
        assert option == zmq.EVENTS
        return zmq.POLLIN if self.frames else 0

    def recv(self, copy):
        assert not copy
        return self.frames.popleft()


def taken(queue):
    """Everything that is there."""
    found = []
    while (message := queue.take()) is not None:
        found += [message] if message else []
    return found


class Reading(RuleBasedStateMachine):
    """Two sockets that share their room, next to two lists."""

    def __init__(self):
        super().__init__()
        self.room = Room()
        self.sockets = [FakeSocket(), FakeSocket()]
        self.queues = [Arrivals(each, self.room, FRAMES_MAX) for each in self.sockets]
        self.twins = [deque(), deque()]

    which = st.integers(0, 1)

    @rule(i=which, message=st.lists(st.binary(max_size=40), min_size=1, max_size=9))
    def arrives(self, i, message):
        self.sockets[i].arrive(message)
        self.twins[i].append(message[: FRAMES_MAX + 1])

    @rule(i=which)
    def read_ahead(self, i):
        self.queues[i].read_ahead()

    @rule(i=which)
    def take(self, i):
        message = self.queues[i].take()
        while message == []:
            message = self.queues[i].take()
        assert message == (self.twins[i].popleft() if self.twins[i] else None)

    @rule(i=which)
    def everything(self, i):
        assert taken(self.queues[i]) == list(self.twins[i])
        self.twins[i].clear()

    @invariant()
    def room_is_what_is_kept(self):
        kept = [message for queue in self.queues for message in queue._ahead]
        assert self.room.used == sum(map(arrivals._cost, kept))
        last = max(map(arrivals._cost, kept), default=0)
        assert self.room.used < arrivals.AHEAD_BYTES_MAX + last


class TestReading(Reading.TestCase):
    settings = explores(80)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 2000)
        monkeypatch.setattr(arrivals, "SKIPPED_FRAMES_MAX", 2)


def test_what_is_forgotten_gives_its_room_back():
    room, socket = Room(), FakeSocket()
    queue = Arrivals(socket, room, FRAMES_MAX)
    socket.arrive([b"x" * 1000])
    queue.read_ahead()
    assert room.used > 1000
    queue.clear()
    assert (room.used, queue.take()) == (0, None)


def test_reading_ahead_ends_with_its_time(monkeypatch):
    monkeypatch.setattr(arrivals, "AHEAD_S_MAX", 0.0)
    socket = FakeSocket()
    queue = Arrivals(socket, Room(), FRAMES_MAX)
    for _ in range(3):
        socket.arrive([b"x"])
    assert queue.read_ahead()
    assert len(socket.frames) == 2


def test_a_message_of_endless_frames_is_skipped_a_few_at_a_time():
    socket = FakeSocket()
    queue = Arrivals(socket, Room(), FRAMES_MAX)
    socket.arrive([b"x"] * 100_000)
    socket.arrive([b"y"])
    assert queue.take() == [b"x"] * (FRAMES_MAX + 1)
    before = len(socket.frames)
    assert queue.take() == []
    assert before - len(socket.frames) == arrivals.SKIPPED_FRAMES_MAX
    assert taken(queue) == [[b"y"]]


def test_the_bounds_are_bytes():
    assert arrivals.bounds().messages * arrivals.bounds().message_bytes <= 512 << 20
    assert AHEAD_BYTES_MAX <= 256 << 20
