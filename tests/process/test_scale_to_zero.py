"""Test of fleets that scale to zero without requests, and return with the next request."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.polling import eventually
from tests.builders.running import Running
from tests.process.planner_process import Planner
from tests.process.sleeping_fleets import (
    FollowedPlatform,
    SleepingFleet,
    VirtualPlatform,
    cluster_platform,
)

pytestmark = pytest.mark.process

REST_S = 0.05
ASLEEP_S = 7.0
"""Time without requests, seconds: longer than the hour of `short_hour` and than a tick looks back.
"""
LOOPS: dict[str, dict[str, Any]] = {
    "throughput": {},
    "both": {"enable_load_scaling": True},
    "load": {"enable_throughput_scaling": False, "enable_load_scaling": True},
}
Make = Callable[[Path], contextlib.AbstractContextManager[FollowedPlatform]]


@contextlib.contextmanager
def virtual_platform(folder: Path) -> Iterator[FollowedPlatform]:
    yield VirtualPlatform(folder)


def until(predicate: Callable[[], bool]) -> None:
    """Wait as `eventually` does, with a rest between queries of processes."""

    def rested() -> bool:
        time.sleep(REST_S)
        return predicate()

    eventually(rested)


@pytest.mark.parametrize("make", [virtual_platform, cluster_platform])
@pytest.mark.parametrize("loops", LOOPS)
def test_a_fleet_wakes_serves_sleeps_and_wakes_again(make, loops, tmp_path):
    own = {
        "name": "fleet",
        "model_name": "m",
        "mode": "agg",
        "min_endpoint": 0,
        "throughput_adjustment_interval_seconds": 2,
        "load_adjustment_interval_seconds": 1,
        "down_window_s": 2,
        "down_cooldown_s": 1,
        "startup_s": 1,
        **LOOPS[loops],
    }
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(make(tmp_path))
        own["connector"] = platform.connector
        selector = stack.enter_context(Running("--threads", "1", module="tests.process.short_hour"))
        config = {"selectors": [f"http://127.0.0.1:{selector.port}"], "deployments": [own]}
        planner = stack.enter_context(Planner(tmp_path, config, *platform.flags))
        fleet = SleepingFleet(platform, selector, planner)

        until(fleet.wake)  # neither has ever seen the model
        assert fleet.refused > 0
        until(lambda: fleet.follow() == 0)
        begin = time.monotonic()
        until(lambda: fleet.follow() > 0 or time.monotonic() > begin + ASLEEP_S)
        assert fleet.follow() == 0
        status = planner.status()
        assert not status["stale"]
        assert status["replicas"]["decode"]["ready"] == 0

        fleet.refused = 0
        until(fleet.wake)  # after an hour without requests
        assert fleet.refused > 0
        until(lambda: fleet.follow() == 0)
        if make is virtual_platform:
            planner.restart()
            fleet.refused = 0
            until(fleet.wake)
            assert fleet.refused > 0
        assert planner.process.stop_with_signal()[0] == 0
    assert "Traceback" not in planner.process.read_log()
