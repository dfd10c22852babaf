"""Tests of a planner beside a real selector: restarts, missing observations and requests."""

import json
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from select_service.planner.planner_log_lines import TickLine, read_lines
from tests.builders import worker_body
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually
from tests.builders.running import Running, request
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process


def config(selector: Running, folder: Path, **given: Any) -> dict[str, Any]:
    """Return a configuration with a tick every second."""
    own = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "throughput_adjustment_interval_seconds": 1,
        "down_window_s": 2,
        "down_cooldown_s": 1,
        "connector": {"kind": "virtual", "path": str(folder / "decision.json")},
        **given,
    }
    return {
        "selectors": [f"http://127.0.0.1:{selector.port}"],
        "decision_log": str(folder / "decisions.jsonl"),
        "deployments": [own],
    }


def newest_decision(planner: Planner) -> tuple[int, int]:
    """Return the id of the newest decision and its replicas."""
    decision = planner.get("/v1/decision")
    return decision["decision_id"], decision["num_decode"]


def ready(planner: Planner) -> int | None:
    """Return the number of ready replicas; None before the first tick."""
    replicas = planner.status()["replicas"]
    return replicas["decode"]["ready"] if replicas else None


def test_a_decision_outlives_the_planner_and_silence_scales_nothing(tmp_path: Path) -> None:
    with Running("--threads", "1") as selector:
        for worker_id in (1, 2):
            assert selector.call("POST", "/workers", worker_body(worker_id)).status < 300
        with Planner(tmp_path, config(selector, tmp_path)) as planner:
            planner.ticks_on()
            assert ready(planner) == 2
            assert newest_decision(planner)[0] == -1
            planner.send("PATCH", "/v1/deployments/fleet", {"min_endpoint": 3})
            decision, replicas = eventually(
                lambda: newest_decision(planner)[0] >= 0 and newest_decision(planner)
            )
            assert replicas == 3

            planner.restart()
            assert newest_decision(planner) == (decision, 3)
            assert selector.call("POST", "/workers", worker_body(3)).status < 300
            done = planner.send("POST", f"/v1/decision/{decision}/complete", {"num_decode": 3})
            assert done["status"] == "completed"
            eventually(lambda: ready(planner) == 3)

            selector.stop()
            silent = planner.ticks_on(5)
            assert silent["faults"]
            assert {each["code"] for each in silent["reasons"]} & {
                "observation_stale",
                "no_traffic_data",
                "replicas_unknown",
            }
            assert newest_decision(planner) == (decision, 3)
            assert planner.process.stop_with_signal()[0] == 0
    lines = list(read_lines(tmp_path / "decisions.jsonl"))
    ticks = [line for line in lines if isinstance(line, TickLine)]
    assert len(ticks) >= 8
    assert any(line.scale_to for line in ticks)


def test_faults_are_reported_before_the_first_tick(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with Running("--threads", "1") as selector:
        given = config(selector, tmp_path, throughput_adjustment_interval_seconds=600)
        with Planner(tmp_path, given) as planner:
            status = eventually(lambda: (now := planner.status())["faults"] and now)
            assert "no schedulable worker serves the model" in status["faults"]["model"]
        given["selectors"].append(dead)
        selector.call("POST", "/workers", worker_body(1))
        with Planner(tmp_path, given) as planner:
            status = eventually(lambda: (now := planner.status())["faults"] and now)
            assert status["ticks"] == 0
            assert dead in status["faults"]
            assert [each["code"] for each in status["reasons"]] == ["before_first_tick"]
            assert 0.0 < status["next_tick_s"] - time.time() <= 600.0
            log = planner.process.read_log()
            assert f"selector not readable url={dead}" in log
            assert "deployment observed deployment=fleet" in log


def test_the_end_answers_requests_that_wait_for_a_decision(tmp_path: Path) -> None:
    with (
        Running("--threads", "1") as selector,
        Planner(tmp_path, config(selector, tmp_path)) as planner,
        planner.client() as poller,
        planner.client() as unfinished,
    ):
        poller.send(request("GET", "/v1/decision?after=9&timeout_ms=60000"))
        head = "content-type: application/json\r\ncontent-length: 9"
        unfinished.send(
            f"PATCH /v1/deployments/fleet HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n{{".encode()
        )
        planner.ticks_on(1)
        status, _ = planner.process.stop_with_signal()
        assert status == 0
        answer = poller.answer()
        assert (answer.status, answer.body["decision_id"]) == (200, -1)
        cut_off = unfinished.answer()
        assert (cut_off.status, cut_off.body["code"]) == (503, "shutting_down")
    assert "Traceback" not in planner.process.read_log()


def test_changes_over_http_apply_or_get_an_explained_error(tmp_path: Path) -> None:
    with (
        Running("--threads", "1") as selector,
        Planner(tmp_path, config(selector, tmp_path, advisory=True)) as planner,
    ):
        selector.call("POST", "/workers", worker_body(1))
        with pytest.raises(urllib.error.HTTPError) as refused:
            planner.send("PATCH", "/v1/deployments/fleet", {"min_endpoint": 99})
        assert refused.value.code == 422
        assert "99 GPUs" in json.load(refused.value)["error"]
        planner.send("PATCH", "/v1/deployments/fleet", {"min_endpoint": 2})
        planner.ticks_on(3)
        assert newest_decision(planner)[0] == -1
        planner.send("PATCH", "/v1/deployments/fleet", {"advisory": False})
        assert eventually(lambda: newest_decision(planner)[0] == 0)
        assert planner.process.stop_with_signal()[0] == 0
    assert "Traceback" not in planner.process.read_log()
