"""Tests of failing callbacks of the event loop: counted, logged once, and not fatal."""

import asyncio
import logging

import zmq

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.queue_waker import QueueWaker
from select_service.adapters.replicas import event_subscriber
from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.event_subscriber import ReplicaSubscriber
from select_service.core.replication.load_events import EVENT_TOPIC
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually_on_loop

N = 10


def test_failures_are_counted_by_name_and_logged_once(caplog):
    callbacks = GuardedCallbacks()
    run = callbacks.guard_callback("broken", lambda n: 1 // n)
    assert callbacks.failures == {"broken": 0}
    for n in (0, 1, 0):
        run(n)
    assert callbacks.failures == {"broken": 2}
    (line,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert line.fields == {"callback": "broken"}
    assert line.exc_info[0] is ZeroDivisionError


async def read_ten(callbacks, receive):
    """Let a peer send one message until it arrives, and then N numbered messages at once."""
    with zmq.Context() as context, context.socket(zmq.PUB) as peer:
        peer.linger = 0
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        came = []

        def take(payload):
            came.append(payload)
            if payload:
                receive(payload)

        reader = ReplicaSubscriber(
            f"tcp://127.0.0.1:{port}", {EVENT_TOPIC: take}, callbacks, Resolver()
        )
        reader.connect(context)
        reader.start(asyncio.get_running_loop())
        await eventually_on_loop(lambda: peer.send_multipart([EVENT_TOPIC, b""]) or came)
        for n in range(N):
            peer.send_multipart([EVENT_TOPIC, bytes([n])])
        await eventually_on_loop(lambda: sum(map(bool, came)) == N)
        reader.close()
    assert [payload for payload in came if payload] == [bytes([n]) for n in range(N)]


def test_messages_behind_one_that_fails_are_read():
    callbacks = GuardedCallbacks()

    def fail(payload):
        if payload[0] % 3 == 0:
            raise ZeroDivisionError

    asyncio.run(read_ten(callbacks, fail))
    assert callbacks.failures == {"replica_message": 4, "replica_subscriber": 0}


def test_a_socket_is_polled_again_after_an_error(monkeypatch):
    callbacks, ask, fails = GuardedCallbacks(), event_subscriber.has_message, []

    def ask_or_fail(socket):
        if fails:
            raise fails.pop()
        return ask(socket)

    monkeypatch.setattr(event_subscriber, "has_message", ask_or_fail)
    asyncio.run(read_ten(callbacks, lambda payload: fails.append(OSError("broken"))))
    assert callbacks.failures == {"replica_message": 0, "replica_subscriber": N}


async def test_events_behind_an_unwritable_one_are_sent():
    callbacks, offered = GuardedCallbacks(), []
    selector = a_selector()
    selector.followers.replicas.start_sending(offered.append)
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("x"), 0.0)
    publisher = ReplicaPublisher(callbacks)
    with zmq.Context() as context:
        port = free_port()
        publisher.bind_socket(context, f"tcp://127.0.0.1:{port}", {})
        publisher.start(asyncio.get_running_loop())
        publisher.offer_event(object())
        publisher.offer_event(offered[0])
        await eventually_on_loop(lambda: publisher.queue_length == 0)
        publisher.close()
    assert (publisher.sent, callbacks.failures) == (1, {"replica_publisher": 1})


async def test_requests_are_woken_again_after_it_has_failed():
    callbacks, waker, served = GuardedCallbacks(), QueueWaker(), []

    def serve(now):
        served.append(now)
        raise ZeroDivisionError

    waker.bind_queue(callbacks.guard_callback("waker", serve))
    for n in (1, 2):
        waker()
        await eventually_on_loop(lambda n=n: len(served) == n)
    assert callbacks.failures == {"waker": 2}
