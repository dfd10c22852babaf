"""Test of selector, planner and the example manager as processes: a hung engine is replaced."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.launched_process import free_port, own_environment
from tests.builders.polling import eventually
from tests.builders.running import Running
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MANAGER = ROOT / "docs/examples/process_manager.py"
HEALTH = (
    "--health-checks=on",
    "--health-interval-secs=1",
    "--health-timeout-secs=3",
    "--health-retries=0",
    "--health-confirm-secs=0.2",
    "--health-slow-start-secs=0",
    "--threads=1",
)


def planner_config(selector: Running) -> dict[str, object]:
    own = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "throughput_adjustment_interval_seconds": 1,
        "min_endpoint": 3,
        "max_gpu_budget": 3,
        "replace_after_s": 5,
        "connector": {"kind": "virtual"},
    }
    return {"selectors": [f"http://127.0.0.1:{selector.port}"], "deployments": [own]}


@contextlib.contextmanager
def managing(planner: Planner, selector: Running, folder: Path) -> Iterator[int]:
    """Run the example with three engines; yield the first engine's port."""
    first = free_port()
    command = [sys.executable, str(MANAGER), f"--planner=http://127.0.0.1:{planner.port}"]
    command += [f"--selector=http://127.0.0.1:{selector.port}", "--model=m", "--block-size=4"]
    command += ["--replicas=3", f"--first-port={first}", "--", sys.executable, "-m"]
    command += ["tests.process.canary_engine", "{port}", str(folder)]
    environment = own_environment({"PYTHONPATH": str(ROOT)})
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        yield first
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def states(selector: Running) -> list[str]:
    (partition,) = selector.call("GET", "/health/fleet").body["partitions"]
    ranks = partition["ranks"]
    return [r["state"] for r in ranks if r["last_result"] == "pass" or r["state"] != "healthy"]


def test_a_hung_engine_is_replaced_in_its_place(tmp_path: Path) -> None:
    with (
        Running(*HEALTH) as selector,
        Planner(tmp_path, planner_config(selector)) as planner,
        managing(planner, selector, tmp_path) as first,
    ):
        eventually(lambda: len(selector.call("GET", "/workers").body) == 3)
        eventually(lambda: states(selector) == ["healthy"] * 3)
        eventually(lambda: planner.status()["replicas"]["decode"]["ready"] == 3)
        hung = int((tmp_path / str(first + 2)).read_text())
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: planner.status()["replicas"]["decode"]["lost_workers"] == [2])
        shown = planner.status()
        assert shown["replicas"]["decode"]["lost"] == 1
        assert "capacity_lost" in {reason["code"] for reason in shown["reasons"]}
        decision = eventually(lambda: (d := planner.get("/v1/decision"))["replace"] and d)
        assert decision["replace"] == [2]
        # -1: no decision, if all three were present at the first tick.
        assert decision["num_decode"] in (3, -1)
        eventually(lambda: int((tmp_path / str(first + 2)).read_text()) != hung)
        eventually(lambda: states(selector) == ["healthy"] * 3)
        eventually(lambda: planner.get("/v1/decision")["completed"])
        eventually(lambda: planner.status()["replicas"]["decode"]["lost"] == 0)
        # Signal 0 to an absent process raises; the hung process was killed, not left behind.
        with pytest.raises(ProcessLookupError):
            os.kill(hung, 0)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit())
