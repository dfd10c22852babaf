"""Tests of operators' actions while the disk is full."""

import json
import resource
from pathlib import Path

import pytest

from tests.builders import worker_body
from tests.builders.running import Running

pytestmark = pytest.mark.process

ACTIONS = 194


def fill_disk(service: Running, log: Path) -> None:
    """Limit files of the process to the present size of the log, as a full disk does."""
    unlimited = resource.RLIM_INFINITY
    limits = (log.stat().st_size, unlimited)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)


def free_disk(service: Running) -> None:
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def logged_statuses(log: Path) -> list[object]:
    return [json.loads(line).get("status") for line in log.read_text().splitlines()]


def test_with_required_lines_nothing_is_done_while_the_disk_is_full(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with Running("--audit-log", str(log), "--audit-required") as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        fill_disk(service, log)
        for number in range(2, 2 + ACTIONS):
            answer = service.call("POST", "/workers", worker_body(number))
            assert (answer.status, answer.body["code"]) == (503, "audit_unavailable")
        asked = {"model_name": "m", "token_ids": [1]}
        assert service.call("POST", "/select", asked).status == 200
        assert len(service.call("GET", "/workers").body) == 1
        metrics = service.call("GET", "/metrics").body.decode()
        assert f"select_service_audit_log_refusals_total {float(ACTIONS)}" in metrics
        free_disk(service)
        assert service.call("DELETE", "/workers/1").status == 200
    assert logged_statuses(log) == [None, 201, None, 200]


def test_without_them_a_full_disk_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with Running("--audit-log", str(log)) as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        fill_disk(service, log)
        assert service.call("POST", "/workers", worker_body(2)).status == 201
        metrics = service.call("GET", "/metrics").body.decode()
        assert "select_service_audit_log_failures_total 1.0" in metrics
        free_disk(service)
        assert service.call("DELETE", "/workers/1").status == 200
    assert logged_statuses(log) == [201, 200]
    assert log.stat().st_mode & 0o777 == 0o600
