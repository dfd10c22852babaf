"""Tests of messages from a socket: kept order despite reading ahead, and bounded bytes."""

from collections import deque

import pytest
import zmq
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.sockets import batch_receiver
from indexer.sockets import read_ahead as arrivals
from indexer.sockets.read_ahead import AHEAD_BYTES_MAX, ReadAheadQueue, ReceiveBudget
from tests.builders.hypothesis_profiles import explores

FRAMES_MAX = 3


class Wire:
    """Socket and its sender."""

    def __init__(self, context):
        address = f"inproc://{id(self)}"
        self.socket, self._out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for each in (self.socket, self._out):
            each.set_hwm(0)
            each.linger = 0
        self.socket.bind(address)
        self._out.connect(address)

    def arrive(self, message):
        self._out.send_multipart(message)

    def close(self):
        self.socket.close()
        self._out.close()


@pytest.fixture
def wire():
    with zmq.Context() as context:
        wire = Wire(context)
        yield wire
        wire.close()


def take(queue):
    """Return the next message as a list of its frames, or an empty or missing run as [] or None."""
    run = queue.next_messages()
    if not run:
        return None if run is None else []
    frames = run.next_frames()
    queue.mark_done(1)
    return frames


def take_all(queue):
    """Return all available messages."""
    found = []
    while (message := take(queue)) is not None:
        found += [message] if message else []
    return found


class Reading(RuleBasedStateMachine):
    """Two sockets with a shared receive budget, next to two lists."""

    def __init__(self):
        super().__init__()
        self.room = ReceiveBudget()
        self.context = zmq.Context()
        self.wires = [Wire(self.context), Wire(self.context)]
        self.queues = [ReadAheadQueue(each.socket, self.room, FRAMES_MAX) for each in self.wires]
        self.twins = [deque(), deque()]

    def teardown(self):
        for queue, wire in zip(self.queues, self.wires, strict=True):
            queue.close()
            assert take(queue) is None
            wire.close()
        self.context.term()

    which = st.integers(0, 1)

    @rule(i=which, message=st.lists(st.binary(max_size=40), min_size=1, max_size=9))
    def arrives(self, i, message):
        self.wires[i].arrive(message)
        self.twins[i].append(message[: FRAMES_MAX + 1])

    @rule(i=which)
    def read_ahead(self, i):
        self.queues[i].read_ahead()

    @rule(i=which)
    def take(self, i):
        message = take(self.queues[i])
        while message == []:
            message = take(self.queues[i])
        assert message == (self.twins[i].popleft() if self.twins[i] else None)

    @rule(i=which)
    def look(self, i):
        assert self.queues[i].has_messages or not self.twins[i]  # a surplus is possible

    @rule(i=which)
    def everything(self, i):
        assert take_all(self.queues[i]) == list(self.twins[i])
        self.twins[i].clear()

    @invariant()
    def room_equals_kept_bytes(self):
        kept = [cost for queue in self.queues for _, cost in queue._copied]
        assert self.room.used_bytes == sum(kept)
        assert self.room.used_bytes < arrivals.AHEAD_BYTES_MAX + 2 * max(kept, default=0)


class TestReading(Reading.TestCase):
    settings = explores(80)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 2000)
        monkeypatch.setattr(batch_receiver, "SKIPPED_FRAMES_MAX", 2)
        monkeypatch.setattr(batch_receiver, "RUN_BYTES_MAX", 100)


def test_a_closed_queue_releases_its_room(wire):
    room = ReceiveBudget()
    queue = ReadAheadQueue(wire.socket, room, FRAMES_MAX)
    wire.arrive([b"x" * 1000])
    queue.read_ahead()
    assert room.used_bytes > 1000
    queue.close()
    assert (room.used_bytes, take(queue), queue.has_messages) == (0, None, False)
    assert not queue.read_ahead()


def test_reading_ahead_ends_with_its_time(wire, monkeypatch):
    monkeypatch.setattr(arrivals, "AHEAD_S_MAX", 0.0)
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    for _ in range(3 * batch_receiver.RUN_MESSAGES_MAX):
        wire.arrive([b"x"])
    assert queue.read_ahead()
    assert sum(len(run) for run, _ in queue._copied) == batch_receiver.RUN_MESSAGES_MAX


def test_reading_ahead_ends_with_its_room(wire, monkeypatch):
    monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 1000)
    monkeypatch.setattr(arrivals, "AHEAD_S_MAX", 60.0)
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    for _ in range(3 * batch_receiver.RUN_MESSAGES_MAX):
        wire.arrive([b"x"])
    assert not queue.read_ahead()
    assert sum(len(run) for run, _ in queue._copied) == batch_receiver.RUN_MESSAGES_MAX
    assert len(take_all(queue)) == 3 * batch_receiver.RUN_MESSAGES_MAX


