"""Tests of the quotas of a key, against plain models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.auth.api_key import NO_QUOTAS, ApiKey, Quotas
from select_service.auth.limit_shares import Holder, SharedLimit, ShareRules
from select_service.auth.quota_usage import (
    BookingLimits,
    KeyBookings,
    KeyUsage,
    TenantBookings,
    TokenBucket,
)
from select_service.auth.roles import CALLER
from select_service.base.errors import CapacityExceeded, QuotaExceeded
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
        while bucket.take_token(now):
            given_at.append(now)
        assert bucket.seconds_to_wait() >= 1
    for first, begin in enumerate(given_at):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= burst + (given_at[last] - begin) * rate + 1e-6


def test_a_bucket_gives_all_that_it_promises():
    bucket, n = TokenBucket(Quotas(10.0), 0.0), 0
    for tenth in range(101):
        while bucket.take_token(tenth / 10.0):
            n += 1
    assert n == pytest.approx(10 + 100, abs=1)


def test_a_caller_that_waits_for_retry_after_is_admitted():
    use, quotas = KeyUsage("a"), Quotas(0.25, 1)
    use.charge_request(quotas, 0.0)
    with pytest.raises(QuotaExceeded, match=r"`a` exceeds its quota of 0.25 requests/s") as refused:
        use.charge_request(quotas, 1.0)
    assert refused.value.retry_after_s == 3
    use.charge_request(quotas, 4.0)


def test_a_new_rate_counts_at_once_and_gives_nothing_back_otherwise():
    use = KeyUsage("a")
    use.charge_request(Quotas(1.0), 0.0)
    assert not use.take_request(Quotas(1.0), 0.0)
    assert use.take_request(Quotas(5.0), 0.0)
    assert use.take_request(Quotas(), 0.0)


def test_a_returned_request_may_be_taken_again():
    use, quotas = KeyUsage("a"), Quotas(0.25, 1)
    use.charge_request(quotas, 0.0)
    use.return_request(quotas)
    use.charge_request(quotas, 0.0)
    assert not use.take_request(quotas, 0.0)
    use.return_request(Quotas())
    assert not use.take_request(quotas, 0.0)


def bookings_of(selector, quotas=NO_QUOTAS, tenants=None):
    """Return the bookings of a key in a ledger of at most 8 reservations and 400 blocks."""
    key = ApiKey("a", b"", frozenset({CALLER}), tenants, quotas)
    limits = BookingLimits(
        SharedLimit("reservations", 8, "live reservations", "free some"),
        SharedLimit("reserved_blocks", 400, "blocks", "free some"),
        selector.ledger.reservations.memory,
        selector.ledger.reservations.sums,
    )
    each = {name: TenantBookings(name, limits, 4, 200) for name in tenants or ()}
    return KeyBookings(KeyUsage("a"), Holder(key, ShareRules()), limits, each)


def book(selector, bookings, name, now=0.0, tenant="default", **fields):
    with bookings.hold_capacity(tenant):
        selector.reserve(a_reservation(name, tenant_id=tenant, **fields), now)
        bookings.count_booking(selector.ledger.reservations.get_reservation(name).row)


def test_reservations_are_counted_until_they_end():
    selector = a_selector(ttl_s=60.0)
    selector.register_worker(a_worker(1))
    bookings = bookings_of(selector, Quotas(reservations=2))
    book(selector, bookings, "x", 0.0)
    book(selector, bookings, "y", 50.0)
    with pytest.raises(QuotaExceeded, match="may use 2 of 8 live reservations and uses 2"):
        book(selector, bookings, "z", 50.0)
    selector.reserve(a_reservation("of somebody else"), 50.0)
    selector.free_reservation("y", 50.0)
    book(selector, bookings, "z", 50.0)
    assert not bookings.may_book()
    assert selector.expire_reservations(60.0).ended_ids == ["x"]
    book(selector, bookings, "x", 60.0)
    selector.free_reservation("of somebody else", 60.0)
    assert not bookings.may_book()


def test_a_booking_that_fails_uses_no_quota():
    bookings = bookings_of(a_selector(), Quotas(reservations=1))
    with pytest.raises(ZeroDivisionError), bookings.hold_capacity("default"):
        raise ZeroDivisionError
    assert bookings.may_book()


def test_reservations_that_wait_take_their_places():
    bookings = bookings_of(a_selector(), Quotas(reservations=1))
    with (
        bookings.hold_capacity("default"),
        pytest.raises(QuotaExceeded),
        bookings.hold_capacity("default"),
    ):
        raise AssertionError
    assert bookings.may_book()


@pytest.mark.parametrize(("tenants", "share"), [(None, 7), (frozenset({"default"}), 2)])
def test_a_key_without_a_quota_has_a_share(tenants, share):
    selector = a_selector()
    selector.register_worker(a_worker(1))
    bookings = bookings_of(selector, tenants=tenants)
    for n in range(share):
        book(selector, bookings, str(n))
    with pytest.raises(QuotaExceeded) as refused:
        book(selector, bookings, "more")
    assert refused.value.details == {
        "limit": "reservations",
        "of": "key",
        "share": share,
        "used": share,
    }
    assert "`quotas.reservations` of the key" in str(refused.value)


def test_blocks_are_counted_too():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    bookings = bookings_of(selector, Quotas(reserved_blocks=3))
    hashes = {"sequence_hashes": [1, 2], "isl_tokens": 8}
    book(selector, bookings, "x", **hashes)
    book(selector, bookings, "y", **hashes)
    with pytest.raises(QuotaExceeded, match=r"reserved_blocks: the key `a` may use 3 .* uses 4"):
        book(selector, bookings, "z", **hashes)
    selector.free_reservation("x", 0.0)
    assert bookings.may_book()


def test_keys_of_one_tenant_have_a_share_together_of_which_all_that_is_booked_for_it_takes():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.register_worker(a_worker(2, tenant_id="other"))
    bookings = bookings_of(selector, Quotas(reservations=8), frozenset({"default", "other"}))
    selector.reserve(a_reservation("of nobody's key"), 0.0)
    for n in range(3):
        book(selector, bookings, str(n))
    assert not bookings.may_book()
    with pytest.raises(
        QuotaExceeded, match=r"a tenant of the key `a`, over all keys .* may use 4 of 8"
    ):
        book(selector, bookings, "more")
    book(selector, bookings, "elsewhere", tenant="other", worker_id=2)
    selector.free_reservation("of nobody's key", 0.0)
    assert bookings.may_book()
    book(selector, bookings, "more")


def test_workers_count_while_they_are_registered():
    use, here = KeyUsage("a"), {1, 2}
    use.note_worker(1)
    use.note_worker(2)
    use.note_worker(3)
    assert set(use.registered_worker_ids(here.__contains__)) == {1, 2}
    here.add(3)
    assert set(use.registered_worker_ids(here.__contains__)) == {1, 2}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)), max_size=60))
def test_a_limit_is_never_passed_and_never_taken_from_others(steps):
    """The reference is a plain table; `b` has both tenants, `c` has no tenants."""
    limit, rules = SharedLimit("dumps", 12, "dumps", "wait"), ShareRules(0.25, 0.4, 0.75)
    tenants = {"a": frozenset("t"), "b": frozenset("tu"), "c": None, "d": frozenset("u")}
    holders = {
        name: Holder(ApiKey(name, b"", frozenset(), of), rules) for name, of in tenants.items()
    }
    used = dict.fromkeys(tenants, 0)
    for name, n in steps:
        if n < 0:
            n = min(-n, used[name])
            limit.give_back(holders[name], n)
            used[name] -= n
            continue
        fits = used[name] + n <= (9 if name == "c" else 3) and sum(used.values()) + n <= 12
        for tenant in tenants[name] or ():
            of_tenant = sum(used[each] for each, of in tenants.items() if of and tenant in of)
            fits &= of_tenant + n <= 4
        try:
            limit.take(holders[name], n)
        except (QuotaExceeded, CapacityExceeded):
            assert not fits
        else:
            assert fits
            used[name] += n
        assert limit.used == sum(used.values())
        assert limit.by_key == {name: n for name, n in used.items() if n}
        by_tenant = {"t": used["a"] + used["b"], "u": used["b"] + used["d"]}
        assert limit.by_tenant == {tenant: n for tenant, n in by_tenant.items() if n}


def test_without_keys_there_are_no_shares():
    limit = SharedLimit("dumps", 2, "dumps", "wait")
    limit.take()
    limit.take()
    with pytest.raises(CapacityExceeded, match="dumps: all 2 dumps are in use"):
        limit.take()
    limit.give_back()
    limit.take()
    assert not limit.by_key
