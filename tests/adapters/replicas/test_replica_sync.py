"""Tests of two selectors' replica planes in one process, over real sockets, with manual ticks."""

import asyncio
import logging
import re
import socket
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from indexer.sockets import zmq_connector
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.socket_options import REACHED_S_MAX
from indexer.tiers import Tier
from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas import replica_sync as replica_sync
from select_service.adapters.replicas.event_publisher import SUBSCRIPTION_BYTES_MAX
from select_service.adapters.replicas.event_subscriber import MESSAGE_BYTES_MAX
from select_service.adapters.replicas.peer_list import PAGE_S_MAX
from select_service.adapters.replicas.peer_state import SILENT_S
from select_service.adapters.replicas.replica_sync import PEERS_MAX, RECONNECT_S
from select_service.adapters.service_tasks import make_service_tasks
from select_service.core.identity import Rank
from select_service.core.load import active_load
from select_service.core.load.compiled.ledger_layout import MANY_BLOCKS
from select_service.core.periodic_task import SECOND_S
from select_service.core.placement.prompt import read_prompt
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.load_events import (
    EVENT_TOPIC,
    SEQUENCE_BLOCKS_MAX,
    LoadEventEncoder,
)
from select_service.core.replication.peer_agreement import PERSISTENT_DIGESTS, RETRY_S, RETRY_S_MAX
from select_service.core.replication.replica_liveness import LIVENESS_TIMEOUT_S
from select_service.net.egress_policy import EgressPolicy
from tests.adapters.replicas.planes import Plane
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.polling import PATIENCE_S, eventually_on_loop


def run(*registrations, until):
    """Run two planes with registrations (at, peer) until `until(*planes)`."""

    async def scene():
        planes = [Plane(seed) for seed in (1, 2)]
        try:
            for who, whom in registrations:
                planes[who].sync.register_peer(planes[whom].endpoint)
            for plane in planes:
                plane.sync.start(1, HttpClient(Resolver()))

            def is_reached():
                if until(*planes):
                    return True
                for plane in planes:
                    plane.sync.publish_digest()
                return False

            await eventually_on_loop(is_reached)
        finally:
            for plane in planes:
                plane.sync.close()

    asyncio.run(scene())


def test_a_replica_shows_its_subscribers_and_the_arrived_share_of_its_events():
    def both_ways(a, b):
        if (
            a.sync.replica_status().subscribers == 1
            and not a.selector.ledger.reservations.find_reservation("x")
        ):
            a.selector.reserve(a_reservation("x"), 0.0)
        return (
            a.peer().frames_out
            and b.peer().frames_in
            and a.sync.replica_status().subscribers == 1
            and (b.peer().digests and b.sync.replica_status().subscribers == 1)
        )

    run((0, 1), (1, 0), until=both_ways)


def test_frames_out_is_unknown_until_a_digest_and_zero_without_a_subscription():
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
        subscribers = b.sync.replica_status().subscribers
        if subscribers and not came:
            came.append(a.sync.deregister_peer(b.endpoint))
        return came and subscribers == 0

    run((0, 1), until=came_and_went)


def test_a_replica_that_is_its_own_peer_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "select_service.replicas")

    def is_seen(a, b):
        shown = a.peer()
        return shown.is_self and shown.dropped.get("own", 0) > 3 and shown.router_id is None

    run((0, 0), until=is_seen)
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert messages == ["replica peer is this process itself"]


def test_another_replica_is_not_oneself():
    run((0, 1), until=lambda a, b: a.peer().digests > 0 and not a.peer().is_self)


def test_progress_is_sent_to_the_peer_and_counted_by_both():
    def is_followed(a, b):
        if not list(a.selector.ledger.reservations):  # not subscribed yet, or just now
            b.selector.reserve(a_reservation(f"x{len(b.selector.ledger.reservations)}"), 0.0)
            return False
        oldest, *_ = a.selector.ledger.reservations
        b.publisher.offer_progress(progress_of(b, oldest.reservation_id))
        if not a.peer().progress:
            return False
        assert a.peer().dropped.get("progress", 0) == 0
        assert b.sync.replica_status().progress_out >= a.peer().progress
        (partition,) = a.selector.fleet.partitions.values()
        work = sum(booking.prefill_work for booking in a.selector.ledger.reservations)
        return partition.load.prefills.work_left.tolist() == [work - 1]

    run((0, 1), until=is_followed)


def test_a_peer_gets_the_progress_seen_by_the_admitting_replica():
    """Check a peer without events of that engine."""
    attempts = []

    def is_known(a, b):
        if not list(a.selector.ledger.reservations):
            for missed in list(b.selector.ledger.reservations):
                b.selector.free_reservation(missed.reservation_id, 0.0)
            attempts.append(f"x{len(attempts)}")
            request = a_select_and_reserve(40, reservation_id=attempts[-1])
            b.selector.select_and_reserve(request, 0.0)
            return False
        (here,), (there,) = (plane.selector.fleet.partitions.values() for plane in (a, b))
        if not there.index.stats().memberships:
            blocks = read_prompt(a_select(40), there.block_size, False).block_hashes[:3]
            there.table.writer_of(Rank(1, 0)).store(Tier.GPU, None, blocks, blocks)
        b.sync.publish_progress(time.monotonic())
        return here.load.prefills.work_left.tolist() == [40 - 12]

    run((0, 1), (1, 0), until=is_known)


