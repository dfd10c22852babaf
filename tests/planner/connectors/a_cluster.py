"""Cluster with a fake API server, a connector, and a plain client that needs no library."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import JSON, answer_error
from select_service.planner.connectors.kube.scale_target import ScaleTarget
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from select_service.planner.core.tick_input import Role
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, Kind
from tests.builders.fake_kubernetes.server import FakeKubernetes, serving

P, D = Role.PREFILL, Role.DECODE


class PlainApi:
    """Client of the API.

    timeout_s: timeout of a request, in s
    """

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        self.url, self.timeout_s = url, timeout_s

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers={"Content-Type": content_type}) as s,
                s.request(method, self.url + path, json=body) as answer,
            ):
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise KubernetesError(0, f"no answer: {error}") from None
        if answer.status >= 300:
            raise answer_error(answer.status, content)
        return content

    async def namespace(self) -> str:
        return "default"

    async def close(self) -> None:
        pass


class Time:
    """Common clock of the connector and the cluster."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Fake cluster with a deployment for each role; `tick` advances its time."""

    def __init__(self, fake: FakeKubernetes, api: PlainApi, time: Time) -> None:
        self.fake, self.api, self.time = fake, api, time
        self.store, self.controller = fake.store, fake.controller

    def add(
        self, kind: Kind, name: str, replicas: int, spec: Mapping[str, Any] | None = None
    ) -> None:
        """Create an object with all its pods running."""
        spec = {"replicas": replicas, **(spec or {})}
        self.store.create(kind, "default", {"metadata": {"name": name}, "spec": spec})
        self.settle()

    def settle(self) -> None:
        """Run the controller until nothing changes any more."""
        for _ in range(8):
            self.controller.step(self.controller.startup_s)

    def tick(self, seconds: float = 5.0) -> None:
        """Advance the time of the connector and the cluster."""
        self.time.now += seconds
        self.controller.step(seconds)

    def replicas(self, name: str, kind: Kind = DEPLOYMENT) -> int:
        return int(self.store.get(kind, "default", name)["spec"]["replicas"])

    def set_replicas(self, name: str, count: int) -> None:
        """Change the replica count as a user of kubectl does."""
        patch = {"spec": {"replicas": count}}
        self.store.patch(DEPLOYMENT, "default", name, patch, "merge-patch")

    def connector(self, *targets: ScaleTarget, **options: Any) -> KubernetesConnector:
        chosen = targets or (deployment(P, "prefill"), deployment(D, "decode"))
        return KubernetesConnector(self.api, chosen, clock=self.time, **options)


def deployment(role: Role, name: str) -> ScaleTarget:
    return ScaleTarget(role, "Deployment", name, "default")


@asynccontextmanager
async def a_cluster(prefill: int = 4, decode: int = 4) -> AsyncIterator[Cluster]:
    async with serving(FakeKubernetes()) as fake:
        cluster = Cluster(fake, PlainApi(fake.url), Time())
        cluster.add(DEPLOYMENT, "prefill", prefill)
        cluster.add(DEPLOYMENT, "decode", decode)
        fake.controller.most_pods = 0
        yield cluster
