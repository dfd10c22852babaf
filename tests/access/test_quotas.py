"""What a key may use, against plain models of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.access.api_key import Quotas
from select_service.access.quotas import KeyUse, TokenBucket
from select_service.errors import QuotaExceeded
from tests.builders import a_reservation, a_selector, a_worker


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


def test_reservations_are_counted_until_they_end():
    use, quotas, selector = KeyUse("a"), Quotas(reservations=2), a_selector(ttl_s=60.0)
    selector.register(a_worker(1))

    def booked(name, now):
        with use.booking(quotas):
            selector.reserve(a_reservation(name), now)
            use.booked(selector.held.memory, selector.held.get(name).row)

    booked("x", 0.0)
    booked("y", 50.0)
    with pytest.raises(QuotaExceeded, match="2 live reservations"):
        booked("z", 50.0)
    selector.reserve(a_reservation("of somebody else"), 50.0)
    selector.free("y", 50.0)
    booked("z", 50.0)
    assert not use.may_book(quotas)
    assert selector.expire(60.0).ended == ["x"]
    booked("x", 60.0)
    selector.free("of somebody else", 60.0)
    assert not use.may_book(quotas)


def test_what_is_refused_while_it_is_made_takes_no_place():
    use, quotas = KeyUse("a"), Quotas(reservations=1)
    with pytest.raises(ZeroDivisionError), use.booking(quotas):
        raise ZeroDivisionError
    assert use.may_book(quotas)


def test_reservations_that_wait_take_their_places():
    use, quotas = KeyUse("a"), Quotas(reservations=1)
    with use.booking(quotas), pytest.raises(QuotaExceeded), use.booking(quotas):
        raise AssertionError
    assert use.may_book(quotas)


def test_workers_are_counted_while_they_are_there():
    use, quotas, here = KeyUse("a"), Quotas(workers=2), {1, 2}
    use.register(quotas, 1, here.__contains__)
    use.register(quotas, 2, here.__contains__)
    use.register(quotas, 2, here.__contains__)
    with pytest.raises(QuotaExceeded, match="2 workers"):
        use.register(quotas, 3, here.__contains__)
    here.discard(1)
    use.register(quotas, 3, here.__contains__)
