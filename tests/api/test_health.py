"""Tests of the health routes: shown states, trusted reporters, and rejected requests."""

import json
import logging

import pytest

from select_service.core.health.health_kinds import RankHealthState
from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.builders.in_process import Api

NOBODY = "--health-reporters=nobody"


@pytest.fixture
def healthy():
    """Yield worker 1 with two ranks and worker 2, of model `m`; no reporter is trusted."""
    with Api("--health-checks=on", NOBODY) as api:
        assert api.post("/workers", worker_body(1, data_parallel_size=2)).status == 201
        assert api.post("/workers", worker_body(2)).status == 201
        yield api


def reserve(api, name, worker_id=1, **fields):
    body = {"model_name": "m", "token_ids": [1, 2, 3], "reservation_id": name, **fields}
    assert api.post("/reservations", {**body, "worker_id": worker_id}).status == 201


def report(api, worker_id=1, **body):
    answer = api.post(f"/workers/{worker_id}/outcome", body)
    assert (answer.status, answer.body) == (204, "")


def ranks_of(api, query=""):
    """Return the ranks by worker and rank number."""
    partitions = api.get(f"/health/fleet{query}").body["partitions"]
    return {(r["worker_id"], r["dp_rank"]): r for p in partitions for r in p["ranks"]}


def test_a_fleet_that_was_never_checked_is_healthy(healthy):
    (partition,) = healthy.get("/health/fleet").body["partitions"]
    assert [(r["worker_id"], r["dp_rank"]) for r in partition["ranks"]] == [(1, 0), (1, 1), (2, 0)]
    assert partition["reference_source"] is None
    assert partition["capacity"] is None
    for rank in partition["ranks"]:
        assert rank["state"] == "healthy"
        assert (rank["weight"], rank["breaker"], rank["checked"]) == (1.0, "closed", True)
        assert (rank["cause"], rank["last_result"], rank["baseline_ms"]) == (None, None, None)
        assert 0.0 <= rank["next_check_s"] <= 30.0


def test_a_fleet_is_filtered_by_model_and_tenant(healthy):
    healthy.post("/workers", worker_body(3, model_name="other", tenant_id="t"))
    assert ranks_of(healthy, "?model_name=other").keys() == {(3, 0)}
    assert ranks_of(healthy, "?tenant_id=default").keys() == {(1, 0), (1, 1), (2, 0)}
    assert ranks_of(healthy, "?model_name=none") == {}


def test_workers_are_shown_as_their_worst_rank(healthy):
    report_of_three(healthy, dp_rank=1)
    for record in (healthy.get("/workers/1").body, healthy.get("/workers").body[0]):
        assert record["health"]["state"] == "suspicious"
        ranks = record["health"]["ranks"]
        assert (ranks["0"]["state"], ranks["1"]["state"]) == ("healthy", "suspicious")
        assert (ranks["1"]["cause"], ranks["1"]["reservations"]) == ("passive", 3)


def report_of_three(api, dp_rank=0):
    for n in range(3):
        reserve(api, f"of-three-{n}", dp_rank=dp_rank)
        report(api, dp_rank=dp_rank, outcome="failure", reservation_id=f"of-three-{n}")


def test_a_thousand_rejected_requests_eject_no_rank(healthy):
    for n in range(100):
        reserve(healthy, f"r{n}")
        report(healthy, status=400 + n % 100, reservation_id=f"r{n}")
        report(healthy, status=400 + n % 100, outcome="failure", reservation_id=f"r{n}")
    for _ in range(3):
        report(healthy, status=422, count=1000)
    assert ranks_of(healthy)[1, 0]["state"] == "healthy"
    metrics = healthy.get("/metrics").body
    assert 'select_service_health_reports_total{trusted="true"} 0.0' in metrics
    assert 'select_service_health_reports_total{trusted="false"} 0.0' in metrics


@pytest.mark.parametrize(
    ("status", "state"), [(500, "suspicious"), (503, "healthy"), (429, "healthy")]
)
def test_a_status_alone_is_classified(healthy, status, state):
    for n in range(3):
        reserve(healthy, f"r{n}")
        report(healthy, status=status, reservation_id=f"r{n}")
    assert ranks_of(healthy)[1, 0]["state"] == state


