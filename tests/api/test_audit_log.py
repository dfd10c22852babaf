"""Tests that operators' actions are in the audit log before the answer."""

import json
import threading

import pytest

from select_service.adapters.logs import audit_log
from select_service.auth import audit_lines
from select_service.config.settings_loader import ConfigError, parse_config
from tests.builders import worker_body
from tests.builders.full_disk import full_disk
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file, secret
from tests.builders.polling import PATIENCE_S


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def audited(tmp_path):
    keys = keys_file(
        tmp_path,
        entry("ops", "operator"),
        entry("web", "caller"),
        entry("all", "caller", "operator"),
    )
    with Api("--api-keys-file", str(keys), "--audit-log", str(tmp_path / "audit.jsonl")) as api:
        yield api


def test_a_line_has_the_key_the_action_and_the_outcome(audited, tmp_path):
    body = worker_body(7)
    assert audited.post("/workers", body, authorization=bearer("ops")).status == 201
    audited.call("DELETE", "/workers/8", authorization=bearer("ops"))
    first, second = lines_of(tmp_path / "audit.jsonl")
    assert first["at"].endswith("+00:00")
    kept = {name: first[name] for name in ("key", "source", "operation", "method", "path")}
    assert kept == {
        "key": "ops",
        "source": "127.0.0.1",
        "operation": "register_worker",
        "method": "POST",
        "path": "/workers",
    }
    assert (first["status"], "code" in first) == (201, False)
    assert first["body"].items() >= body.items()
    assert (second["operation"], second["status"]) == ("delete_worker", 404)
    assert second["code"] == "not_found"
    assert "body" not in second


def test_only_actions_of_operators_are_kept(audited, tmp_path):
    assert audited.post("/workers", worker_body(), authorization=bearer("all")).status == 201
    asked = {"model_name": "m", "token_ids": [1], "reservation_id": "a"}
    for key in ("web", "all"):
        for path in ("/overlap_scores", "/select_and_reserve"):
            audited.post(path, asked, authorization=bearer(key))
    for name in ("ops", "all"):
        for path in ("/workers", "/config", "/reservations"):
            assert audited.call("GET", path, authorization=bearer(name)).status == 200
    assert audited.call("DELETE", "/reservations/a", authorization=bearer("ops")).status == 200
    kept = [line["operation"] for line in lines_of(tmp_path / "audit.jsonl")]
    assert kept == ["register_worker", "free_reservation"]


def test_rejected_keys_are_logged_by_name_and_unknown_keys_are_not(audited, tmp_path):
    assert audited.post("/workers", worker_body(), authorization=bearer("web")).status == 403
    for _ in range(9):
        assert audited.post("/workers", worker_body(), authorization=bearer("no")).status == 401
    (line,) = lines_of(tmp_path / "audit.jsonl")
    assert (line["key"], line["status"], line["code"]) == ("web", 403, "forbidden")
    assert "body" not in line


def test_no_key_is_written_and_long_bodies_are_measured(audited, tmp_path):
    body = worker_body(
        7, taints=[f"{n:060}" for n in range(256)], endpoint="http://w/" + "x" * 2000
    )
    assert audited.post("/workers", body, authorization=bearer("ops")).status == 201
    text = (tmp_path / "audit.jsonl").read_text()
    assert secret("ops") not in text
    (line,) = lines_of(tmp_path / "audit.jsonl")
    assert line["body_bytes"] > 16_384
    assert line["body_begin"].startswith('{"endpoint":"http://w/x')
    assert len(text) < 2048


def test_without_keys_lines_have_no_name(tmp_path):
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path)) as api:
        api.post("/workers", worker_body())
        api.post("/select", {"token_ids": [1]})
    (line,) = lines_of(path)
    assert line["key"] == "none"


