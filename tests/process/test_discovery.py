"""Tests of a service process that finds its workers in a file."""

import json
import time

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running, complaint, run_to_end

pytestmark = pytest.mark.process


def write(path, count, **fields):
    bodies = [
        worker_body(n, kv_events_endpoint="tcp://127.0.0.1:1", **fields) for n in range(count)
    ]
    path.write_text(json.dumps(bodies))


def schedulable(service):
    return service.call("GET", "/ready").body["schedulable_workers"]


def test_a_service_begins_with_the_workers_of_its_file_and_follows_it(tmp_path):
    path = tmp_path / "workers.yaml"
    write(path, 3)
    with Running("--workers-file", str(path)) as service:
        eventually(lambda: schedulable(service) == 3)
        write(path, 5)
        eventually(lambda: schedulable(service) == 5)
        path.write_text("workers: [{worker: 1}]")
        service.line("discovery source read failed")
        (source,) = service.call("GET", "/discovery").body["sources"]
        assert source["error"].startswith("record 1: unknown field `worker`")
        assert service.call("GET", "/ready").status == 200
        path.write_text("workers: []")
        eventually(lambda: service.call("GET", "/ready").status == 503)
        assert service.stop() == 0


def test_a_start_with_a_wrong_file_reports_the_fault(tmp_path):
    path = tmp_path / "workers.yaml"
    path.write_text("[{worker_id: x}]")
    status, _, errors = run_to_end("--workers-file", str(path))
    assert status == 2
    assert complaint(errors).startswith(f"--workers-file {path}: worker x: `worker_id`: expected")


def test_a_thousand_workers_are_in_sync_within_seconds_and_an_edit_within_one(tmp_path):
    path = tmp_path / "workers.yaml"
    write(path, 1000)
    with Running("--workers-file", str(path), DYN_USE_KV_EVENTS="false") as service:
        eventually(lambda: schedulable(service) == 1000)
        write(path, 1000, taints=["new"])
        begun = time.monotonic()
        eventually(lambda: service.call("GET", "/workers/999").body["taints"] == ["new"])
        assert time.monotonic() - begun < 10.0  # 1 s on an idle machine
