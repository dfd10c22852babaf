"""Tests of listed and watched pods; a new list replaces versions the API server has forgotten."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import yaml

pytest.importorskip("kubernetes_asyncio")

from select_service.adapters.discovery import engine_prober as completing_module
from select_service.adapters.discovery import kubernetes_source
from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.kubernetes_engines import KubernetesPods
from select_service.adapters.discovery.kubernetes_watch import KubernetesWatchClient
from select_service.config.discovery_sources import KubernetesSource
from select_service.net.kubernetes_session import KubernetesError
from tests.adapters.discovery.test_completing import RecordedOffers
from tests.builders.fake_kubernetes.kinds import POD
from tests.builders.fake_kubernetes.server import FakeKubernetes, Fault, serving
from tests.builders.pod_documents import a_pod
from tests.builders.polling import eventually_on_loop

RIGHTS = Path(__file__).parents[3] / "docs" / "examples" / "discovery-rbac.yaml"


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(kubernetes_source, "RETRY_S", 0.02)
    monkeypatch.setattr(kubernetes_source, "PAUSE_S", 0.0)
    monkeypatch.setattr(completing_module, "GATHER_S", 0.0)


def kubeconfig(folder, url):
    path = folder / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "prod"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


class Scene:
    def __init__(self, fake, told):
        self.fake, self.told = fake, told

    def endpoints(self):
        return sorted(w.endpoint for w in (self.told.desired or {}).values())

    async def find(self, *ips):
        await eventually_on_loop(
            lambda: self.endpoints() == [f"http://{ip}:8000" for ip in sorted(ips)]
        )

    def put(self, name, ip, **changes):
        self.fake.store.create(POD, "prod", a_pod(name, ip=ip, **changes))

    def set(self, name, ip, **changes):
        new = a_pod(name, ip=ip, **changes)
        self.fake.store.update(POD, "prod", name, new)

    def drop(self, name):
        self.fake.store.delete_worker(POD, "prod", name)

    def count_requests(self, what):
        return sum(what in path for _, path in self.fake.requests)


def follow_pods(folder, story, **changes):
    async def run():
        async with serving(FakeKubernetes()) as fake:
            given = {"namespace": None, "labels": "app=vllm", "port": None, **changes}
            source = KubernetesSource(
                name="a", kubeconfig=kubeconfig(folder, fake.url), worker={}, asks=False, **given
            )
            told = RecordedOffers()
            api = KubernetesWatchClient(source.kubeconfig)
            pods = KubernetesPods(source, told.readings, EngineProber(told.readings, None), api)
            task = None
            try:
                async with asyncio.timeout(60.0):
                    scene = Scene(fake, told)
                    for n in (1, 2):
                        scene.put(f"old-{n}", f"10.0.0.{n}")
                    task = asyncio.create_task(pods.run())
                    await story(scene)
            finally:
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    asyncio.run(run())


def test_pods_come_change_and_go(tmp_path):
    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.put("new", "10.0.0.3", ready=False)
        scene.put("other", "10.0.0.9", labels={"app": "web"})
        scene.drop("old-1")
        await scene.find("10.0.0.2")
        scene.set("new", "10.0.0.3")
        await scene.find("10.0.0.2", "10.0.0.3")
        scene.set("old-2", "10.0.0.2", deleted=True)
        await scene.find("10.0.0.3")
        scene.set("new", "10.0.0.4")
        await scene.find("10.0.0.4")

    follow_pods(tmp_path, story)


def test_a_pod_that_loses_its_label_is_gone(tmp_path):
    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("old-1", "10.0.0.1", labels={"app": "web"})
        await scene.find("10.0.0.2")

    follow_pods(tmp_path, story)


def test_long_lists_come_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_source, "PAGE_OBJECTS", 1)

    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")

    follow_pods(tmp_path, story, namespace="prod")


@pytest.mark.parametrize("status", [0, 500, 429])
def test_a_broken_watch_resumes_at_its_end(tmp_path, monkeypatch, status):
    monkeypatch.setattr(kubernetes_source, "WATCH_S", 1)

    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        lists = scene.count_requests("pods")
        scene.fake.faults.append(Fault("GET", "/pods", status, times=2))
        await eventually_on_loop(lambda: scene.told.readings.failures)
        await eventually_on_loop(lambda: scene.told.readings.error is None)
        scene.put("new", "10.0.0.3")
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert scene.count_requests("pods") > lists

    follow_pods(tmp_path, story)


def test_versions_the_server_has_forgotten_are_listed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_source, "WATCH_S", 1)

    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.fake.faults.append(Fault("GET", "/pods", 500, times=1))
        await eventually_on_loop(lambda: scene.told.readings.failures == 1)
        scene.drop("old-1")
        scene.put("new", "10.0.0.3")
        scene.fake.store.compact()
        await scene.find("10.0.0.2", "10.0.0.3")

    follow_pods(tmp_path, story)


def test_bookmarks_advance_the_position_of_a_watch(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_source, "WATCH_S", 1)

    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        for n in range(5):  # pods of others, which this watch does not receive
            scene.fake.store.create(POD, "elsewhere", a_pod(f"x-{n}"))
        scene.fake.store.bookmark()
        asked = scene.count_requests("pods")
        await eventually_on_loop(lambda: scene.count_requests("pods") > asked)
        scene.put("new", "10.0.0.3")
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert scene.told.readings.failures == 0

    follow_pods(tmp_path, story)


def test_a_wrong_annotation_keeps_the_former_worker(tmp_path):
    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("old-1", "10.0.0.1", annotations={"select-service/port": "x"})
        await eventually_on_loop(lambda: "prod/old-1" in scene.told.readings.withheld)
        assert len(scene.endpoints()) == 2
        scene.drop("old-1")
        await scene.find("10.0.0.2")
        assert scene.told.readings.withheld == {}

    follow_pods(tmp_path, story)


def test_a_deeply_nested_annotation_does_not_stop_the_source(tmp_path):
    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.set("old-1", "10.0.0.1", annotations={"select-service/worker": "[" * 5000})
        await eventually_on_loop(lambda: "prod/old-1" in scene.told.readings.withheld)
        scene.put("new", "10.0.0.3")
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.3")

    follow_pods(tmp_path, story)


async def test_missing_rights_and_a_missing_cluster_are_reported(tmp_path):
    async with serving(FakeKubernetes(read_token="secret")) as fake:
        api = KubernetesWatchClient(kubeconfig(tmp_path, fake.url))
        with pytest.raises(KubernetesError, match="status 401: Unauthorized"):
            await api.get_page("/api/v1/pods")
        await api.close()
    nowhere = KubernetesWatchClient(tmp_path / "none")
    with pytest.raises(KubernetesError, match="no access to a cluster"):
        await nowhere.get_page("/api/v1/pods")
    with pytest.raises(KubernetesError, match="no namespace"):
        await nowhere.own_namespace()


def test_the_example_grants_the_rights_in_use(tmp_path):
    async def story(scene):
        await scene.find("10.0.0.1", "10.0.0.2")
        scene.put("new", "10.0.0.3")
        await scene.find("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert set(scene.fake.requests) == {("GET", "/api/v1/namespaces/prod/pods")}

    follow_pods(tmp_path, story)
    documents = yaml.safe_load_all(RIGHTS.read_text())
    (role,) = [each for each in documents if each["kind"] == "Role"]
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    assert role["rules"] == [pods]
