"""Tests of sessions over HTTP: answers, lists in pages, ends, and the tenants of keys."""

import pytest

from tests.api.test_tenants import a_worker_of, keys_of_tenants, scope
from tests.builders.in_process import Api
from tests.builders.keys import bearer

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def turn(api, session, **fields):
    return api.post("/select_and_reserve", {**PROMPT, "session_id": session, **fields})


def test_a_session_is_shown_listed_and_ended(fleet):
    first = turn(fleet, "a/b", reservation_id="r").body
    assert first["session"] == {"bound": None, "followed": False, "reason": "new"}
    shown = fleet.get("/sessions/a%2Fb?model_name=m").body
    assert shown["worker_id"] == 1
    assert shown["dp_rank"] == first["dp_rank"]
    assert (shown["leases"], shown["turns"], shown["context_tokens"]) == (1, 1, 34)
    assert (shown["present"], shown["expires_in_seconds"]) == (True, None)
    assert fleet.get("/reservations/r").body["session_id"] == "a/b"
    fleet.delete_worker("/reservations/r")
    listed = fleet.get("/sessions").body
    assert [row["session_id"] for row in listed["sessions"]] == ["a/b"]
    assert 0 < listed["sessions"][0]["expires_in_seconds"] <= 600
    ended = fleet.delete_worker("/sessions/a%2Fb?model_name=m").body
    assert ended["session"]["session_id"] == "a/b"
    assert fleet.get("/sessions").body["sessions"] == []
    missing = fleet.get("/sessions/a%2Fb?model_name=m")
    assert (missing.status, missing.body["code"]) == (404, "not_found")
    assert fleet.delete_worker("/sessions/a%2Fb?model_name=m").status == 404


def test_every_session_is_on_one_page(fleet):
    for number in range(25):
        turn(fleet, f"s{number}")
    seen, after = [], ""
    for _ in range(10):
        page = fleet.get(f"/sessions?limit=4{after}").body
        assert len(page["sessions"]) <= 4
        assert page["total"] == 25
        seen += [row["session_id"] for row in page["sessions"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert sorted(seen) == sorted(f"s{number}" for number in range(25))
    parts = [fleet.get(f"/sessions?parts={1 << part}").body["sessions"] for part in range(64)]
    assert sorted(row["session_id"] for part in parts for row in part) == sorted(seen)
    assert fleet.get("/sessions?tenant_id=other").body["sessions"] == []


@pytest.mark.parametrize("query", ["after=x", "after=-1", "limit=0", "limit=1001", "parts=-1"])
def test_wrong_queries_are_refused(fleet, query):
    assert fleet.get(f"/sessions?{query}").status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": 5},
        {"session_context": {}},
        {"session_context": {"session_id": None}},
        {"session_context": {"session_id": "s", "input_trigger": "bogus"}},
        {"session_context": {"session_id": "s", "session_final": "x"}},
        {"session_context": {"session_id": "s", "agent_headers": {"x-a": "b"}}},
        {"session_context": []},
        {"affinity": "sticky"},
        {"affinity_target": {"dp_rank": 1}},
        {"affinity_target": {"worker_id": -1}},
    ],
)
def test_wrong_types_are_refused_and_book_nothing(fleet, fields):
    assert fleet.post("/select_and_reserve", {**PROMPT, **fields}).status == 422
    assert fleet.get("/sessions").body["total"] == 0
    assert fleet.get("/reservations").body["total"] == 0


def test_a_long_id_is_refused_where_sessions_are_configured():
    with Api("--session-affinity-ttl-secs", "60") as api:
        api.post("/workers", {"worker_id": 1, "model_name": "m", "endpoint": "http://w"})
        answer = turn(api, "x" * 257)
        assert answer.status == 400
        assert "must not exceed 256 bytes" in answer.body["error"]


def test_keys_of_tenants_see_their_own_sessions(tmp_path):
    path = keys_of_tenants(tmp_path)
    with Api("--api-keys-file", str(path)) as api:
        for worker_id, tenant in ((1, "red"), (2, "blue")):
            api.post("/workers", a_worker_of(tenant, worker_id), authorization=bearer(tenant))
            body = {**scope(tenant), "token_ids": [1, 2], "session_id": f"of-{tenant}"}
            assert api.post("/select_and_reserve", body, authorization=bearer(tenant)).status == 200
        for tenant, other in (("red", "blue"), ("blue", "red")):
            page = api.call("GET", "/sessions", authorization=bearer(tenant)).body
            assert [row["session_id"] for row in page["sessions"]] == [f"of-{tenant}"]
            assert page["total"] == 1
            foreign = f"/sessions/of-{other}?model_name=model-of-{other}&tenant_id={other}"
            assert api.call("GET", foreign, authorization=bearer(tenant)).status == 403
            assert api.call("GET", "/sessions/x", authorization=bearer(tenant)).status == 403
        assert api.call("GET", "/sessions", authorization=bearer("all")).body["total"] == 2
