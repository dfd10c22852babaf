"""Tests of reading a peer's messages: a bounded number in a turn of the event loop."""

import asyncio

import zmq

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.replicas import event_subscriber
from select_service.adapters.replicas.event_subscriber import DRAIN_BYTES_MAX, ReplicaSubscriber
from select_service.core.replication.load_events import EVENT_TOPIC
from tests.builders.polling import eventually_on_loop


async def turns_of(messages, came, is_ready=lambda: True):
    """Send all `messages` before any is read; return the turn in which each payload was read.

    Payloads are appended to `came`; empty payloads are not counted.
    """
    turns, at = [], []
    with zmq.Context() as context, context.socket(zmq.PUB) as peer:
        peer.linger = 0
        port = peer.bind_to_random_port("tcp://127.0.0.1")

        def receive(payload):
            came.append(payload)
            at.append(len(turns))

        reader = ReplicaSubscriber(
            f"tcp://127.0.0.1:{port}",
            {EVENT_TOPIC: receive},
            GuardedCallbacks(),
            Resolver(),
            is_ready,
        )
        reader.connect(context)
        reader.start(asyncio.get_running_loop())
        await eventually_on_loop(lambda: peer.send_multipart([EVENT_TOPIC, b""]) or came)
        for message in messages:
            peer.send_multipart(message)
        peer.send_multipart([EVENT_TOPIC, b"last"])

        def turn():
            turns.append(1)
            if b"last" not in came:
                asyncio.get_running_loop().call_soon(turn)

        turn()
        await eventually_on_loop(lambda: b"last" in came)
        reader.close()
    return [n for n, payload in zip(at, came, strict=True) if payload], reader.dropped


def test_requests_have_their_turn_between_long_messages():
    came = []
    turns, _ = asyncio.run(turns_of([[EVENT_TOPIC, bytes(DRAIN_BYTES_MAX + 1)]] * 10, came))
    assert len(set(turns)) == 11


def test_requests_have_their_turn_between_messages_that_take_long(monkeypatch):
    monkeypatch.setattr(event_subscriber, "DRAIN_S_MAX", -1.0)
    came = []
    turns, _ = asyncio.run(turns_of([[EVENT_TOPIC, b"x"]] * 10, came))
    assert len(set(turns)) == 11


def test_messages_wait_in_the_socket_until_the_reader_is_ready():
    came, looks = [], []

    def is_ready():
        looks.append(1)
        return len(looks) % 10 == 0

    turns, _ = asyncio.run(turns_of([[EVENT_TOPIC, b"x"]] * 10, came, is_ready))
    assert len(set(turns)) == 11
    assert turns[-1] - turns[0] >= 50


def test_a_message_of_endless_frames_is_skipped_a_turn_at_a_time(monkeypatch):
    monkeypatch.setattr(event_subscriber, "DRAIN_MESSAGES_MAX", 4)
    came = []
    turns, dropped = asyncio.run(
        turns_of([[EVENT_TOPIC, *[b"x"] * 100], [EVENT_TOPIC, b"next"]], came)
    )
    assert [payload for payload in came if payload] == [b"next", b"last"]
    assert dropped == {"frames": 1}
    assert turns[0] > 20


def test_the_backlog_for_the_event_loop_is_bounded_in_bytes():
    with zmq.Context() as context:
        reader = ReplicaSubscriber(
            "ipc:///nowhere/a", {EVENT_TOPIC: lambda payload: None}, GuardedCallbacks(), Resolver()
        )
        reader.connect(context)
        socket = reader._subscription.socket
        messages, size = socket.rcvhwm, socket.maxmsgsize
        reader.close()
    assert messages * size <= 80 << 20