def test_progress_has_its_own_task_if_there_is_a_plane():
    plane = Plane(1)
    try:
        for sync in (plane.sync, None):
            tasks = make_service_tasks(plane.selector, None, None, sync)  # none of the tasks runs
            assert ("progress" in tasks.counts) == (sync is not None)
    finally:
        plane.sync.close()


def progress_of(plane, name):
    """Return a message that one token of a prefill is done."""
    rows = [replica_progress.PrefillProgress(name, 1)]
    message = replica_progress.ProgressMessage(
        router_id=plane.selector.followers.replicas.router_id, rows=rows
    )
    return replica_progress.encode_progress(message)


def test_unreadable_progress_is_counted_and_logged():
    def is_counted(a, b):
        b.publisher.offer_progress(b"\x00")
        shown = a.peer()
        return shown.dropped.get("progress", 0) > 0 and shown.last_error is not None

    run((0, 1), until=is_counted)


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


async def test_an_event_that_is_too_large_is_dropped_with_its_reason_and_the_next_one_is_sent():
    plane = Plane(seed=1)
    plane.sync.start(1, HttpClient(Resolver()))
    publisher, offered = plane.publisher, []
    plane.selector.followers.replicas.start_sending(offered.append)
    plane.selector.reserve(a_reservation("x"), 0.0)
    too_long = np.zeros(SEQUENCE_BLOCKS_MAX + 1, np.uint64)
    publisher.offer_event(msgspec.structs.replace(offered[0], sequence_hashes=too_long))
    publisher.offer_event(offered[0])
    while publisher.queue_length:
        await asyncio.sleep(0)
    assert (publisher.sent, publisher.dropped) == (1, 1)
    assert "blocks" in publisher.last_drop
    plane.sync.close()


async def test_a_peer_that_broke_the_protocol_is_listened_to_again(monkeypatch):
    monkeypatch.setattr(replica_sync, "RECONNECT_S", 0.3)
    plane = Plane(seed=1)
    with zmq.Context() as context, context.socket(zmq.PUB) as peer:
        peer.linger = 0
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        plane.sync.register_peer(f"tcp://127.0.0.1:{port}")
        plane.sync.start(1, HttpClient(Resolver()))

        def sends_garbage():
            plane.sync.publish_digest()
            peer.send_multipart([EVENT_TOPIC, b"garbage"])
            return plane.peer().connected and plane.peer().frames_in

        def is_cut_off():
            plane.sync.publish_digest()
            return not plane.peer().connected

        await eventually_on_loop(sends_garbage)
        peer.send_multipart([EVENT_TOPIC, bytes(MESSAGE_BYTES_MAX + 1)])
        await eventually_on_loop(is_cut_off)
        heard = plane.peer().frames_in
        await eventually_on_loop(lambda: sends_garbage() and plane.peer().frames_in > heard + 1)
    plane.sync.close()


def test_a_peer_that_is_connected_and_mute_gets_a_new_socket():
    """Check a connected peer without digests, as behind a proxy after the peer has gone."""
    times = []

    def is_anew(a, b):
        (peer,) = a.sync._peers.values()
        if a.peer().digests == 0:
            return False
        before, now = peer.subscriber._subscription, time.monotonic()
        for seconds in (0.0, SILENT_S - 1.0, SILENT_S + 1.0, SILENT_S + RECONNECT_S):
            a.sync._check_peer(peer, now + seconds)
            times.append(peer.subscriber._subscription is before)
        return True

    run((0, 1), until=is_anew)
    assert times == [True, True, True, False]


def test_the_time_to_agree_follows_from_the_constants():
    text = (Path(__file__).parents[3] / "docs" / "explanation" / "replication.md").read_text()
    promised = float(re.search(r"hold the same reservations within (\d+) s", text)[1])
    begin = max(REACHED_S_MAX, SILENT_S + RECONNECT_S, LIVENESS_TIMEOUT_S, PAGE_S_MAX + RETRY_S)
    assert promised >= begin + (1 + PERSISTENT_DIGESTS) * SECOND_S + RETRY_S_MAX


async def test_a_subscriber_of_endless_topics_is_cut_off():
    plane = Plane(seed=1)
    plane.sync.start(1, HttpClient(Resolver()))
    with zmq.Context() as context, context.socket(zmq.SUB) as reader:
        reader.linger = 0
        monitor = reader.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        reader.subscribe(bytes(SUBSCRIPTION_BYTES_MAX))
        reader.connect(plane.endpoint)
        await eventually_on_loop(lambda: monitor.poll(0))
        reader.disable_monitor()
        monitor.close()
    plane.sync.close()