def test_a_message_of_endless_frames_is_skipped_a_few_at_a_time(wire):
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    n_frames = 20 * batch_receiver.SKIPPED_FRAMES_MAX
    wire.arrive([b"x"] * n_frames)
    wire.arrive([b"y"])
    assert take(queue) == [b"x"] * (FRAMES_MAX + 1)
    pauses = 0
    while (message := take(queue)) == []:
        pauses += 1
    assert message == [b"y"]
    assert pauses >= n_frames // batch_receiver.SKIPPED_FRAMES_MAX - 2


def test_the_last_message_of_a_run_is_marked(wire):
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    for number in range(3):
        wire.arrive([b"%d" % number])
    told = []
    while take(queue) is not None:
        told.append(queue.is_drained)
    assert told == [False, False, True]


def test_a_check_for_messages_loses_no_notification(wire):
    """The check for messages consumes the notification of the file descriptor."""
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    wire.arrive([b"0"])
    wire.arrive([b"1"])
    assert take(queue) == [b"0"]
    wire.arrive([b"2"])
    assert queue.has_messages
    assert (take(queue), queue.is_drained) == ([b"1"], False)
    assert (take(queue), queue.is_drained) == ([b"2"], True)


def test_a_message_beyond_the_inbox_is_one_of_too_many_frames(wire, monkeypatch):
    monkeypatch.setattr(batch_receiver, "BUFFER_BYTES", 1 << 16)
    queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX)
    wire.arrive([b"", b"x" * (1 << 16), b"y"])
    wire.arrive([b"", b"x" * ((1 << 16) + 1), b"y"])
    wire.arrive([b"z"])
    assert [len(message) for message in take_all(queue)] == [FRAMES_MAX + 1, FRAMES_MAX + 1, 1]


def test_memory_of_a_long_message_is_given_back(wire):
    room = ReceiveBudget()
    queue = ReadAheadQueue(wire.socket, room, FRAMES_MAX)
    wire.arrive([b"x" * (2 * batch_receiver.KEPT_BYTES)])
    assert take(queue) == [b"x" * (2 * batch_receiver.KEPT_BYTES)]
    assert room.buffer._buffer.any()
    assert take(queue) is None
    assert not room.buffer._buffer[batch_receiver.KEPT_BYTES :].any()


def test_news_from_the_socket_beside_come_with_the_messages(wire):
    with zmq.Context() as context:
        beside = Wire(context)
        queue = ReadAheadQueue(wire.socket, ReceiveBudget(), FRAMES_MAX, beside.socket)
        beside.arrive([b"news"])
        assert (take(queue), queue.has_news) == (None, False)
        wire.arrive([b"x"])
        assert (take(queue), queue.has_news) == ([b"x"], True)
        queue.close()
        beside.close()


def test_a_socket_error_is_raised():
    with zmq.Context() as context:
        socket = context.socket(zmq.PUSH)
        with pytest.raises(zmq.ZMQError):
            ReadAheadQueue(socket, ReceiveBudget(), FRAMES_MAX).next_messages()
        socket.close()


def test_the_bounds_are_bytes():
    assert (
        arrivals.engine_queue_limits().messages * arrivals.engine_queue_limits().message_bytes
        <= 512 << 20
    )
    assert AHEAD_BYTES_MAX <= 256 << 20


def test_when_there_is_no_room_one_message_is_received_at_a_time(wire, monkeypatch):
    room = ReceiveBudget()
    queue = ReadAheadQueue(wire.socket, room, FRAMES_MAX)
    for number in range(3):
        wire.arrive([b"%d" % number])
    monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 0)
    assert [len(queue.next_messages()), take(queue), room.used_bytes] == [1, [b"0"], 0]
    monkeypatch.setattr(arrivals, "AHEAD_BYTES_MAX", 1)
    assert len(queue.next_messages()) == 2


def test_the_room_counts_messages_of_all_sockets_and_of_the_fullest(wire, monkeypatch):
    monkeypatch.setattr(batch_receiver, "RUN_MESSAGES_MAX", 2)
    room = ReceiveBudget()
    queues = [ReadAheadQueue(wire.socket, room, FRAMES_MAX) for _ in range(2)]
    for number in range(5):
        wire.arrive([bytes([number])])
    assert room.take_counts() == (0, 0)
    while queues[0].read_ahead():
        pass
    for number in range(3):
        wire.arrive([bytes([number])])
    while queues[1].read_ahead():
        pass
    assert room.take_counts() == (8, 5)
    assert room.take_counts() == (0, 0)
