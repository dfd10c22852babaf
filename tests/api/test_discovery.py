"""Tests of worker sources over the interface: their display, and rejected changes."""

import json
from pathlib import Path

import pytest

from select_service.core.registry.discovery import reconciler
from tests.builders import worker_body
from tests.builders.in_process import Api


def write_workers(folder, *bodies):
    path = folder / "workers.yaml"
    path.write_text(json.dumps({"workers": bodies}))  # JSON is YAML, too
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write_workers(tmp_path, worker_body(1), worker_body(2))


def list_schedulable(api):
    return [w["worker_id"] for w in api.get("/workers").body if w["lifecycle"] == "schedulable"]


def source_of(api):
    (source,) = api.get("/discovery").body["sources"]
    return source


def test_without_sources_there_are_none(api):
    assert api.get("/discovery").body == {"sources": [], "pending": 0}


def test_a_source_is_shown_with_its_status(path):
    with Api("--workers-file", path) as api:
        assert api.post("/workers", worker_body(2, block_size=8, model_name="other")).status == 201
        api.follow_sources(lambda: list_schedulable(api) == [1, 2])
        source = source_of(api)
        assert (source["desired"], source["owned"], source["conflicts"]) == (2, 1, 1)
        assert source["conflicting"] == {"2": "HTTP"}
        assert (source["name"], source["kind"], source["place"]) == ("workers-file", "file", path)
        assert source["error"] is None
        text = api.get("/metrics").body
    workers = 'select_service_discovery_workers{source="workers-file",state="%s"} 1.0'
    assert all(workers % state in text for state in ("owned", "conflict"))
    assert 'select_service_discovery_stale{source="workers-file"} 0.0' in text


def test_a_worker_that_its_source_drops_is_removed_in_its_name(path, monkeypatch):
    monkeypatch.setattr(reconciler, "GRACE_S", 0.0)
    with Api("--workers-file", path) as api:
        api.follow_sources(lambda: list_schedulable(api) == [1, 2])
        assert api.delete_worker("/workers/1").status == 200
        write_workers(Path(path).parent, worker_body(1))
        api.follow_sources(lambda: list_schedulable(api) == [])
        deleted = {w["worker_id"]: w["deleted"]["reason"] for w in api.get("/workers").body}
        assert deleted == {1: "DELETE /workers/1", 2: "removed from the source `workers-file`"}


def test_workers_of_a_source_are_not_registered_over_http_but_patched_and_deleted(path):
    with Api("--workers-file", path) as api:
        api.follow_sources(lambda: list_schedulable(api) == [1, 2])
        refused = api.post("/workers", worker_body(1))
        assert (refused.status, refused.body["code"]) == (409, "conflict")
        assert "is owned by the source `workers-file`" in refused.body["error"]
        assert api.patch("/workers/1", {"taints": ["x"]}).status == 200
        assert api.delete_worker("/workers/2").status == 200
        api.follow_sources(lambda: source_of(api)["deleted"] == [2])
        assert source_of(api)["patched"] == [1]
        assert api.post("/workers", worker_body(2)).status == 201
        api.follow_sources(lambda: source_of(api)["conflicts"] == 1)
        assert list_schedulable(api) == [1, 2]


def test_with_health_checks_a_worker_that_is_dropped_drains(tmp_path, path):
    with Api("--workers-file", path, "--health-checks", "on") as api:
        api.follow_sources(lambda: list_schedulable(api) == [1, 2])
        body = {"model_name": "m", "token_ids": [1, 2, 3, 4], "reservation_id": "r"}
        chosen = api.post("/select_and_reserve", body).body["worker_id"]
        write_workers(tmp_path, worker_body(3 - chosen))
        api.follow_sources(lambda: source_of(api)["leaving"] == 1)
        ranks = api.get("/health/fleet").body["partitions"][0]["ranks"]
        assert {r["worker_id"]: r["state"] for r in ranks}[chosen] == "draining"
        assert api.delete_worker("/reservations/r").status in (200, 204)
        api.follow_sources(lambda: source_of(api)["leaving"] == 0)
        assert list_schedulable(api) == [3 - chosen]
