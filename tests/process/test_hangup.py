"""Tests that SIGHUP ends neither command and that followed files are read again at once."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import eventually
from tests.builders.running import Running
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process

RECEIVED = "SIGHUP received, reloading followed files"


def write_unseen(path: Path, text: str) -> None:
    """Change a file but neither size nor modification time, so that polling misses the change."""
    before = path.stat()
    assert len(text.encode()) == before.st_size
    with path.open("r+") as file:
        file.write(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def workers(taint: str) -> str:
    return json.dumps([{**worker_body(1), "taints": [taint]}])


@pytest.mark.parametrize("flags", [(), ("--no-fast-path",)])
def test_a_service_without_followed_files_runs_on(flags: tuple[str, ...]) -> None:
    with Running(*flags) as service:
        for number in (1, 2, 3):
            service.process.send_signal(signal.SIGHUP)
            assert service.line(RECEIVED, number)["paths"] == []
            assert service.call("GET", "/health").status == 200
        assert service.stop() == 0


def test_a_service_reads_all_followed_files(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, entry("a", "operator", "caller"))
    path = tmp_path / "workers.yaml"
    path.write_text(workers("one"))
    with Running("--api-keys-file", str(keys), "--workers-file", str(path)) as service:

        def taints() -> Any:
            answer = service.call("GET", "/workers/1", authorization=bearer("a"))
            return answer.body.get("taints")

        eventually(lambda: taints() == ["one"])
        write_unseen(path, workers("two"))
        service.process.send_signal(signal.SIGHUP)
        assert service.line(RECEIVED)["paths"] == sorted((str(keys), str(path)))
        eventually(lambda: taints() == ["two"])
        path.write_text("[")
        service.process.send_signal(signal.SIGHUP)
        service.line("discovery source read failed")
        assert taints() == ["two"]
        assert service.stop() == 0


def test_a_planner_runs_on(tmp_path: Path) -> None:
    deployment = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "throughput_adjustment_interval_seconds": 1,
        "connector": {"kind": "virtual"},
    }
    config = {"selectors": ["http://127.0.0.1:9"], "deployments": [deployment]}
    with Planner(tmp_path, config) as planner:
        planner.ticks_on(1)
        for _ in range(3):
            planner.process.process.send_signal(signal.SIGHUP)
            planner.ticks_on(1)
        assert planner.process.stop_with_signal()[0] == 0