def test_a_long_booking_of_a_peer_waits_until_it_is_a_bounded_step(monkeypatch):
    monkeypatch.setattr(active_load, "TOUCHED_IN_A_STEP", 1)
    theirs = a_selector(seed=1)
    theirs.register_worker(a_worker(1))
    said = []
    theirs.followers.replicas.start_sending(said.append)
    theirs.reserve(a_reservation("long", tokens=4 * MANY_BLOCKS), 0.0)
    theirs.free_reservation("long", 0.0)
    ours = Plane(2)
    ours.sync.register_peer("tcp://127.0.0.1:1")
    (peer,) = ours.sync._peers.values()
    try:
        ours.sync._handle_event(peer, LoadEventEncoder().encode_event(said[0]))
        assert ours.selector.ledger.reservations.find_reservation("long") is None
        turns = 0
        while not ours.sync._is_ready(peer):
            ours.selector.run_pending(0.0)
            turns += 1
        assert turns > 0
        assert (peer.applied, peer.held_back) == (1, None)
        assert ours.selector.ledger.reservations.find_reservation("long") is not None
        ours.sync._handle_event(peer, LoadEventEncoder().encode_event(said[1]))
        assert (peer.applied, ours.selector.ledger.reservations.find_reservation("long")) == (
            2,
            None,
        )
    finally:
        ours.sync.close()


def test_reservations_on_unknown_ranks_are_repaired_after_the_registration():
    def is_reported(a, b):
        (peer,) = b.sync._peers.values()
        agreement = peer.agreement
        if len(a.selector.list_workers()) == 1:
            a.selector.register_worker(a_worker(2))
            a.selector.reserve(a_reservation("x", 2), 0.0)
        if not agreement.is_repair_due(time.monotonic()):
            return False
        for _ in range(9):
            agreement.record_repair(False, time.monotonic())
        b.sync.publish_digest()
        assert not agreement.is_repair_due(time.monotonic())
        b.selector.register_worker(a_worker(2))
        b.sync.publish_digest()
        return agreement.is_repair_due(time.monotonic())

    run((1, 0), until=is_reported)


def resolving(*answers):
    """Return a resolver with these outcomes in turn; the last one repeats.

    Each outcome is an address, several addresses, or None for a name that is not found.
    """
    left = list(answers)

    def look_up(host, *_, **__):
        found = left.pop(0) if len(left) > 1 else left[0]
        if found is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in found.split()]

    return Resolver(look_up)


@pytest.mark.parametrize(
    "answers",
    [
        ("127.0.0.1",),
        (None, "127.0.0.1"),
        ("127.0.0.9", "127.0.0.1"),
        ("127.0.0.9 127.0.0.8 127.0.0.1",),
    ],
)
async def test_a_peer_is_found_by_its_name_after_failed_lookups(answers, monkeypatch):
    monkeypatch.setattr(zmq_connector, "LOOKUP_INTERVAL_S", 0.01)
    monkeypatch.setattr(zmq_connector, "NOT_FOUND_RETRY_S", 0.01)
    plane, other = Plane(1, resolving(*answers)), Plane(2)
    port = other.endpoint.rpartition(":")[2]
    plane.sync.register_peer(f"tcp://peer.example:{port}")
    for each in (plane, other):
        each.sync.start(1, HttpClient(Resolver()))

    def has_digests():
        other.sync.publish_digest()
        plane.sync.publish_digest()
        return plane.peer().digests > 0 and plane.peer().connected

    await eventually_on_loop(has_digests)
    for each in (plane, other):
        each.sync.close()


async def test_a_name_with_a_forbidden_address_is_reported(monkeypatch):
    monkeypatch.setattr(zmq_connector, "NOT_FOUND_RETRY_S", 0.01)
    names = resolving("169.254.169.254")
    names.egress_guard.check_address = EgressPolicy().address_refusal
    plane = Plane(1, names)
    plane.sync.register_peer("tcp://peer.example:1")
    plane.sync.start(1, HttpClient(Resolver()))

    def is_reported():
        plane.sync.publish_digest()
        return "resolves to 169.254.169.254" in (plane.peer().last_error or "")

    await eventually_on_loop(is_reported)
    assert not plane.peer().connected
    assert names.egress_guard.refusal_counts()["replica"] >= 1
    plane.sync.close()


def test_an_unanswered_name_lookup_delays_no_close():
    over = threading.Event()

    def look_up(*_, **__):
        over.wait(10 * PATIENCE_S)
        raise OSError("over")

    async def scene():
        plane = Plane(1, Resolver(look_up))
        plane.sync.start(1, HttpClient(Resolver()))
        for n in range(PEERS_MAX):
            plane.sync.register_peer(f"tcp://peer{n}.example:1")
        await asyncio.sleep(0)
        plane.sync.close()

    asyncio.run(scene())
    assert not over.is_set()
    over.set()
