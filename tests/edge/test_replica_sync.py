"""The replica plane of two selectors in one process, over real sockets, with ticks on demand."""

import asyncio
import logging
import time

import msgspec
import numpy as np

from select_service.core.replica_events import SEQUENCE_BLOCKS_MAX
from select_service.edge.replica_publisher import ReplicaPublisher
from select_service.edge.replica_sync import ReplicaSync
from tests.builders import a_reservation, a_selector, a_worker
from tests.process.replica_processes import free_ports

PATIENCE_S = 20.0


class Plane:
    """A selector and its replica plane."""

    def __init__(self, seed):
        self.publisher = ReplicaPublisher()
        self.selector = a_selector(seed=seed)
        self.selector.replicas.emit = self.publisher.offer
        self.selector.register(a_worker(1))
        self.sync = ReplicaSync(self.selector.replicas, self.publisher, repair=False, url=None)
        (port,) = free_ports(1)
        self.sync.bind(port)
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def peer(self):
        (peer,) = self.sync.status().peers
        return peer


def run(*registrations, until):
    """Two planes, registered (who, at whom), ticking until `until(*planes)`."""

    async def scene():
        planes = [Plane(seed) for seed in (1, 2)]
        try:
            for who, whom in registrations:
                planes[who].sync.register(planes[whom].endpoint)
            for plane in planes:
                plane.sync.start(1)
            latest = time.monotonic() + PATIENCE_S
            while not until(*planes):
                assert time.monotonic() < latest
                for plane in planes:
                    plane.sync.tick()
                await asyncio.sleep(0.01)
        finally:
            for plane in planes:
                plane.sync.close()

    asyncio.run(scene())


def test_a_replica_sees_how_many_listen_and_how_much_of_its_own_arrives():
    def both_ways(a, b):
        if a.sync.status().digests_out == 1:
            a.selector.reserve(a_reservation("x"), 0.0)
        return (
            a.peer().frames_out
            and b.peer().frames_in
            and a.sync.status().subscribers == 1
            and (b.peer().applied == 1 and b.sync.status().subscribers == 1)
        )

    run((0, 1), (1, 0), until=both_ways)


def test_frames_out_is_unknown_until_the_peer_has_spoken_and_zero_when_it_does_not_listen():
    seen = []

    def has_spoken(a, b):
        seen.append(a.peer().frames_out)
        return a.peer().digests > 0

    run((0, 1), until=has_spoken)
    assert seen[0] is None
    assert seen[-1] == 0


def test_a_subscriber_that_leaves_is_not_counted_any_more():
    came = []

    def came_and_went(a, b):
        subscribers = b.sync.status().subscribers
        if subscribers and not came:
            came.append(a.sync.deregister(b.endpoint))
        return came and subscribers == 0

    run((0, 1), until=came_and_went)


def test_a_replica_that_is_its_own_peer_is_told_so_once(caplog):
    caplog.set_level(logging.INFO, "select_service.replicas")

    def is_seen(a, b):
        shown = a.peer()
        return shown.is_self and shown.dropped.get("own", 0) > 3 and shown.router_id is None

    run((0, 0), until=is_seen)
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert messages == ["replica peer is this process itself"]


def test_another_replica_is_not_oneself():
    run((0, 1), until=lambda a, b: a.peer().digests > 0 and not a.peer().is_self)


def test_an_error_has_an_age():
    def has_failed(a, b):
        b.publisher.offer_digest(b"\x00")
        shown = a.peer()
        if shown.last_error is None:
            assert shown.seconds_since_last_error is None
            return False
        assert 0 <= shown.seconds_since_last_error < PATIENCE_S
        return True

    run((0, 1), until=has_failed)


def test_an_event_that_is_too_large_is_dropped_with_its_reason_and_the_next_one_is_sent():
    async def scene():
        plane = Plane(seed=1)
        plane.sync.start(1)
        publisher, offered = plane.publisher, []
        plane.selector.replicas.emit = offered.append
        plane.selector.reserve(a_reservation("x"), 0.0)
        too_long = np.zeros(SEQUENCE_BLOCKS_MAX + 1, np.uint64)
        publisher.offer(msgspec.structs.replace(offered[0], sequence_hashes=too_long))
        publisher.offer(offered[0])
        while publisher.queued:
            await asyncio.sleep(0)
        assert (publisher.sent, publisher.dropped) == (1, 1)
        assert "blocks" in publisher.last_drop
        plane.sync.close()

    asyncio.run(scene())