def test_the_end_of_a_reservation_may_report_the_outcome(healthy):
    for n in range(3):
        reserve(healthy, f"r{n}")
        answer = healthy.delete_worker(f"/reservations/r{n}?outcome=failure")
        assert (answer.status, answer.body) == (200, {"status": "ok"})
        assert healthy.delete_worker(f"/reservations/r{n}?outcome=failure").status == 404
    assert ranks_of(healthy)[1, 0]["state"] == "suspicious"
    reserve(healthy, "last")
    assert healthy.delete_worker("/reservations/last?outcome=lost").status == 400
    assert healthy.delete_worker("/reservations/last?outcome=ok").status == 200


def test_an_ignored_outcome_frees_the_reservation(fleet):
    reserve(fleet, "r")
    assert fleet.delete_worker("/reservations/r?outcome=failure").status == 200
    assert fleet.get("/reservations").body["total"] == 0


def test_a_reporter_of_a_trusted_network_needs_no_reservation():
    for flags, state in (((), "unhealthy"), ((NOBODY,), "healthy")):
        with Api("--health-checks=on", *flags) as api:
            api.post("/workers", worker_body(1))
            report(api, outcome="fatal")
            assert ranks_of(api)[1, 0]["state"] == state
    with Api("--health-checks=on", "--health-reporters=10.0.0.0/8,::1/128") as api:
        api.post("/workers", worker_body(1))
        report(api, outcome="fatal")
        assert ranks_of(api)[1, 0]["state"] == "healthy"


def test_an_operator_drains_and_undrains(healthy, caplog):
    caplog.set_level(logging.INFO, "select_service.health")
    reserve(healthy, "r")
    answer = healthy.post("/workers/1/drain")
    assert (answer.status, answer.body["state"]) == (202, "draining")
    rank = answer.body["ranks"]["0"]
    assert (rank["cause"], rank["weight"], rank["next_check_s"]) == ("operator", 0.0, None)
    assert healthy.post("/workers/1/drain", {"migrate": False}).status == 202
    answer = healthy.post("/workers/1/undrain")
    assert (answer.status, answer.body["state"]) == (202, "healthy")
    assert answer.body["ranks"]["0"]["weight"] == 0.25
    assert healthy.post("/workers/1/undrain").status == 202
    said = [r.message for r in caplog.records if r.message.endswith("by operator")]
    assert said[:3:2] == ["worker drained by operator", "worker undrained by operator"]


def test_a_check_is_made_now(healthy):
    answer = healthy.post("/workers/2/check")
    assert (answer.status, answer.body["ranks"]["0"]["next_check_s"]) == (202, 0.0)


def test_the_right_answers_of_a_model_can_be_forgotten(healthy):
    assert healthy.post("/canary/learn", {"model_name": "m"}).body == {"status": "ok"}
    assert healthy.post("/canary/learn", {"model_name": "n"}).status == 404


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/canary/learn", {"model": "m"}, "unknown field `model`: did you mean `model_name`?"),
        ("/workers/1/drain", {"migrat": False}, "did you mean `migrate`?"),
        ("/workers/1/drain?migrate=false", None, "unknown query parameter `migrate`"),
        ("/workers/1/undrain?dp_rank=1", None, "unknown query parameter `dp_rank`"),
        ("/workers/1/check?dp_rank=1", None, "unknown query parameter `dp_rank`"),
    ],
)
def test_misspelt_requests_of_operators_change_nothing(healthy, path, body, error):
    before = ranks_of(healthy)
    answer = healthy.post(path, body)
    assert (answer.status, answer.body["code"]) == (422, "unknown_field")
    assert error in answer.body["error"]
    after = ranks_of(healthy)
    assert [r["state"] for r in after.values()] == [r["state"] for r in before.values()]


