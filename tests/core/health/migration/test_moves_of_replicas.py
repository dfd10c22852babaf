"""Who has admitted a reservation moves it; other replicas follow the end and the new booking."""

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
    """A scene whose replica speaks, and a peer."""
    scene, peer = Scene(kv_layout=SMALL), a_selector(seed=1)
    scene.said = []
    scene.selector.followers.replicas.start_sending(scene.said.append)
    for worker_id in (1, 2, 3):
        peer.register_worker(a_worker(worker_id))
    return scene, peer


def hear(peer, events):
    """As bytes, so that what is said survives them."""
    encode = LoadEventEncoder().encode_event
    for event in events:
        peer.followers.replicas.apply_event(decode_event(encode(event)), 1.0)


def held(selector):
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
    hear(peer, scene.said)
    scene.said.clear()
    scene.drain(cause=cause)
    assert {type(event) for event in scene.said} >= {ReservationFreed, ReservationAdmitted}
    hear(peer, scene.said)
    assert held(peer) == held(scene.selector)
    assert all(
        b.origin == scene.selector.followers.replicas.router_id for b in peer.ledger.reservations
    )
    assert not peer.followers.replicas.unconfirmed
    peer.check_invariants()
    scene.check()


def test_a_peer_that_misses_the_end_moves_the_booking_all_the_same(pair):
    scene, peer = pair
    scene.reserve("a", tokens=40)
    hear(peer, scene.said)
    scene.said.clear()
    scene.drain()
    hear(peer, [event for event in scene.said if not isinstance(event, ReservationFreed)])
    assert held(peer) == held(scene.selector)
    assert len(peer.ledger.reservations) == 1


def test_a_peer_hears_that_the_prefill_of_a_moved_reservation_is_over(pair):
    scene, peer = pair
    scene.reserve("a", tokens=4000)
    scene.selector.complete_prefill("a", 0.5)
    hear(peer, scene.said)
    scene.said.clear()
    scene.drain()  # its cache is carried over
    assert [type(event) for event in scene.said] == [
        ReservationFreed,
        ReservationAdmitted,
        PrefillCompleted,
    ]
    hear(peer, scene.said)
    assert held(peer) == held(scene.selector)


def test_a_peer_does_not_move_what_it_follows(pair):
    scene, _ = pair
    theirs = Scene(seed=1)
    scene.reserve("a")
    hear(theirs.selector, scene.said)
    theirs.drain()
    assert theirs.rank_of("a") == Rank(1, 0)
    assert not theirs.events()


def test_what_is_given_up_ends_at_peers_too(pair):
    scene, peer = pair
    scene.reserve("a")
    hear(peer, scene.said)
    scene.said.clear()
    key = scene.partition.key
    scene.mover.release_reservations(key, Rank(1, 0))
    scene.turns()
    hear(peer, scene.said)
    assert not held(peer)


def test_a_peer_does_not_take_moves_for_prefills_whose_end_nobody_reported(pair):
    scene, peer = pair
    partition = peer.fleet.partitions[scene.partition.key]
    for name, may_move in (("moves", True), ("gone", False), ("freed", True)):
        scene.reserve(name, tokens=40, migratable=may_move)
    scene.drain(cause=CheckKind.TIMEOUT)
    scene.mover.release_reservations(scene.partition.key, Rank(1, 0))
    scene.turns()
    hear(peer, scene.said)
    assert set(held(peer)) == {"moves", "freed"}
    assert partition.load.reported_share == 1.0 == scene.partition.load.reported_share
    scene.said.clear()
    scene.selector.free_reservation("freed", 1.0)
    hear(peer, scene.said)
    assert partition.load.reported_share == scene.partition.load.reported_share < 1.0
