"""Tests of drain and undrain over HTTP, with and without health checks."""

import logging

import pytest

from tests.api.test_tenants import a_worker_of, keys_of_tenants
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.keys import bearer

SELECT = {"model_name": "m", "token_ids": [1, 2, 3, 4]}


@pytest.fixture(params=[(), ("--health-checks=on",)], ids=["without checks", "with checks"])
def api(request):
    with Api(*request.param) as api:
        for worker_id in (1, 2):
            assert api.post("/workers", worker_body(worker_id)).status == 201
        yield api


def book(api, name, worker_id):
    body = {
        **SELECT,
        "reservation_id": name,
        "pinned_worker": {"worker_id": worker_id, "dp_rank": 0},
    }
    assert api.post("/select_and_reserve", body).status == 200


def settle(api):
    api.service.selector.run_pending(0.0)


def record(api, worker_id):
    (found,) = [w for w in api.get("/workers").body if w["worker_id"] == worker_id]
    return found


def states(api):
    (partition,) = api.get("/workers?view=compact").body["partitions"]
    return dict(zip(partition["worker_ids"], partition["states"], strict=True))


def test_a_worker_drains_and_is_then_shown_as_drained(api):
    book(api, "r", 1)
    answer = api.post("/workers/1/drain", {"migrate": False})
    assert (answer.status, answer.body["state"]) == (202, "draining")
    settle(api)
    view = {"state": "draining", "asked_by": ["operator"], "reservations": 1}
    assert answer.body["drain"] == record(api, 1)["drain"] == view
    assert api.get("/workers/1").body["drain"] == view
    assert states(api)[1] == "draining"
    assert {api.post("/select", SELECT).body["worker_id"] for _ in range(10)} == {2}
    assert api.delete_worker("/reservations/r").status in (200, 204)
    settle(api)
    assert record(api, 1)["drain"]["state"] == "drained"
    assert states(api)[1] == "drained"
    assert "drain" not in record(api, 2)


def test_a_drain_may_be_repeated_and_ends_with_undrain(api):
    for _ in range(2):
        assert api.post("/workers/1/drain").status == 202
        assert api.post("/workers/2/drain").status == 202
    settle(api)
    refusal = api.post("/select", SELECT)
    assert refusal.status == 503
    assert "(2 draining)" in refusal.body["error"]
    pinned = api.post("/select", {**SELECT, "pinned_worker": {"worker_id": 1, "dp_rank": 0}})
    assert "worker 1 dp_rank 0 is draining, out of rotation" in pinned.body["error"]
    for _ in range(2):
        answer = api.post("/workers/1/undrain")
        assert answer.status == 202
        assert "drain" not in answer.body
    settle(api)
    assert api.post("/select", SELECT).body["worker_id"] == 1


def test_drains_of_an_operator_and_of_the_planner_are_kept_apart(api, caplog):
    caplog.set_level(logging.INFO, "select_service.health")
    planner = {"by": "planner"}
    assert api.post("/workers/1/drain", {"migrate": False, **planner}).status == 202
    assert record(api, 1)["drain"]["asked_by"] == ["planner"]
    assert api.post("/workers/1/undrain").body["drain"]["asked_by"] == ["planner"]
    answer = api.post("/workers/1/drain", {"by": "operator"})
    assert answer.body["drain"]["asked_by"] == ["operator", "planner"]
    settle(api)
    assert record(api, 1)["drain"]["asked_by"] == ["operator", "planner"]
    answer = api.post("/workers/1/undrain", planner)
    assert (answer.status, answer.body["drain"]["asked_by"]) == (202, ["operator"])
    settle(api)
    assert {api.post("/select", SELECT).body["worker_id"] for _ in range(10)} == {2}
    assert "drain" not in api.post("/workers/1/undrain", {"by": "operator"}).body
    settle(api)
    assert "drain" not in record(api, 1)
    assert [m for m in caplog.messages if m.endswith("by planner")] == [
        "worker drained by planner",
        "worker undrained by planner",
    ]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("", {"by": "source"}, "invalid_body"),
        ("", {"by": ["planner"]}, "invalid_body"),
        ("", {"By": "planner"}, "unknown_field"),
        ("?by=planner", None, "unknown_field"),
    ],
)
def test_the_caller_of_a_drain_is_checked(api, verb, query, body, code):
    assert api.post("/workers/1/drain", {"by": "planner"}).status == 202
    refusal = api.post(f"/workers/1/{verb}{query}", body)
    assert (refusal.status, refusal.body["code"]) == (422, code)
    assert "by" in refusal.body["error"].lower()
    assert record(api, 1)["drain"]["asked_by"] == ["planner"]


def test_one_that_is_registered_again_serves(api):
    assert api.post("/workers/1/drain").status == 202
    assert api.post("/workers", worker_body(1)).status == 201
    settle(api)
    assert "drain" not in record(api, 1)
    assert (
        api.post("/select", {**SELECT, "pinned_worker": {"worker_id": 1, "dp_rank": 0}}).status
        == 200
    )


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_an_unknown_worker_is_not_found_and_invalid_input_is_rejected(api, verb):
    assert api.post(f"/workers/9/{verb}").status == 404
    assert api.post(f"/workers/x/{verb}").status == 400
    api.post("/workers", worker_body(3, block_size=0))
    refusal = api.post(f"/workers/3/{verb}")
    assert (refusal.status, refusal.body["code"]) == (409, "conflict")
    assert "receives no requests" in refusal.body["error"]


def test_without_checks_there_are_no_ranks_in_the_answer():
    with Api() as api:
        assert api.post("/workers", worker_body(1)).status == 201
        assert "ranks" not in api.post("/workers/1/drain").body
        assert api.post("/workers/1/undrain").body == {"state": "schedulable"}


@pytest.mark.parametrize("flags", [(), ("--health-checks=on",)])
def test_a_worker_of_another_tenant_is_not_found(tmp_path, flags):
    path = keys_of_tenants(tmp_path)
    with Api("--api-keys-file", str(path), *flags) as api:
        body = a_worker_of("red", 1)
        assert api.post("/workers", body, authorization=bearer("red")).status == 201
        for verb in ("drain", "undrain"):
            refused = api.post(f"/workers/1/{verb}", None, authorization=bearer("blue"))
            assert refused.status == 404
            assert api.post(f"/workers/1/{verb}", None, authorization=bearer("red")).status == 202


def test_an_observation_names_the_callers_of_a_drain():
    with Api() as api:
        for worker_id in (1, 2):
            assert api.post("/workers", worker_body(worker_id)).status == 201
        assert api.post("/workers/1/drain").status == 202
        ranks = api.get("/planner/observation?model_name=m").body["ranks"]
        assert {r["worker_id"]: r.get("state") for r in ranks} == {1: "draining", 2: None}
