"""Tests of GET /decisions and POST /explain, which explain the routing of a prompt."""

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def chosen_candidate(body):
    (found,) = [c for c in body["candidates"] if c["chosen"]]
    return found


def test_a_decision_is_found_by_both_of_its_ids(fleet):
    body = {**PROMPT, "selection_id": "s/1", "reservation_id": "r 1"}
    selection = fleet.post("/select_and_reserve", body).body
    for name in ("s%2F1", "r%201"):
        found = fleet.get(f"/decisions/{name}").body
        assert (found["selection_id"], found["reservation_id"]) == ("s/1", "r 1")
        assert found["reserved"]
        assert found["decision"] == 1
        assert found["candidate_count"] == len(found["candidates"]) == 2
        assert chosen_candidate(found)["dp_rank"] == selection["dp_rank"]
        assert {c["terms"]["cost"] for c in found["candidates"]} == {34}
        assert (found["isl_tokens"], found["prompt_blocks"]) == (34, 8)
        assert found["choice"] == "tie"


def test_the_load_of_a_decision_is_that_before_its_booking(fleet):
    fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "a"})
    fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "b"})
    assert all(c["active_requests"] == 0 for c in fleet.get("/decisions/a").body["candidates"])
    found = fleet.get("/decisions/b").body
    busy, idle = sorted(found["candidates"], key=lambda c: -c["active_requests"])
    assert (busy["prefill_tokens"], busy["left_work_tokens"], busy["extra_wait_tokens"]) == (
        34,
    ) * 3
    assert (idle["prefill_tokens"], idle["extra_wait_tokens"]) == (0, 0)
    assert idle["chosen"]
    assert busy["leading_run"] == 8
    assert found["choice"] == "cheapest"


def test_a_decision_without_an_id_is_found_by_its_number(fleet):
    fleet.post("/select", PROMPT)
    fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "1"})
    assert fleet.get("/decisions/1?by=number").body["decision"] == 1
    assert fleet.get("/decisions/1").body["decision"] == 2
    for number in ("0", "x", "-1", "9" * 30):
        assert fleet.get(f"/decisions/{number}?by=number").status == 400
    for number in ("3", str(2**63 - 1)):
        answer = fleet.get(f"/decisions/{number}?by=number")
        assert answer.status == 404
        assert answer.body["error"].endswith("is not the number of one of the last 2")
    assert fleet.get("/decisions/1?by=name").status == 400


def test_lists_are_filtered_with_the_newest_first(fleet):
    fleet.post("/workers", worker_body(2, model_name="other"))
    for number in range(3):
        fleet.post("/select", {**PROMPT, "selection_id": f"s{number}"})
    fleet.post("/select", {**PROMPT, "model_name": "other"})
    listed = fleet.get("/decisions").body
    assert listed["kept"] == 4
    assert [row["decision"] for row in listed["decisions"]] == [4, 3, 2, 1]
    assert "selection_id" not in listed["decisions"][0]
    assert listed["decisions"][0]["runner_up_cost"] is None
    assert listed["decisions"][0]["choice"] == "only"
    for query, expected in (
        ("limit=2", [4, 3]),
        ("worker_id=1", [3, 2, 1]),
        ("worker_id=2&model_name=m", []),
        ("model_name=other&tenant_id=default", [4]),
        ("tenant_id=none", []),
    ):
        rows = fleet.get(f"/decisions?{query}").body["decisions"]
        assert [row["decision"] for row in rows] == expected


def test_an_explanation_changes_nothing(fleet):
    before = [fleet.get(path).body for path in ("/loads", "/reservations")]
    found = fleet.post("/explain", {**PROMPT, "selection_id": "x"}).body
    assert found["decision"] is None
    assert "selection_id" not in found
    assert "would_wait" not in found
    assert [fleet.get(path).body for path in ("/loads", "/reservations")] == before
    assert fleet.get("/decisions").body == {"decisions": [], "kept": 0}
    pinned = fleet.post("/explain", {**PROMPT, "pinned_worker": {"worker_id": 1, "dp_rank": 1}})
    assert pinned.body["choice"] == "pinned"
    assert chosen_candidate(pinned.body)["dp_rank"] == 1


