"""What a key may use, against plain models of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from select_service.access.api_key import Quotas
from select_service.access.quotas import KeyUse, TokenBucket
from select_service.errors import QuotaExceeded
from tests.exploring import explores

ROWS = 12


@given(
    rate=st.floats(0.1, 1000.0),
    burst=st.integers(1, 50),
    gaps=st.lists(st.floats(0.0, 2.0), max_size=60),
)
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(rate, burst, gaps):
    bucket, now, given_at = TokenBucket(Quotas(rate, burst), 0.0), 0.0, []
    for gap in gaps:
        now += gap
        while bucket.take(now):
            given_at.append(now)
        assert bucket.wait_s() >= 1
    for first, begin in enumerate(given_at):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= burst + (given_at[last] - begin) * rate + 1e-6


def test_a_bucket_gives_all_that_it_promises():
    bucket, n = TokenBucket(Quotas(10.0), 0.0), 0
    for tenth in range(101):
        while bucket.take(tenth / 10.0):
            n += 1
    assert n == pytest.approx(10 + 100, abs=1)


def test_who_waits_as_long_as_told_is_let_in():
    use, quotas = KeyUse("a"), Quotas(0.25, 1)
    use.ask(quotas, 0.0)
    with pytest.raises(QuotaExceeded, match=r"`a` may have 0.25 requests/s") as refused:
        use.ask(quotas, 1.0)
    assert refused.value.retry_after_s == 3
    use.ask(quotas, 4.0)


def test_a_new_rate_counts_at_once_and_gives_nothing_back_otherwise():
    use = KeyUse("a")
    use.ask(Quotas(1.0), 0.0)
    assert not use.take(Quotas(1.0), 0.0)
    assert use.take(Quotas(5.0), 0.0)
    assert use.take(Quotas(), 0.0)


def test_what_is_given_back_may_be_taken_again():
    use, quotas = KeyUse("a"), Quotas(0.25, 1)
    use.ask(quotas, 0.0)
    use.give_back(quotas)
    use.ask(quotas, 0.0)
    assert not use.take(quotas, 0.0)
    use.give_back(Quotas())
    assert not use.take(quotas, 0.0)


class ReservationsAreCounted(RuleBasedStateMachine):
    """Rows of a ledger of which some are booked with the key, and end."""

    def __init__(self):
        super().__init__()
        self.use, self.quotas = KeyUse("a"), Quotas(reservations=3)
        self.orders = np.full(ROWS, -1, np.int64)
        self.next = 0
        self.ours = set()

    def _book(self):
        row = int(np.flatnonzero(self.orders == -1)[0])
        self.orders[row] = self.next
        self.next += 1
        return row

    @precondition(lambda self: (self.orders == -1).any())
    @rule()
    def ours_comes(self):
        if len(self.ours) >= 3:
            with pytest.raises(QuotaExceeded), self.use.booking(self.quotas, self.orders):
                raise AssertionError
            return
        with self.use.booking(self.quotas, self.orders):
            row = self._book()
            self.use.booked(row, int(self.orders[row]))
        self.ours.add(row)

    @precondition(lambda self: (self.orders == -1).any())
    @rule()
    def one_of_somebody_else_comes(self):
        self._book()

    @rule(row=st.integers(0, ROWS - 1))
    def one_ends(self, row):
        self.orders[row] = -1
        self.ours.discard(row)

    @rule()
    def one_is_refused_while_it_is_made(self):
        if len(self.ours) < 3:
            with pytest.raises(ZeroDivisionError), self.use.booking(self.quotas, self.orders):
                raise ZeroDivisionError


ReservationsAreCounted.TestCase.settings = explores()
TestReservationsAreCounted = ReservationsAreCounted.TestCase


def test_reservations_that_wait_take_their_places():
    use, quotas, orders = KeyUse("a"), Quotas(reservations=1), np.zeros(1, np.int64)
    with (
        use.booking(quotas, orders),
        pytest.raises(QuotaExceeded),
        use.booking(quotas, orders),
    ):
        raise AssertionError
    assert use.may_book(quotas, orders)


def test_workers_are_counted_while_they_are_there():
    use, quotas, here = KeyUse("a"), Quotas(workers=2), {1, 2}
    use.register(quotas, 1, here.__contains__)
    use.register(quotas, 2, here.__contains__)
    use.register(quotas, 2, here.__contains__)
    with pytest.raises(QuotaExceeded, match="2 workers"):
        use.register(quotas, 3, here.__contains__)
    here.discard(1)
    use.register(quotas, 3, here.__contains__)
