"""Tests of a service's endpoints, which follow the EndpointSlices."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import yaml

pytest.importorskip("kubernetes_asyncio")

from select_service.adapters.discovery import engine_prober as completing_module
from select_service.adapters.discovery import kubernetes_source
from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.kubernetes_engines import KubernetesSlices
from select_service.adapters.discovery.kubernetes_watch import KubernetesWatchClient
from select_service.config.discovery_sources import KubernetesSource
from tests.adapters.discovery.test_completing import RecordedOffers
from tests.adapters.discovery.test_kubernetes_pods import kubeconfig
from tests.builders.fake_kubernetes.kinds import ENDPOINT_SLICE
from tests.builders.fake_kubernetes.server import FakeKubernetes, Fault, serving
from tests.builders.polling import eventually_on_loop
from tests.builders.slice_documents import a_slice, an_endpoint

RIGHTS = Path(__file__).parents[3] / "docs" / "examples" / "discovery-slices-rbac.yaml"
ONE, TWO = an_endpoint("10.0.0.1", pod="vllm-0"), an_endpoint("10.0.0.2", pod="vllm-1")


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(kubernetes_source, "RETRY_S", 0.02)
    monkeypatch.setattr(kubernetes_source, "PAUSE_S", 0.0)
    monkeypatch.setattr(completing_module, "GATHER_S", 0.0)


class Scene:
    def __init__(self, fake, told):
        self.fake, self.told = fake, told

    async def find(self, *ips):
        wanted = [f"http://{ip}:8000" for ip in sorted(ips)]
        await eventually_on_loop(
            lambda: sorted(w.endpoint for w in (self.told.desired or {}).values()) == wanted
        )

    def put(self, name, *endpoints, **changes):
        self.fake.store.create(ENDPOINT_SLICE, "prod", a_slice(name, *endpoints, **changes))

    def set(self, name, *endpoints, **changes):
        self.fake.store.update(ENDPOINT_SLICE, "prod", name, a_slice(name, *endpoints, **changes))

    def drop(self, name):
        self.fake.store.delete_worker(ENDPOINT_SLICE, "prod", name)


@contextlib.asynccontextmanager
async def followed(folder, labels="kubernetes.io/service-name=vllm"):
    async with serving(FakeKubernetes()) as fake:
        config = kubeconfig(folder, fake.url)
        source = KubernetesSource("a", None, labels, None, config, {}, False, True)
        told = RecordedOffers()
        slices = KubernetesSlices(
            source, told.readings, EngineProber(told.readings, None), KubernetesWatchClient(config)
        )
        scene = Scene(fake, told)
        scene.put("vllm-a", ONE, TWO, an_endpoint("10.0.0.9", pod="new", ready=False))
        scene.put("web-a", an_endpoint("10.0.0.8"), service="web", labels={"tier": "gpu"})
        task = asyncio.create_task(slices.run())
        try:
            async with asyncio.timeout(60.0):
                yield scene
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_endpoints_appear_get_ready_and_leave(tmp_path):
    async with followed(tmp_path) as scene:
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("vllm-a", ONE, TWO, an_endpoint("10.0.0.9", pod="new"))
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.9")
        scene.set("vllm-a", ONE, an_endpoint("10.0.0.2", pod="vllm-1", terminating=True))
        await scene.find("10.0.0.1")
        scene.put("vllm-b", TWO)
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("vllm-b", TWO, ONE)  # the endpoint is in both slices during a move
        scene.set("vllm-a")
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.drop("vllm-b")
        await scene.find()


async def test_a_slice_without_a_port_keeps_its_former_endpoints(tmp_path):
    async with followed(tmp_path) as scene:
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("vllm-a", ONE, ports=())
        await eventually_on_loop(lambda: "prod/vllm-a" in scene.told.readings.withheld)
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("vllm-a", ONE)
        await scene.find("10.0.0.1")
        assert scene.told.readings.withheld == {}


async def test_a_label_of_services_selects_their_slices(tmp_path):
    async with followed(tmp_path, labels="tier=gpu") as scene:
        await scene.find("10.0.0.8")


async def test_versions_the_server_has_forgotten_are_listed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_source, "WATCH_S", 1)
    async with followed(tmp_path) as scene:
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.fake.faults.append(Fault("GET", "/endpointslices", 500, times=1))
        await eventually_on_loop(lambda: scene.told.readings.failures == 1)
        scene.drop("vllm-a")
        scene.put("vllm-b", an_endpoint("10.0.0.3"))
        scene.fake.store.compact()
        await scene.find("10.0.0.3")


async def test_the_example_grants_the_rights_in_use(tmp_path):
    async with followed(tmp_path) as scene:
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.put("vllm-b", an_endpoint("10.0.0.3"))
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.3")
        path = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
        assert set(scene.fake.requests) == {("GET", path)}
    documents = yaml.safe_load_all(RIGHTS.read_text())
    (role,) = [each for each in documents if each["kind"] == "Role"]
    slices = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    }
    assert role["rules"] == [slices]