def test_an_explanation_equals_the_decision(fleet):
    fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "a"})
    asked = fleet.post("/explain", PROMPT).body
    fleet.post("/select", {**PROMPT, "selection_id": "b"})
    decided = fleet.get("/decisions/b").body
    differ = {"decision", "seconds_ago", "selection_id", "draw"}
    assert {k: v for k, v in asked.items() if k not in differ} == {
        k: v for k, v in decided.items() if k not in differ
    }


def test_a_decision_that_is_not_kept_is_an_error_with_a_reason(fleet):
    answer = fleet.get("/decisions/nobody")
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert "last 0" in answer.body["error"]
    assert fleet.get("/decisions?limit=0").status == 400
    assert fleet.get("/decisions?worker_id=x").status == 400
    assert fleet.post("/explain", {"model_name": "m"}).status == 400
    assert fleet.post("/explain", {**PROMPT, "model_name": "none"}).status == 503
    assert fleet.post("/explain", {**PROMPT, "priority_tier": "no"}).status == 400


@pytest.mark.parametrize("path", ["/decisions", "/decisions/a"])
def test_without_decisions_both_routes_report_that(path):
    with Api("--decisions", "0") as api:
        api.post("/workers", worker_body(1))
        api.post("/select", {**PROMPT, "selection_id": "a"})
        answer = api.get(path)
        assert (answer.status, answer.body["error"]) == (
            404,
            "decisions are not recorded: start the service with --decisions above 0",
        )
        assert chosen_candidate(api.post("/explain", PROMPT).body)["worker_id"] == 1


def test_an_explanation_reports_a_wait(fleet):
    with Api("--queue-threshold", "0.5") as api:
        api.post("/workers", worker_body(1, max_num_batched_tokens=16))
        assert api.post("/explain", PROMPT).body["would_wait"] is False
        api.post("/select_and_reserve", PROMPT)
        found = api.post("/explain", PROMPT).body
        assert found["would_wait"] is True
        assert "refusal" not in found
        for path in ("/explain", "/select"):
            late = api.post(path, {**PROMPT, "deadline_ms": 0}).body
            error = late if path == "/select" else late["refusal"]
            assert error["code"] == "deadline_exceeded"
            assert error["error"].startswith("deadline_ms 0 cannot be met")
        assert api.post("/explain", {**PROMPT, "deadline_ms": 0}).body["would_wait"] is False


def test_candidates_show_their_declared_speed_next_to_the_median(api):
    for worker_id, speed in ((1, 4000), (2, 12000)):
        api.post("/workers", worker_body(worker_id, prefill_tokens_per_s=speed))
    api.post("/select_and_reserve", {**PROMPT, "reservation_id": "a"})
    found = api.get("/decisions/a").body["candidates"]
    shown = [(c["worker_id"], c["speed"], c["terms"]["cost"]) for c in found]
    assert shown == [(2, 1.5, round(34 / 1.5, 3)), (1, 0.5, 68.0)]


def test_the_share_of_reported_prefill_ends_is_shown(fleet):
    def shares():
        gauge = 'select_service_reported_prefills_ratio{model_name="m",tenant_id="default"} '
        (line,) = (
            line for line in fleet.get("/metrics").body.splitlines() if line.startswith(gauge)
        )
        asked = fleet.post("/explain", PROMPT).body["reported_share"]
        return asked, round(float(line.removeprefix(gauge)), 3)

    assert shares() == (1.0, 1.0)
    for at in range(50):
        fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": f"r{at}"})
        fleet.delete_worker(f"/reservations/r{at}")
    asked, told = shares()
    assert asked == told < 0.5
    assert 0.5 < fleet.get("/decisions/r5").body["reported_share"] < 1.0
