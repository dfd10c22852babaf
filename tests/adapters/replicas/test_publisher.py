"""Tests of the bounded queue of events for other replicas."""

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest
import zmq

from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.replicas import event_publisher as publishing
from select_service.adapters.replicas.event_publisher import QUIET_BIND_ATTEMPTS, ReplicaPublisher
from select_service.core.replication.digest import DIGEST_TOPIC
from select_service.core.replication.load_events import EVENT_TOPIC, LoadEvent
from tests.adapters.replicas.planes import Plane
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually, eventually_on_loop


def an_event() -> LoadEvent:
    told: list[LoadEvent] = []
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.followers.replicas.start_sending(told.append)
    selector.reserve(a_reservation("x"), 0.0)
    return told[0]


def test_events_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "REPLICA_QUEUE_EVENTS_MAX", 2)
    publisher, event = ReplicaPublisher(GuardedCallbacks()), an_event()
    for _ in range(5):
        publisher.offer_event(event)
    assert (publisher.offered, publisher.queue_length, publisher.dropped) == (5, 2, 3)
    assert publisher.last_drop == "queue is full"


def test_digests_and_progress_beyond_the_queue_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "REPLICA_QUEUE_EVENTS_MAX", 1)
    publisher = ReplicaPublisher(GuardedCallbacks())
    publisher.offer_digest(b"digest")
    publisher.offer_digest(b"digest")
    publisher.offer_progress(b"progress")
    assert (publisher.queue_length, publisher.dropped, publisher.last_drop) == (1, 0, None)


async def reopen_port(
    publisher: ReplicaPublisher, port: int, taken_for: Callable[[], bool]
) -> None:
    """Close the port, let another socket have it until the condition holds, and reopen it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher.bind_socket(context, f"tcp://127.0.0.1:{port}", {})
    publisher.start(asyncio.get_running_loop())
    publisher.rebind_socket()
    with eventually(lambda: listening(port)):
        await eventually_on_loop(taken_for)
    await eventually_on_loop(lambda: publisher._socket)
    publisher.close()
    context.destroy()


def listening(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port), reuse_port=False)
    except OSError:
        return None


def test_a_taken_port_is_logged_once_and_when_it_is_open_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "REBIND_DELAY_S", 0.001)
    caplog.set_level(logging.INFO, "select_service.replicas")
    publisher, port = ReplicaPublisher(GuardedCallbacks()), free_port()
    asyncio.run(reopen_port(publisher, port, lambda: publisher._attempts > 2 * QUIET_BIND_ATTEMPTS))
    told, again = caplog.records
    assert (told.message, again.message) == (
        "replica port not bound, retrying",
        "replica port bound again",
    )
    endpoint = f"tcp://127.0.0.1:{port}"
    assert told.fields == {"endpoint": endpoint, "error": "Address already in use"}
    assert again.fields == {"endpoint": endpoint}


def test_a_port_that_is_free_soon_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "REBIND_DELAY_S", 0.001)
    caplog.set_level(logging.INFO, "select_service.replicas")
    publisher = ReplicaPublisher(GuardedCallbacks())
    asyncio.run(reopen_port(publisher, free_port(), lambda: publisher._attempts > 0))
    assert publisher._attempts == 0
    assert caplog.records == []


async def _publish_to(topics: tuple[bytes, ...], plane: Plane) -> set[bytes]:
    """Return the topics that a subscriber of these topics receives in some seconds of the plane."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    reader = context.socket(zmq.SUB)
    for topic in topics:
        reader.subscribe(topic)
    reader.connect(plane.endpoint)
    plane.sync.start(1, None)  # type: ignore[arg-type]
    try:
        await eventually_on_loop(lambda: plane.publisher.count_subscribers() == 1)
        reserve = plane.selector.reserve
        found: set[bytes] = set()
        for number in range(20):
            reserve(a_reservation(f"r{number}"), 0.0)
            plane.sync.publish_digest()
            await asyncio.sleep(0.02)
            while reader.poll(0):
                found.add(reader.recv_multipart()[0])
        return found
    finally:
        plane.sync.close()
        context.destroy(linger=0)


@pytest.mark.parametrize(
    ("topics", "published"),
    [
        ((b"",), {EVENT_TOPIC}),
        ((EVENT_TOPIC,), {EVENT_TOPIC}),
        ((EVENT_TOPIC, DIGEST_TOPIC), {EVENT_TOPIC, DIGEST_TOPIC}),
    ],
)
def test_only_subscribers_of_digests_by_name_get_them(
    topics: tuple[bytes, ...], published: set[bytes]
) -> None:
    plane = Plane(1)
    assert asyncio.run(_publish_to(topics, plane)) == published


def test_a_subscriber_that_floods_its_connection_loses_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "SUBSCRIPTIONS_READ_MAX", 8)

    async def flood() -> None:
        plane, context = Plane(1), zmq.Context[zmq.Socket[bytes]]()
        writer = context.socket(zmq.XSUB)
        writer.connect(plane.endpoint)
        plane.sync.start(1, None)  # type: ignore[arg-type]
        await eventually_on_loop(lambda: plane.publisher.count_subscribers() == 1)
        for number in range(100):
            writer.send(b"\x01topic-%d" % number)
        try:
            await eventually_on_loop(
                lambda: plane.publisher.is_subscribed(DIGEST_TOPIC) or caplog.records
            )
            await eventually_on_loop(lambda: plane.publisher._socket)
        finally:
            plane.sync.close()
            context.destroy(linger=0)

    asyncio.run(flood())
    assert [each.message for each in caplog.records] == ["replica connections closed"]
