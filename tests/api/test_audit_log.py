"""What operators do is in the audit log before they are answered."""

import json

import pytest

from tests.access.keys import bearer, entry, keys_file, secret
from tests.api.in_process import Api
from tests.builders import worker_body


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


def test_an_action_is_kept_with_who_what_and_how_it_went(audited, tmp_path):
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


def test_who_is_refused_is_kept_by_name_and_who_is_unknown_is_not(audited, tmp_path):
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


def test_without_keys_nobody_has_a_name(tmp_path):
    path = tmp_path / "audit.jsonl"
    with Api("--audit-log", str(path)) as api:
        api.post("/workers", worker_body())
        api.post("/select", {"token_ids": [1]})
    (line,) = lines_of(path)
    assert line["key"] == "none"


def test_a_disk_that_is_full_is_told_of_and_stops_nobody(tmp_path, caplog):
    with Api("--audit-log", "/dev/full") as api:
        for number in (1, 2):
            assert api.post("/workers", worker_body(number)).status == 201
        text = api.get("/metrics").body
    assert "select_service_audit_log_failures_total 2.0" in text
    assert len([r for r in caplog.records if "audit log" in r.message]) == 1