LONG = "9" * 1_500


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "count": 1e999}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "count": -1}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "count": 0}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "count": ' + b"9" * 5000 + b"}"),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "latency_ms": NaN}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "latency_ms": "1"}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "dp_rank": -1}'),
        ("POST", "/workers/1/outcome", b'{"outcome": "failure", "dp_rank": 4294967295}'),
        ("POST", "/workers/1/outcome", b'{"outcome": ["failure"]}'),
        ("POST", "/workers/1/outcome", b'{"status": 500.5}'),
        ("POST", "/workers/1/outcome", b'{"status": true}'),
        ("POST", "/workers/1/outcome", {"outcome": "ok", "reservation_id": LONG}),
        ("POST", "/workers/1/outcome", b"[]"),
        ("POST", "/workers/1/outcome", b""),
        ("POST", f"/workers/{LONG}/outcome", {"outcome": "ok"}),
        ("POST", "/workers/-1/drain", {}),
        ("POST", "/workers/1/drain", {"migrate": 1}),
        ("POST", "/workers/1/drain", b"[true]"),
        ("POST", "/canary/learn", {"model_name": "m" * 513}),
        ("POST", "/canary/learn", {"model_name": 1}),
        ("POST", f"/reservations/{LONG}/migrated", {"ok": True}),
        ("POST", "/reservations/r/migrated", {"ok": "yes"}),
        ("POST", "/reservations/r/migrated", b'{"ok": true, "took_ms": Infinity}'),
        ("POST", "/reservations/r/migrated", {"ok": True, "took_ms": 1e10}),
        ("GET", f"/migrations?after={LONG}", None),
        ("GET", "/migrations?after=-1", None),
        ("GET", "/migrations?after=1.5", None),
        ("GET", "/migrations?timeout_ms=99999999999", None),
        ("GET", "/health/fleet?tenant_id=a&routing_group=b", None),
        ("GET", "/health/fleet?model_name=a&model_name=b", None),
    ],
)
def test_hostile_requests_are_refused_in_words(healthy, method, path, body):
    reserve(healthy, "r")
    answer = healthy.call(method, path, body)
    assert 400 <= answer.status < 500, answer.body
    assert answer.body["code"]
    assert 10 < len(answer.body["error"]) < 2000
    assert {rank["state"] for rank in ranks_of(healthy).values()} == {"healthy"}


def test_the_number_of_the_last_event_is_one(healthy):
    answer = healthy.run(healthy._client.get("/migrations/stream", headers={"last-event-id": LONG}))
    assert (answer.status, answer.body["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/workers/9/drain", {}, 404),
        ("/workers/x/drain", {}, 400),
        ("/workers/3/drain", {}, 409),
        ("/workers/3/outcome", {"outcome": "ok"}, 409),
        ("/workers/9/outcome", {"outcome": "ok"}, 404),
        ("/workers/1/outcome", {"outcome": "ok", "dp_rank": 2}, 404),
        ("/workers/1/outcome", {}, 422),
        ("/workers/1/outcome", {"outcome": "lost"}, 422),
        ("/workers/1/outcome", {"status": 99}, 422),
        ("/workers/1/outcome", {"outcome": "ok", "count": 1001}, 422),
        ("/workers/1/outcome", {"outcome": "ok", "latency_ms": -1}, 422),
        ("/workers/4/check", None, 409),
        ("/workers/1/drain", {"migrate": "no"}, 422),
    ],
)
def test_invalid_input_is_rejected(healthy, path, body, status):
    healthy.post("/workers", worker_body(3, block_size=0))
    healthy.post("/workers", worker_body(4, endpoint="nats://subject"))
    answer = healthy.post(path, body)
    assert answer.status == status, answer.body
    assert answer.body["code"]
    assert answer.body["error"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health/fleet", None),
        ("POST", "/workers/1/outcome", {"outcome": "ok"}),
        ("POST", "/workers/1/check", None),
        ("POST", "/canary/learn", {"model_name": "m"}),
    ],
)
def test_without_health_its_routes_name_the_flag(fleet, method, path, body):
    answer = fleet.call(method, path, body)
    assert (answer.status, answer.body["code"]) == (409, "health_off")
    assert "--health-checks on" in answer.body["error"]


def test_records_without_health_have_none(fleet):
    assert "health" not in json.dumps(fleet.get("/workers").body)


def test_a_new_registration_resets_the_state(healthy):
    report_of_three(healthy)
    assert healthy.patch("/workers/1", {"taints": ["a"]}).status == 200
    assert ranks_of(healthy)[1, 0]["state"] == "suspicious"
    healthy.post("/workers", worker_body(1, data_parallel_size=2))
    assert ranks_of(healthy)[1, 0]["state"] == "healthy"
    assert (
        healthy.service.selector.health.monitor.record_of(Rank(1, 0)).state
        is RankHealthState.HEALTHY
    )


def test_a_spare_is_shown_as_one(healthy):
    record = healthy.post("/workers", worker_body(5, spare=True)).body
    assert record["spare"] is True
    rank = ranks_of(healthy)[5, 0]
    assert (rank["spare"], rank["weight"], rank["state"]) == (True, 0.0, "healthy")
    assert healthy.get("/health/fleet").body["partitions"][0]["spares"] == 1
