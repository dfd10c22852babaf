"""Leases: never early, and released in turns when they are over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import Account, NewBooking
from select_service.core.load.ledger import RELEASE_WORK, Ledger
from select_service.core.load.reservations import Reservations
from select_service.core.touched import Touched

NO_HASHES = np.zeros(0, np.uint64)
TIMES = st.floats(0, 1e7)


def an_account():
    account = Account(PartitionKey("m", "t"), 16)
    account.ensure_slots(2)
    return account


@pytest.fixture
def account():
    return an_account()


def a_ledger(ttl_s=10.0):
    return Ledger(Reservations(ttl_s), Touched(lambda: None))


def booking(account, number=0, slot=0):
    return NewBooking(f"r{number}", account, Rank(slot, 0), slot, NO_HASHES, 0, 0, 0.0)


def names(bookings):
    return [each.reservation_id for each in bookings]


@given(now=TIMES, ttl_s=st.floats(0.001, 1e5), later=st.floats(0, 1e5))
@settings(max_examples=30)
def test_a_lease_ends_when_its_time_is_over_and_not_before(now, ttl_s, later):
    account, ledger = an_account(), a_ledger(ttl_s)
    ledger.book(booking(account), "client", now)
    is_over = now + later >= now + ttl_s
    assert len(ledger.held.overdue(now + later, 1)) == is_over
    assert names(ledger.held.overdue(now + ttl_s, 1)) == ["r0"]


def test_a_short_lease_is_forgotten_with_the_first_renewal(account):
    ledger = a_ledger()
    ledger.book(booking(account), "replica", 0.0, 2.0)
    assert names(ledger.held.overdue(2.0, 9)) == ["r0"]
    ledger.renew("r0", 1.0)
    assert ledger.held.overdue(10.0, 9) == []
    assert names(ledger.held.overdue(11.0, 9)) == ["r0"]
    ledger.free("r0", "client", 11.0)
    assert ledger.held.overdue(99.0, 9) == []


def test_without_a_time_to_live_nothing_ends(account):
    ledger = a_ledger(0.0)
    ledger.book(booking(account), "client", 0.0)
    ledger.renew("r0", 0.0)
    assert ledger.held.overdue(1e12, 9) == []


def test_what_is_looked_through_for_leases_is_looked_through_once(account, monkeypatch):
    """Until one may have ended again."""
    ledger, looks = a_ledger(), []
    monkeypatch.setattr(np, "flatnonzero", lambda found: looks.append(found) or found.nonzero()[0])
    for number in range(3):
        ledger.book(booking(account, number), "client", 0.0)
    for now in (9.0, 10.0):
        for number in range(3):
            ledger.renew(f"r{number}", now)
    for now in range(10, 20):
        assert ledger.held.overdue(float(now), 9) == []
    assert len(looks) == 1
    assert len(ledger.held.overdue(20.0, 9)) == 3


def test_each_turn_releases_its_share_in_order(account):
    ledger = a_ledger()
    for number in range(1000):
        ledger.book(booking(account, number, number % 2), "client", number / 100)
    ended = []
    while (turn := ledger.expire(1e6, 10 * RELEASE_WORK)).more:
        assert len(turn.ended) == 10
        ended += turn.ended
    assert ended == [f"r{n}" for n in range(len(ended))]
    assert len(ledger.held) == 0


def test_a_turn_that_ends_in_the_middle_of_a_release_says_that_more_is_due(account):
    ledger = a_ledger()
    for number in range(3):
        ledger.book(booking(account, number), "client", 0.0)
    turn = ledger.expire(1e6, RELEASE_WORK + 1)
    assert (len(turn.ended), turn.more) == (2, True)
    assert not ledger.expire(1e6, RELEASE_WORK + 1).more