def test_one_key_cannot_push_out_the_lines_of_others(audited, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_lines, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(audit_lines, "LINES_PER_S", 0.0)
    for number in range(200):
        asked = audited.call("DELETE", f"/workers/{number}", authorization=bearer("all"))
        assert asked.status == 404
    assert audited.post("/workers", worker_body(7), authorization=bearer("ops")).status == 201
    lines = lines_of(tmp_path / "audit.jsonl")
    assert [line["key"] for line in lines] == [*["all"] * 5, "ops"]
    assert "select_service_audit_log_summed_requests_total 195.0" in metrics_of(audited)


def metrics_of(api):
    return api.call("GET", "/metrics", authorization=bearer("ops")).body


def test_counted_actions_are_written_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_lines, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(audit_lines, "LINES_PER_S", 0.0)
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path)) as api:
        for number in range(8):
            assert api.call("DELETE", f"/workers/{number}").status == 404
    summed = lines_of(path)[5:]
    assert [{**line, "at": "", "seconds": 0} for line in summed] == [
        {
            "at": "",
            "seconds": 0,
            "event": "summed",
            "count": 3,
            "key": "none",
            "operation": "delete_worker",
            "status": 404,
            "code": "not_found",
        }
    ]


def test_rejections_of_callers_are_summed(audited, tmp_path):
    for number in range(300):
        asked = audited.call("DELETE", f"/workers/{number}", authorization=bearer("web"))
        assert asked.status == 403
    assert audited.post("/workers", worker_body(), authorization=bearer("web")).status == 403
    kept = [line["operation"] for line in lines_of(tmp_path / "audit.jsonl")]
    assert kept == ["delete_worker", "register_worker"]
    assert "select_service_audit_log_summed_requests_total 299.0" in metrics_of(audited)


def test_with_required_lines_an_action_is_in_the_log_before_it_is_done(tmp_path):
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path), "--audit-required") as api:
        assert api.post("/workers", worker_body(7)).status == 201
        assert api.post("/workers", {"worker_id": "x"}).status == 422
        assert api.post("/select", {"model_name": "m", "token_ids": [1]}).status == 200
    begun, ended, refused = lines_of(path)
    assert (begun["event"], begun["body"]["worker_id"]) == ("begun", 7)
    assert "status" not in begun
    assert (ended["status"], "event" in ended) == (201, False)
    assert refused["status"] == 422


def test_with_required_lines_actions_beyond_the_bound_are_not_done(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_lines, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(audit_lines, "LINES_PER_S", 0.0)
    with Api("--audit-log", str(tmp_path / "audit.jsonl"), "--audit-required") as api:
        answers = [api.post("/workers", worker_body(n + 1)) for n in range(8)]
        assert [each.status for each in answers] == [*[201] * 5, *[503] * 3]
        assert answers[-1].body["code"] == "audit_unavailable"
        assert len(api.get("/workers").body) == 5


def test_a_full_disk_is_logged_and_blocks_no_request(tmp_path, caplog):
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path)) as api:
        api.post("/workers", worker_body(3))
        with full_disk(path):
            for number in (1, 2):
                assert api.post("/workers", worker_body(number)).status == 201
        text = api.get("/metrics").body
        api.post("/workers", worker_body(4))
    assert "select_service_audit_log_failures_total 2.0" in text
    assert len([r for r in caplog.records if "audit log" in r.message]) == 1
    assert [line["body"]["worker_id"] for line in lines_of(path)] == [3, 4]


def test_with_required_lines_a_full_disk_refuses_actions_and_nothing_else(tmp_path):
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path), "--audit-required") as api:
        api.post("/workers", worker_body(3))
        with full_disk(path):
            for number in range(4, 54):
                answer = api.post("/workers", worker_body(number))
                assert (answer.status, answer.body["code"]) == (503, "audit_unavailable")
            assert api.call("DELETE", "/workers/3").status == 503
            assert api.post("/select", {"model_name": "m", "token_ids": [1]}).status == 200
            assert [each["worker_id"] for each in api.get("/workers").body] == [3]
        assert "select_service_audit_log_refusals_total 51.0" in api.get("/metrics").body
        assert api.call("DELETE", "/workers/3").status == 200
    assert [line.get("status") for line in lines_of(path)] == [None, 201, None, 200]


def test_a_disk_that_hangs_refuses_actions_in_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "WRITE_S", 0.05)
    hangs = threading.Event()
    monkeypatch.setattr(audit_log.RotatingFile, "add_line", lambda *_: hangs.wait(PATIENCE_S))
    with Api("--audit-log", str(tmp_path / "audit.jsonl"), "--audit-required") as api:
        assert [api.post("/workers", worker_body(n)).status for n in (1, 2)] == [503, 503]
        assert api.get("/workers").body == []
        hangs.set()


def test_required_lines_need_a_file():
    with pytest.raises(ConfigError, match="--audit-required requires --audit-log"):
        parse_config(["--audit-required"], {})
