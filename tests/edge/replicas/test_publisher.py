"""What is told to other replicas waits in a queue that has an end."""

import pytest

from select_service.core.replicas.events import LoadEvent
from select_service.edge.replicas import publisher as publishing
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.supervised import Callbacks
from tests.builders import a_reservation, a_selector, a_worker


def an_event() -> LoadEvent:
    told: list[LoadEvent] = []
    selector = a_selector()
    selector.register(a_worker(1))
    selector.replicas.tell(told.append)
    selector.reserve(a_reservation("x"), 0.0)
    return told[0]


def test_events_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "REPLICA_QUEUE_EVENTS_MAX", 2)
    publisher, event = ReplicaPublisher(Callbacks()), an_event()
    for _ in range(5):
        publisher.offer(event)
    assert (publisher.offered, publisher.queued, publisher.dropped) == (5, 2, 3)
    assert publisher.last_drop == "the queue is full"


def test_digests_and_progress_beyond_the_queue_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "REPLICA_QUEUE_EVENTS_MAX", 1)
    publisher = ReplicaPublisher(Callbacks())
    publisher.offer_digest(b"digest")
    publisher.offer_digest(b"digest")
    publisher.offer_progress(b"progress")
    assert (publisher.queued, publisher.dropped, publisher.last_drop) == (1, 0, None)
