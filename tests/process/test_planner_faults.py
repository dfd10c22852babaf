"""Tests of crashes and silence beside a planner: unknown inputs never scale a fleet down."""

import signal
from contextlib import closing

import msgspec
import pytest
import zmq

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.process.planned_fleet import PlannedFleet, Selector
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process

UNKNOWN = {"no_fpm_data", "no_traffic_data", "replicas_unknown"}


def restart_planner(fleet: PlannedFleet) -> None:
    fleet.planner.restart()


def restart_selector(fleet: PlannedFleet) -> None:
    """Stop the selector for some intervals, then restart."""
    fleet.silence_selector()
    fleet.planner.ticks_on(4)
    assert fleet.reasons() & UNKNOWN
    assert fleet.planner.status()["faults"]
    fleet.restart_selector()


@pytest.mark.parametrize("restart", [restart_planner, restart_selector])
def test_a_restart_in_every_phase_changes_no_decision(restart, tmp_path):
    with PlannedFleet(tmp_path) as fleet:
        fleet.until_there(2)
        restart(fleet)
        fleet.until_there(2)
        assert fleet.decided_replicas == -1

        fleet.least(3)
        eventually(lambda: fleet.decided_replicas == 3)
        assert fleet.platform.ready == 2
        restart(fleet)
        fleet.until_there(3)
        assert fleet.decided_replicas == 3

        fleet.least(2)
        eventually(lambda: "draining" in fleet.selector.states().values())
        assert fleet.decided_replicas == 3
        restart(fleet)
        fleet.until_there(2)
        assert fleet.decided_replicas == 2
        fleet.assert_nothing_was_lost()
        assert fleet.platform.decisions == [(0, 3), (1, 2)]


@pytest.mark.parametrize(
    "silence", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_an_outage_of_observations_takes_nothing_away(silence, tmp_path):
    with PlannedFleet(tmp_path, replicas=3) as fleet:
        fleet.until_there(3)
        fleet.silence_selector(silence)
        fleet.least(2)
        eventually(lambda: fleet.reasons() & UNKNOWN)
        status = fleet.planner.ticks_on(8 if silence == signal.SIGKILL else 1)
        fault = status["faults"][fleet.selector.url]
        assert "connect" in fault.lower() or "answer" in fault
        assert fleet.decided_replicas == -1
        if silence == signal.SIGSTOP:
            fleet.silence_selector(signal.SIGCONT)
        else:
            fleet.restart_selector()
        fleet.until_there(2)
        assert fleet.decided_replicas == 2
        fleet.assert_nothing_was_lost()


class Engines:
    """Publisher of idle engines' metrics."""

    def __init__(self) -> None:
        self._socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.PUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def publish(self, engines: int) -> None:
        for worker in range(engines):
            body = {"version": 1, "worker_id": f"w{worker}", "wall_time": 0.01}
            self._socket.send_multipart([b"", b"", msgspec.msgpack.encode(body)])

    def close(self) -> None:
        self._socket.close(linger=0)


def test_an_engine_that_falls_silent_takes_nothing_away(tmp_path):
    engines, selector = Engines(), Selector(tmp_path)
    own = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "optimization_target": "load",
        "load_adjustment_interval_seconds": 0.5,
        "down_window_s": 1,
        "down_cooldown_s": 0.5,
        "decode_limits": {"max_kv_tokens": 100_000},
        "fpm": {"decode": [engines.endpoint]},
        "connector": {"kind": "virtual"},
    }
    for worker_id in (1, 2, 3):
        assert selector.call("POST", "/workers", worker_body(worker_id)).status < 300
    config = {"selectors": [selector.url], "deployments": [own]}
    with selector.process, closing(engines), Planner(tmp_path, config) as planner:

        def has_reason(reason: str, speaking: int) -> bool:
            engines.publish(speaking)
            return reason in {each["code"] for each in planner.status()["reasons"]}

        eventually(lambda: has_reason("worker_count_mismatch", 2))
        until = planner.status()["ticks"] + 5
        while planner.status()["ticks"] < until:
            assert has_reason("worker_count_mismatch", 2)
        assert planner.get("/v1/decision")["decision_id"] == -1
        eventually(lambda: has_reason("scale_down", 3))
        eventually(lambda: planner.get("/v1/decision")["num_decode"] == 2)


def test_a_start_that_never_comes_is_withdrawn(tmp_path):
    above = {"decode_scale_up_kv_rate": 1e-6, "decode_scale_down_kv_rate": 0.0}
    with PlannedFleet(
        tmp_path, startup_s=1e6, max_gpu_budget=3, pending_stuck_secs=2, **above
    ) as fleet:
        eventually(lambda: fleet.decided_replicas == 3)
        eventually(lambda: "pending_stuck" in fleet.reasons())
        eventually(lambda: fleet.decided_replicas == 2)
        fleet.until_there(2)
        fleet.planner.ticks_on(3)
        assert "pending_stuck_ceiling" in fleet.reasons()
        assert fleet.decided_replicas == 2
        fleet.assert_nothing_was_lost()
        assert fleet.platform.decisions == [(0, 3), (1, 2)]
