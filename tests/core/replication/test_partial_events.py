"""Tests of replicas that agree after only a part of another replica's events arrived."""

import pytest

from select_service.core.identity import Rank
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.replication.load_events import (
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.repair import SAME_AGE_S
from select_service.core.replication.replica_liveness import LIVENESS_TIMEOUT_S
from tests.builders import a_reservation
from tests.core.replication.test_replica_state import (
    RANK,
    a_replica,
    an_event,
    compare,
    list_bookings,
    repair,
)

DEAD, OTHER = 7, 9
LATER = 100.0
"""Time at which the admitting replica has been silent for too long to own its reservations."""
THERE = Rank(2, 1)


def apply_events(selector, now, *events):
    for event in events:
        assert selector.followers.replicas.apply_event(event, now) is None


def the_move(to=THERE):
    return an_event(ReservationFreed, by_caller=False), an_event(ReservationAdmitted, rank=to)


def differ(a, b, now):
    """Return whether either replica finds a difference in the digest of the other."""
    seen = {}
    for here, there in ((a, b), (b, a)):
        compare(here, there, agreement := PeerAgreement(), now)
        seen |= agreement.differences
    return bool(seen)


def repair_both(a, b, now):
    """Repair each replica from the other's list; return whether both are equal now."""
    repair(a, b, now)
    repair(b, a, now)
    return list_bookings(a) == list_bookings(b) and not differ(a, b, now)


@pytest.mark.parametrize("to", [THERE, Rank(1, 1)])
@pytest.mark.parametrize("moved_at", [5.0, SAME_AGE_S / 2])
def test_a_move_by_a_dead_process_that_one_replica_missed(to, moved_at):
    """Check that the later booking counts and, at equal ages, the booking on the lower rank."""
    a, b = a_replica(1), a_replica(2)
    for selector in (a, b):
        apply_events(selector, 0.0, an_event(ReservationAdmitted), an_event(PrefillCompleted))
    apply_events(a, moved_at, *the_move(to))
    assert differ(a, b, LATER)
    assert repair_both(a, b, LATER)
    assert list_bookings(b) == {"r": (to, 8) if moved_at > SAME_AGE_S else (RANK, 0)}


def test_the_later_booking_counts_in_any_order_of_repairs():
    a, b = a_replica(1), a_replica(2)
    for selector in (a, b):
        apply_events(selector, 0.0, an_event(ReservationAdmitted))
    apply_events(b, 5.0, *the_move())
    assert repair(b, a, LATER).changed == 0
    assert repair(a, b, LATER).changed == 1
    assert list_bookings(a) == list_bookings(b) == {"r": (THERE, 8)}
    assert repair(a, b, LATER + 1.0).changed == repair(b, a, LATER + 1.0).changed == 0


@pytest.mark.parametrize("changed", [{"prefill_tokens_hint": 4}, {"work": 3}])
def test_another_load_on_the_same_rank_of_a_process_that_died(changed):
    a, b = a_replica(1), a_replica(2)
    apply_events(a, 0.0, an_event(ReservationAdmitted))
    apply_events(b, 0.0, an_event(ReservationAdmitted, **changed))
    assert repair_both(a, b, LATER)
    assert [booking.prefill_work for booking in a.ledger.reservations] == [
        booking.prefill_work for booking in b.ledger.reservations
    ]


def test_a_live_owner_decides_alone():
    a, b = a_replica(1), a_replica(2)
    for selector in (a, b):
        apply_events(selector, 0.0, an_event(ReservationAdmitted))
    apply_events(a, 5.0, *the_move())
    assert repair(b, a, LIVENESS_TIMEOUT_S - 1.0).changed == 0
    assert list_bookings(b) == {"r": (RANK, 8)}


@pytest.mark.parametrize("rank", [RANK, THERE])
def test_one_id_of_two_that_died_is_that_of_the_smaller_router_id(rank):
    a, b = a_replica(1), a_replica(2)
    apply_events(a, 0.0, an_event(ReservationAdmitted, rank=rank, router_id=OTHER))
    apply_events(b, 0.0, an_event(ReservationAdmitted))
    assert repair_both(a, b, LATER)
    assert {booking.origin for booking in (*a.ledger.reservations, *b.ledger.reservations)} == {
        DEAD
    }


@pytest.mark.parametrize("rank", [RANK, THERE])
def test_an_id_of_a_dead_replica_belongs_to_the_live_one_that_admits_it(rank):
    a, b = a_replica(1), a_replica(2)
    apply_events(b, 0.0, an_event(ReservationAdmitted, rank=rank))
    a.reserve(a_reservation("r", 1), 50.0)  # this replica has missed the first admission
    assert repair_both(a, b, LATER)
    assert [booking.origin for booking in b.ledger.reservations] == [a.followers.replicas.router_id]
    assert repair(b, a, LATER + 1.0).changed == 0


def test_the_end_of_a_prefill_without_tokens_is_a_difference_and_sent_again():
    """Check a prompt cached as a whole: the sums of tokens are equal with or without the prompt."""
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1, effective_prefill_tokens=0), 0.0)
    apply_events(b, 0.0, *a.said)
    assert not differ(a, b, 0.5)
    b.complete_prefill("r", 1.0)  # a misses this event
    assert differ(a, b, 2.0)
    b.said.clear()
    assert repair(b, a, 3.0).repeated == 1
    apply_events(a, 3.0, *b.said)
    assert not differ(a, b, 4.0)


def test_a_moved_booking_lives_on_although_only_its_end_arrived():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)
    apply_events(b, 0.0, *a.said)
    a.said.clear()
    a.ledger.move(
        a.ledger.reservations.get_reservation("r"), MoveTarget(THERE, a_slot(a, THERE)), 5.0
    )
    freed, _ = a.said
    apply_events(b, 5.1, freed)
    b.said.clear()
    assert repair(b, a, 9.0).added == 1
    assert (b.said, list_bookings(b)) == ([], list_bookings(a))


def a_slot(selector, rank):
    (partition,) = selector.fleet.partitions.values()
    return partition.table.find_slot(rank)
