"""A selector and a planner as processes, and simulated engines that follow the planner's decisions.

Engines answer small requests all the time. By its thresholds the planner always proposes fewer
engines than are present, so it scales down to the minimum whenever its inputs are complete.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from select_service.planner.core.tick_input import EngineLimits
from select_service.planner.replay.least_gpu_hours import ServicePromise
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from tests.builders.launched_process import LaunchedProcess, free_port, own_command, own_environment
from tests.builders.polling import eventually
from tests.builders.running import Reached
from tests.builders.simulated_engines import MODEL, EngineFleetSpec, SimulatedPlatform
from tests.process.planner_process import Planner

REQUESTS_S = 8.0
PROMPT, ANSWER = 200, 120
"""Lengths in tokens; an answer takes about 1 s."""
SPEED = EngineSpeed(base_s=0.008, per_prefill_token_s=5e-5, per_kv_token_s=3e-8, per_request_s=1e-4)
LIMITS = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=256, max_kv_tokens=1_000_000)
PROMISE = ServicePromise(ttft_s=1.0, itl_s=0.1, attainment=0.95)


class Selector(Reached):
    """Selector with health checks, so that workers can drain. A restart keeps the port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(free_port())
        canaries = folder / "canaries.yaml"
        canaries.write_text(f"{MODEL}: []\n")
        self._flags = (f"--port={self.port}", "--health-checks=on", f"--canary-config={canaries}")
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = own_environment(
            {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
        )
        self.process = LaunchedProcess(own_command(*self._flags), environment, self.port)
        self.process.wait_until_healthy()

    def states(self) -> dict[int, str]:
        """Return the health state of each worker."""
        parts = self.call("GET", "/health/fleet").body["partitions"]
        return {rank["worker_id"]: rank["state"] for part in parts for rank in part["ranks"]}


class PlannedFleet:
    """Selector, planner and simulated platform of one deployment.

    replicas: number of engines at the start
    startup_s: start-up time of further engines, seconds
    given: settings of the deployment
    """

    def __init__(
        self, folder: Path, *, replicas: int = 2, startup_s: float = 2.0, **given: Any
    ) -> None:
        self._own = {
            "name": "fleet",
            "model_name": MODEL,
            "mode": "agg",
            "optimization_target": "load",
            "load_adjustment_interval_seconds": 0.5,
            "down_window_s": 1,
            "down_cooldown_s": 0.5,
            "startup_s": 1,
            "min_endpoint": replicas,
            "connector": {"kind": "virtual", "path": str(folder / "decision.json")},
            **given,
        }
        self._folder = folder
        fleet = EngineFleetSpec(
            speed=SPEED, limits=LIMITS, startup_s=startup_s, replicas=replicas, promise=PROMISE
        )
        self._closing = contextlib.ExitStack()
        self._fleet = fleet
        self._is_over = threading.Event()
        self._newest = -1

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            self.selector = Selector(self._folder)
            starting.callback(self._end_selector)
            config = {"selectors": [self.selector.url], "deployments": [self._own]}
            prepared = threading.Event()
            self.planner = Planner(self._folder, config)
            starting.enter_context(self.planner)
            url = f"http://127.0.0.1:{self.planner.port}"
            self.platform = SimulatedPlatform(self._fleet, self.selector.url, url, speedup=1.0)
            self._living = threading.Thread(target=self._lives, args=(prepared,))
            self._living.start()
            starting.callback(self.end)
            assert prepared.wait(60.0)
            self._closing = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _lives(self, prepared: threading.Event) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._live(prepared))

    async def _live(self, prepared: threading.Event) -> None:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._reservation_life = task
        await self.platform.create_first_engines()
        prepared.set()
        await self.platform.run_traffic(self._requests())

    def _requests(self) -> Iterator[SimulatedRequest]:
        """Yield requests until the end."""
        at_s = 0.0
        while not self._is_over.is_set():
            yield SimulatedRequest(at_s, PROMPT, ANSWER, PROMPT)
            at_s += 1.0 / REQUESTS_S

    def end(self) -> bool:
        """Stop the requests; return whether all requests under way end by themselves."""
        self._is_over.set()
        self._living.join(30.0)
        if not self._living.is_alive():
            return True
        self._loop.call_soon_threadsafe(self._reservation_life.cancel)
        self._living.join()
        return False

    def _end_selector(self) -> None:
        process = self.selector.process
        if not process.has_ended:
            process.process.send_signal(signal.SIGCONT)
        process.end()

    # --- queries

    @property
    def decided_replicas(self) -> int:
        """Replicas of the newest decision; asserts that decision ids never decrease."""
        decision = self.planner.get("/v1/decision")
        assert decision["decision_id"] >= self._newest
        self._newest = decision["decision_id"]
        return int(decision["num_decode"])

    def reasons(self) -> set[str]:
        return {each["code"] for each in self.planner.status()["reasons"]}

    def ready(self) -> int | None:
        """Return the number of ready replicas in the planner's status."""
        replicas = self.planner.status()["replicas"]
        return replicas["decode"]["ready"] if replicas else None

    def until_there(self, count: int) -> None:
        """Wait until platform, planner and selector agree on the number of engines."""
        eventually(lambda: self.platform.ready == count and self.ready() == count)
        eventually(lambda: list(self.selector.states().values()) == ["healthy"] * count)

    # --- actions

    def least(self, count: int) -> None:
        """Set the minimum number of replicas, also for a restarted planner."""
        self._own["min_endpoint"] = count
        self.planner.send("PATCH", "/v1/deployments/fleet", {"min_endpoint": count})

    def silence_selector(self, signal_number: int = signal.SIGKILL) -> None:
        self.selector.process.process.send_signal(signal_number)

    def restart_selector(self) -> None:
        """Restart the selector; the engines register again as soon as the selector answers."""
        self.selector.process.kill()
        self.selector.start()
        again = asyncio.run_coroutine_threadsafe(self.platform.register_again(), self._loop)
        again.result(30.0)

    def assert_nothing_was_lost(self) -> None:
        """Assert that every request has been answered."""
        assert self.end(), "requests have had no answer"
        totals = self.platform.totals
        assert totals.requests > 0
        assert (totals.failed, totals.done) == (0, totals.requests)
