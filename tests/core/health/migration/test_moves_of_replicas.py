"""Tests of moves between replicas: the admitting replica moves a reservation, others follow."""

import pytest

from select_service.core.health.health_kinds import CheckKind
from select_service.core.identity import Rank
from select_service.core.replication.load_events import (
    LoadEventEncoder,
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
    decode_event,
)
from tests.builders import a_selector, a_worker
from tests.core.health.migration.scenes import Scene
from tests.core.health.migration.test_mover import SMALL


@pytest.fixture
def pair():
    """Return a scene with a sending replica, and a peer."""
    scene, peer = Scene(kv_layout=SMALL), a_selector(seed=1)
    scene.said = []
    scene.selector.followers.replicas.start_sending(scene.said.append)
    for worker_id in (1, 2, 3):
        peer.register_worker(a_worker(worker_id))
    return scene, peer


def apply_encoded(peer, events):
    """Apply the events in their encoded form, so that encoding is checked as well."""
    encode = LoadEventEncoder().encode_event
    for event in events:
        peer.followers.replicas.apply_event(decode_event(encode(event)), 1.0)


def list_bookings(selector):
    return {
        b.reservation_id: (b.rank, b.prefill_tokens, b.is_prefilling, b.prompt_blocks)
        for b in selector.ledger.reservations
    }


@pytest.mark.parametrize("cause", [CheckKind.TIMEOUT, CheckKind.OPERATOR])
def test_a_peer_follows_moves(pair, cause):
    scene, peer = pair
    for number in range(10):
        scene.reserve(f"r{number}", tokens=40 + 4 * number)
    scene.selector.complete_prefill("r3", 0.5)
    apply_encoded(peer, scene.said)
    scene.said.clear()
    scene.drain(cause=cause)
    assert {type(event) for event in scene.said} >= {ReservationFreed, ReservationAdmitted}
    apply_encoded(peer, scene.said)
    assert list_bookings(peer) == list_bookings(scene.selector)
    assert all(
        b.origin == scene.selector.followers.replicas.router_id for b in peer.ledger.reservations
    )
    assert not peer.followers.replicas.unconfirmed
    peer.check_invariants()
    scene.check()


def test_a_peer_that_misses_the_end_moves_the_booking_all_the_same(pair):
    scene, peer = pair
    scene.reserve("a", tokens=40)
    apply_encoded(peer, scene.said)
    scene.said.clear()
    scene.drain()
    apply_encoded(peer, [event for event in scene.said if not isinstance(event, ReservationFreed)])
    assert list_bookings(peer) == list_bookings(scene.selector)
    assert len(peer.ledger.reservations) == 1


def test_a_peer_gets_the_prefill_end_of_a_moved_reservation(pair):
    scene, peer = pair
    scene.reserve("a", tokens=4000)
    scene.selector.complete_prefill("a", 0.5)
    apply_encoded(peer, scene.said)
    scene.said.clear()
    scene.drain()  # the cache is transferred
    assert [type(event) for event in scene.said] == [
        ReservationFreed,
        ReservationAdmitted,
        PrefillCompleted,
    ]
    apply_encoded(peer, scene.said)
    assert list_bookings(peer) == list_bookings(scene.selector)


def test_a_peer_does_not_move_reservations_of_others(pair):
    scene, _ = pair
    theirs = Scene(seed=1)
    scene.reserve("a")
    apply_encoded(theirs.selector, scene.said)
    theirs.drain()
    assert theirs.rank_of("a") == Rank(1, 0)
    assert not theirs.events()


def test_given_up_reservations_end_at_peers_too(pair):
    scene, peer = pair
    scene.reserve("a")
    apply_encoded(peer, scene.said)
    scene.said.clear()
    key = scene.partition.key
    scene.mover.release_reservations(key, Rank(1, 0))
    scene.turns()
    apply_encoded(peer, scene.said)
    assert not list_bookings(peer)


def test_a_peer_does_not_take_moves_for_unreported_prefill_ends(pair):
    scene, peer = pair
    partition = peer.fleet.partitions[scene.partition.key]
    for name, may_move in (("moves", True), ("gone", False), ("freed", True)):
        scene.reserve(name, tokens=40, migratable=may_move)
    scene.drain(cause=CheckKind.TIMEOUT)
    scene.mover.release_reservations(scene.partition.key, Rank(1, 0))
    scene.turns()
    apply_encoded(peer, scene.said)
    assert set(list_bookings(peer)) == {"moves", "freed"}
    assert partition.load.reported_share == 1.0 == scene.partition.load.reported_share
    scene.said.clear()
    scene.selector.free_reservation("freed", 1.0)
    apply_encoded(peer, scene.said)
    assert partition.load.reported_share == scene.partition.load.reported_share < 1.0
