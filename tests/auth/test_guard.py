"""Tests of allowed and refused callers, and of the counts of refusals."""

import pytest

from select_service.auth.api_key import ApiKey, Quotas, hash_secret
from select_service.auth.guard import ANONYMOUS_GRANT, UNRESTRICTED_GRANT, Guard
from select_service.auth.roles import ANYONE, CALLER, OPERATOR, service_wide, tenant_scoped
from select_service.base.errors import Forbidden, Unauthenticated
from tests.builders.keys import bearer, secret

FOR_CALLERS = tenant_scoped(CALLER)


def a_key(name, *roles, tenants=None, **quotas):
    digest = hash_secret(secret(name).encode())
    return ApiKey(name, digest, frozenset(roles), tenants, Quotas(**quotas))


def admitted(guard, *values, may_call=FOR_CALLERS):
    headers = [(b"host", b"x"), *((b"authorization", value) for value in values)]
    grant = guard.authenticate("/select", may_call, headers)
    guard.authorize("/select", may_call, grant, 0.0)
    return grant


@pytest.fixture
def guard():
    return Guard(
        [a_key("web", CALLER), a_key("ops", OPERATOR), a_key("red", CALLER, tenants={"r"})]
    )


def test_without_keys_every_caller_is_admitted():
    assert admitted(Guard()) == UNRESTRICTED_GRANT
    assert admitted(Guard(), b"nonsense") == UNRESTRICTED_GRANT


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_a_registered_key_is_admitted(guard, scheme):
    grant = admitted(guard, f"{scheme} {secret('web')}".encode())
    assert grant.name == "web"
    assert grant.has_any_role(CALLER)
    assert not grant.has_any_role(OPERATOR)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (secret("web").encode(),),
        (b"Basic " + secret("web").encode(),),
        (b"Bearer\t" + secret("web").encode(),),
        (b"Bearer " + secret("web").encode()[:-1],),
        (b"Bearer " + secret("web").encode() + b"x",),
        (b"Bearer " + secret("web").encode() + b", Bearer x",),
        (b"Bearer " + secret("web").upper().encode(),),
        (b"Bearer " + secret("nobody").encode(),),
        (b"Bearer " + b"x" * 100_000,),
        (bearer("web").encode(), bearer("web").encode()),
        (b"Bearer x", bearer("web").encode()),
        (bearer("web").encode(), b""),
    ],
)
def test_an_unknown_key_is_refused(guard, values):
    with pytest.raises(Unauthenticated):
        admitted(guard, *values)
    assert guard.refusals == {("/select", "none", "unauthenticated"): 1}


def test_a_key_without_the_role_is_refused_by_name(guard):
    with pytest.raises(Forbidden, match=r"`ops`.*role caller"):
        admitted(guard, bearer("ops").encode())
    assert guard.refusals == {("/select", "ops", "forbidden"): 1}


def test_a_key_bound_to_tenants_may_not_call_service_wide_routes(guard):
    assert admitted(guard, bearer("red").encode()).tenants == {"r"}
    with pytest.raises(Forbidden, match="bound to tenants"):
        admitted(guard, bearer("red").encode(), may_call=service_wide(CALLER))


def test_open_routes_admit_missing_and_wrong_keys(guard):
    assert admitted(guard, may_call=ANYONE) == ANONYMOUS_GRANT
    assert admitted(guard, b"Bearer wrong", may_call=ANYONE) == ANONYMOUS_GRANT
    assert admitted(guard, bearer("web").encode(), may_call=ANYONE).name == "web"
    assert not guard.refusals


def test_a_key_that_was_taken_out_is_unknown_at_once(guard):
    assert guard.replace_keys([a_key("ops", OPERATOR)])
    assert guard.generation == 1
    with pytest.raises(Unauthenticated):
        admitted(guard, bearer("web").encode())


def test_reading_the_same_keys_again_changes_nothing(guard):
    guard.note_fault("it is broken")
    assert guard.fault == "it is broken"
    same = [a_key("web", CALLER), a_key("ops", OPERATOR), a_key("red", CALLER, tenants={"r"})]
    assert not guard.replace_keys(same)
    assert (guard.generation, guard.fault, guard.failures) == (0, None, 1)
