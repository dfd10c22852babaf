"""Platforms that follow a planner: with a virtual connector, and a fake cluster of Kubernetes.

Workers are registered with the selector when the platform reports them ready, and deleted when they
leave.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.builders import worker_body
from tests.builders.fake_kubernetes.controller import Controller
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving
from tests.builders.running import Reached
from tests.process.planner_process import Planner

STEP_S = 0.02
STEP_SIMULATED_S = 1.0
"""Simulated time of each step of the cluster, seconds."""


class FollowedPlatform(Protocol):
    """Platform that carries out the planner's decisions.

    connector: connector section of the planner's file
    flags: flags of the planner
    """

    connector: dict[str, Any]
    flags: tuple[str, ...]

    def ready(self, planner: Planner) -> set[int]:
        """Carry out the newest decision; return the ready workers."""


class VirtualPlatform:
    """Platform that carries out decisions at once and reports their completion."""

    def __init__(self, folder: Path) -> None:
        self.connector: dict[str, Any] = {"kind": "virtual", "path": str(folder / "decision.json")}
        self.flags: tuple[str, ...] = ()
        self._ready: set[int] = set()
        self._numbers = count(1)

    def ready(self, planner: Planner) -> set[int]:
        decision = planner.get("/v1/decision")
        if decision["decision_id"] >= 0 and not decision["completed"]:
            self._ready -= set(decision["victims"])
            while len(self._ready) > decision["num_decode"]:
                self._ready.pop()
            while len(self._ready) < decision["num_decode"]:
                self._ready.add(next(self._numbers))
            path = f"/v1/decision/{decision['decision_id']}/complete"
            planner.send("POST", path, {"num_decode": len(self._ready)})
        return set(self._ready)


class ClusterPlatform:
    """Fake cluster with a deployment that begins without pods."""

    def __init__(self, fake: FakeKubernetes, folder: Path) -> None:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(fake.url)))
        self.connector: dict[str, Any] = {
            "kind": "kubernetes",
            "namespace": "default",
            "decode": {"kind": "Deployment", "name": "decode"},
        }
        self.flags = (f"--kubeconfig={kubeconfig}",)
        self._fake = fake

    def ready(self, planner: Planner) -> set[int]:
        status = self._fake.store.get(DEPLOYMENT, "default", "decode").get("status", {})
        return set(range(1, int(status.get("readyReplicas", 0)) + 1))


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "planner", "user": {"token": "any"}}],
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "planner"}}],
    }


@contextmanager
def cluster_platform(folder: Path) -> Iterator[ClusterPlatform]:
    """Yield a cluster with simulated time on a separate thread."""
    begun: Future[tuple[FakeKubernetes, Callable[[], None]]] = Future()
    living = threading.Thread(target=lambda: asyncio.run(_live(begun)))
    living.start()
    fake, end = begun.result(60.0)
    try:
        yield ClusterPlatform(fake, folder)
    finally:
        end()
        living.join()


async def _live(begun: "Future[tuple[FakeKubernetes, Callable[[], None]]]") -> None:
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    async with serving(FakeKubernetes()) as fake:
        spec = {"replicas": 0}
        fake.store.create(DEPLOYMENT, "default", {"metadata": {"name": "decode"}, "spec": spec})
        controller: Controller = fake.controller
        controller.step(STEP_SIMULATED_S)
        begun.set_result((fake, lambda: loop.call_soon_threadsafe(is_over.set) and None))
        while not is_over.is_set():
            controller.step(STEP_SIMULATED_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STEP_S):
                    await is_over.wait()


class SleepingFleet:
    """Workers of a platform at a selector, and the requests for them."""

    def __init__(self, platform: FollowedPlatform, selector: Reached, planner: Planner) -> None:
        self.platform, self.selector, self.planner = platform, selector, planner
        self.refused = 0
        self._there: set[int] = set()

    def follow(self) -> int:
        """Register and delete workers to match the platform; return how many are ready."""
        ready = self.platform.ready(self.planner)
        for worker_id in sorted(self._there - ready):
            assert self.selector.call("DELETE", f"/workers/{worker_id}").status < 300
            self._there.remove(worker_id)
        for worker_id in sorted(ready - self._there):
            assert self.selector.call("POST", "/workers", worker_body(worker_id)).status < 300
            self._there.add(worker_id)
        return len(ready)

    def ask(self) -> bool:
        """Return whether a request gets a rank."""
        prompt = {"model_name": "m", "token_ids": [1, 2, 3, 4]}
        status = self.selector.call("POST", "/select", prompt).status
        assert status in (200, 404, 503)
        self.refused += status != 200
        return status == 200

    def wake(self) -> bool:
        """Carry out the decision and send one request; return whether the request is served."""
        self.follow()
        return self.ask()
