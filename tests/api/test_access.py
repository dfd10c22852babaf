"""Tests of every route with every kind of key."""

import pytest

from select_service.auth.roles import ROLES
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.routes import ROUTES, path_of

OPEN = {"health", "ready", "openapi", "docs", "docs_file", "page", "page_file"}
ENDLESS = {"/migrations/stream", "/live"}
SHOWN = (*ROLES, "bound-caller", "bound-operator", None, "unknown")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    keys = [entry(role, role) for role in ROLES]
    keys += [entry(f"bound-{role}", role, tenants=["t"]) for role in ("caller", "operator")]
    path = keys_file(tmp_path_factory.mktemp("keys"), *keys)
    with Api("--api-keys-file", str(path)) as api:
        yield api


def expected(route, shown):
    """Return the error code of the rejection; None means access."""
    if not route.may_call.roles:
        return None
    if shown in (None, "unknown"):
        return "unauthenticated"
    if shown.removeprefix("bound-") not in route.may_call.roles:
        return "forbidden"
    return None if not shown.startswith("bound-") or route.may_call.is_scoped else "forbidden"


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)
def test_only_permitted_keys_get_past_the_guard(guarded, route, shown):
    headers = {} if shown is None else {"authorization": bearer(shown)}
    method = "HEAD" if route.path in ENDLESS else route.method
    answer = guarded.call(method, path_of(route), None, **headers)
    code = expected(route, shown)
    if code is None:
        assert answer.status != 401
        assert answer.status != 403 or "is not valid for the tenant" in answer.body["error"]
        return
    assert answer.status == {"unauthenticated": 401, "forbidden": 403}[code]
    assert (answer.headers.get("www-authenticate") == "Bearer") == (answer.status == 401)
    if method != "HEAD":
        assert answer.body["code"] == code


def test_only_probes_and_the_document_are_open():
    assert {route.operation_id for route in ROUTES if not route.may_call.roles} == OPEN


def test_only_the_head_of_a_rejected_request_is_read(guarded):
    assert guarded.post("/workers", b"{", authorization=bearer("caller")).status == 403
    assert guarded.call("DELETE", "/workers/x").status == 401


def test_refusals_are_counted_by_route_and_key(tmp_path):
    path = keys_file(tmp_path, entry("web", "caller"), entry("scraper", "metrics"))
    with Api("--api-keys-file", str(path)) as api:
        api.post("/workers", {}, authorization=bearer("web"))
        api.post("/workers", {})
        text = api.call("GET", "/metrics", authorization=bearer("scraper")).body
    family = "select_service_access_refusals_total"
    assert f'{family}{{code="forbidden",key="web",route="/workers"}} 1.0' in text
    assert f'{family}{{code="unauthenticated",key="none",route="/workers"}} 1.0' in text
    assert "select_service_api_keys 2.0" in text


def test_the_document_has_the_roles_of_every_route(api):
    document = api.get("/openapi.json").body
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        if route.may_call.roles:
            assert operation["security"] == [{"key": sorted(route.may_call.roles)}, {}]
            assert {"401", "403"} <= operation["responses"].keys()
        else:
            assert "security" not in operation
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_only_a_key_that_may_see_workers_sees_them_in_ready(tmp_path):
    keys = [entry("web", "caller"), entry("scraper", "metrics"), entry("ops", "operator")]
    path = keys_file(tmp_path, *keys)
    with Api("--api-keys-file", str(path)) as api:
        worker = {"worker_id": 1, "endpoint": "http://w", "block_size": 4}
        assert api.post("/workers", worker, authorization=bearer("ops")).status == 201
        for name, shown in (("web", 1), ("ops", 1), ("scraper", 0), ("wrong", 0)):
            answer = api.call("GET", "/ready", authorization=bearer(name))
            assert (answer.status, len(answer.body["workers"])) == (200, shown), name
        answer = api.get("/ready")
        assert answer.body == {"ready": True, "workers": []}


def test_ready_shows_only_probe_data_to_strangers_and_own_workers_to_bound_keys(tmp_path):
    keys = [entry("red", "caller", tenants=["red"]), entry("ops", "operator")]
    with Api("--api-keys-file", str(keys_file(tmp_path, *keys))) as api:
        for number, tenant in enumerate(("red", "blue", "blue"), 1):
            worker = {"worker_id": number, "endpoint": "http://w", "block_size": 4}
            worker["tenant_id"] = tenant
            answer = api.post("/workers", worker, authorization=bearer("ops"))
            assert answer.status == 201
        recovery = api.service.persistence.recovery
        recovery.state, recovery.source, recovery.blocks = "found", "http://peer:8092", 77
        stranger = api.get("/ready").body
        assert stranger == {"ready": True, "workers": [], "recovery": {"state": "found"}}
        bound = api.call("GET", "/ready?records=false", authorization=bearer("red")).body
        assert bound == stranger | {"schedulable_workers": 1}
        whole = api.call("GET", "/ready?records=false", authorization=bearer("ops")).body
        assert whole["schedulable_workers"] == 3
        assert whole["recovery"]["peer"] == "http://peer:8092"
        assert whole["recovery"]["blocks"] == 77
