"""Leases: never early, at most a grain late; no dictionary of bookings becomes large."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import Account, Booking
from select_service.core.load.leases import GRAIN_S, Leases
from select_service.core.load.ledger import RELEASE_WORK, Ledger
from select_service.core.load.reservations import _SHARDS, _SHELF_ORDERS, Reservations
from select_service.core.touched import Touched

NO_HASHES = np.zeros(0, np.uint64)
TIMES = st.floats(0, 1e7)


@pytest.fixture
def account():
    account = Account(PartitionKey("m", "t"), 16)
    account.ensure_slots(2)
    return account


def booking(account, number=0, slot=0):
    return Booking(f"r{number}", account, Rank(slot, 0), slot, NO_HASHES, 0, 0, 0.0, order=number)


@given(now=TIMES, ttl_s=st.floats(0.001, 1e5), later=st.floats(0, 1e5))
def test_a_lease_ends_not_early_and_hardly_late(now, ttl_s, later):
    leases, lent = Leases(ttl_s), booking(None)
    leases.begin(lent, now)
    end = now + ttl_s
    if leases.overdue(now + later, 1):
        assert now + later >= end
    else:
        assert now + later < end + GRAIN_S
    assert leases.overdue(end + GRAIN_S, 1) == [lent]


def test_a_short_lease_is_forgotten_with_the_first_renewal(account):
    leases, lent = Leases(10.0), booking(account)
    leases.begin(lent, 0.0, 2.0)
    assert leases.overdue(2.0, 9) == [lent]
    leases.renew(lent, 1.0)
    assert leases.overdue(10.0, 9) == []
    assert leases.overdue(11.0, 9) == [lent]
    leases.forget(lent)
    assert leases.overdue(99.0, 9) == []


def test_without_a_time_to_live_nothing_ends(account):
    leases, lent = Leases(0.0), booking(account)
    leases.begin(lent, 0.0, 2.0)
    leases.renew(lent, 1.0)
    assert leases.overdue(1e12, 9) == []


def test_bookings_are_not_looked_at_by_the_garbage_collector(account):
    """Nothing may lead back from a booking to itself, then."""

    assert not gc.is_tracked(booking(account))
    ledger = Ledger(Reservations(10.0), Touched(lambda: None))
    for number in range(100):
        ledger.book(booking(account, number), "client", 0.0)
    assert not any(gc.is_tracked(held) for held in account.bookings)


def test_no_dictionary_of_bookings_becomes_large(account):
    held = Reservations(10.0)
    for number in range(20_000):
        held.add(booking(account, number), number / 1000)
    assert max(map(len, held._by_id)) < 2 * 20_000 / _SHARDS
    shelves = held._by_order._shelves
    assert max(map(len, shelves.values())) == _SHELF_ORDERS
    assert len(held.overdue(1e9, 10**6)) == 20_000


def test_each_turn_releases_its_share_in_order(account):
    ledger = Ledger(Reservations(10.0), Touched(lambda: None))
    for number in range(1000):
        ledger.book(booking(account, number, number % 2), "client", number / 100)
    ended = []
    while (turn := ledger.expire(1e6, 10 * RELEASE_WORK)).more:
        assert len(turn.ended) == 10
        ended += turn.ended
    assert [b.reservation_id for b in ended] == [f"r{n}" for n in range(len(ended))]
    assert len(ledger.held) == 0


def test_a_turn_that_ends_in_the_middle_of_a_release_says_that_more_is_due(account):
    ledger = Ledger(Reservations(10.0), Touched(lambda: None))
    for number in range(3):
        ledger.book(booking(account, number), "client", 0.0)
    turn = ledger.expire(1e6, RELEASE_WORK + 1)
    assert (len(turn.ended), turn.more) == (2, True)
    assert not ledger.expire(1e6, RELEASE_WORK + 1).more
