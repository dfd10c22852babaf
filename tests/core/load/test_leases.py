"""Tests of leases: never released early, and released in turns after their end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import RELEASE_WORK, Ledger
from select_service.core.load.new_reservation import LoadAccount, NewReservation
from select_service.core.load.reservations import Reservations

NO_HASHES = np.zeros(0, np.uint64)
TIMES = st.floats(0, 1e7)


def an_account():
    account = LoadAccount(PartitionKey("m", "t"), 16)
    account.ensure_slots(2)
    return account


@pytest.fixture
def account():
    return an_account()


def a_ledger(ttl_s=10.0):
    return Ledger(Reservations(ttl_s), DirtyPartitions(lambda: None))


def booking(account, number=0, slot=0):
    return NewReservation(f"r{number}", account, Rank(slot, 0), slot, NO_HASHES, 0, 0, 0.0)


def names(bookings):
    return [each.reservation_id for each in bookings]


@given(now=TIMES, ttl_s=st.floats(0.001, 1e5), later=st.floats(0, 1e5))
@settings(max_examples=30)
def test_a_lease_ends_when_its_time_is_over_and_not_before(now, ttl_s, later):
    account, ledger = an_account(), a_ledger(ttl_s)
    ledger.book(booking(account), "client", now)
    is_over = now + later >= now + ttl_s
    assert len(ledger.reservations.find_overdue(now + later, 1)) == is_over
    assert names(ledger.reservations.find_overdue(now + ttl_s, 1)) == ["r0"]


def test_a_short_lease_is_forgotten_with_the_first_renewal(account):
    ledger = a_ledger()
    ledger.book(booking(account), "replica", 0.0, 2.0)
    assert names(ledger.reservations.find_overdue(2.0, 9)) == ["r0"]
    ledger.renew_lease("r0", 1.0)
    assert ledger.reservations.find_overdue(10.0, 9) == []
    assert names(ledger.reservations.find_overdue(11.0, 9)) == ["r0"]
    ledger.free_by_id("r0", "client", 11.0)
    assert ledger.reservations.find_overdue(99.0, 9) == []


def test_without_a_time_to_live_nothing_ends(account):
    ledger = a_ledger(0.0)
    ledger.book(booking(account), "client", 0.0)
    ledger.renew_lease("r0", 0.0)
    assert ledger.reservations.find_overdue(1e12, 9) == []


def test_reservations_are_scanned_once_for_expired_leases(account, monkeypatch):
    """Check that one scan suffices until a lease may have ended again."""
    ledger, looks = a_ledger(), []
    monkeypatch.setattr(np, "flatnonzero", lambda found: looks.append(found) or found.nonzero()[0])
    for number in range(3):
        ledger.book(booking(account, number), "client", 0.0)
    for now in (9.0, 10.0):
        for number in range(3):
            ledger.renew_lease(f"r{number}", now)
    for now in range(10, 20):
        assert ledger.reservations.find_overdue(float(now), 9) == []
    assert len(looks) == 1
    assert len(ledger.reservations.find_overdue(20.0, 9)) == 3


def test_each_turn_releases_its_share_in_order(account):
    ledger = a_ledger()
    for number in range(1000):
        ledger.book(booking(account, number, number % 2), "client", number / 100)
    ended = []
    while (turn := ledger.expire_leases(1e6, 10 * RELEASE_WORK)).has_more:
        assert len(turn.ended_ids) == 10
        ended += turn.ended_ids
    assert ended == [f"r{n}" for n in range(len(ended))]
    assert len(ledger.reservations) == 0


def test_a_turn_that_ends_within_a_release_reports_more_work(account):
    ledger = a_ledger()
    for number in range(3):
        ledger.book(booking(account, number), "client", 0.0)
    turn = ledger.expire_leases(1e6, RELEASE_WORK + 1)
    assert (len(turn.ended_ids), turn.has_more) == (2, True)
    assert not ledger.expire_leases(1e6, RELEASE_WORK + 1).has_more
