"""Tests of Dynamo's graph deployments: roles by type, both API versions, and the served model."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from select_service.planner import config
from select_service.planner.config_loader import PlannerConfigError, convert_config
from select_service.planner.connectors.connector import ConnectorError, ConnectorStatus
from select_service.planner.connectors.factory import ConnectorEnvironment, make_connector
from select_service.planner.connectors.kube.scale_target import ScaleTarget
from select_service.planner.core.tick_input import EngineLimits, RoleReplicas
from select_service.planner.graph_targets import PARENT_GRAPH_VARIABLE
from tests.builders.fake_kubernetes.kinds import GRAPH, GRAPH_ALPHA, Kind
from tests.planner.connectors.a_cluster import Cluster, D, P, PlainApi, a_cluster

GRAPH_KIND = "DynamoGraphDeployment"
MODEL = "Qwen/Qwen3-8B"


def with_a_cluster(scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with a_cluster() as cluster:
            await scene(cluster)

    asyncio.run(run())


def of_role(role: Any, **more: Any) -> ScaleTarget:
    return ScaleTarget(role, GRAPH_KIND, "graph", "default", **more)


def add_graph(cluster: Cluster, kind: Kind, spec: dict[str, Any]) -> None:
    cluster.store.create(kind, "default", {"metadata": {"name": "graph"}, "spec": spec})
    cluster.settle()


def service(part: str, replicas: int, *, model: str = MODEL, **more: Any) -> dict[str, Any]:
    """Return a service of v1alpha1 as in Dynamo's examples."""
    script = f"python3 -m dynamo.vllm --model {model} --is-{part}-worker"
    return {
        "componentType": "worker",
        "subComponentType": part,
        "replicas": replicas,
        "resources": {"limits": {"gpu": "2", "memory": "64Gi", "custom": {"example.org/nic": "1"}}},
        "extraPodSpec": {"mainContainer": {"command": ["/bin/sh", "-c"], "args": [script]}},
        **more,
    }


FRONTEND = {"componentType": "frontend", "replicas": 1}
SERVICES = {
    "Frontend": FRONTEND,
    "VllmPrefillWorker": service("prefill", 2),
    "Vllm/Decode~Worker": service("decode", 3, multinode={"nodeCount": 2}),
}


def test_services_of_the_older_version_are_read_and_scaled() -> None:
    async def scene(cluster: Cluster) -> None:
        add_graph(cluster, GRAPH_ALPHA, {"services": SERVICES})
        connector = cluster.connector(of_role(P, model_name=MODEL.lower()), of_role(D))
        await connector.validate()
        assert (await connector.read())[P] == RoleReplicas(
            ready=2, expected=2, limits=EngineLimits(num_gpu=2)
        )
        assert (await connector.read())[D].limits == EngineLimits(num_gpu=4)
        wanted = {P: 3, D: 5}
        assert {each.status for each in (await connector.scale(wanted)).roles.values()} == {
            ConnectorStatus.APPLIED
        }
        found = cluster.store.get(GRAPH_ALPHA, "default", "graph")["spec"]["services"]
        assert {name: each["replicas"] for name, each in found.items()} == {
            "Frontend": 1,
            "VllmPrefillWorker": 3,
            "Vllm/Decode~Worker": 5,
        }
        cluster.settle()
        assert {role: each.ready for role, each in (await connector.read()).items()} == wanted

    with_a_cluster(scene)


@pytest.mark.parametrize(
    ("components", "found"),
    [
        ([("a", "prefill"), ("b", "decode"), ("planner", "planner")], {P: "a", D: "b"}),
        ([("frontend", "frontend"), ("engines", "worker")], {P: None, D: "engines"}),
        ([("VllmPrefillWorker", ""), ("VllmDecodeWorker", "worker")], {P: 0, D: 1}),
        ([("prefill", "frontend"), ("decode", "")], {P: None, D: "decode"}),
        ([("a", "decode"), ("b", "decode")], {P: None, D: None}),
    ],
)
def test_a_component_is_found_by_its_role(
    components: list[tuple[str, str]], found: dict[Any, Any]
) -> None:
    async def scene(cluster: Cluster) -> None:
        parts = [{"name": name, "type": kind, "replicas": 1} for name, kind in components]
        add_graph(cluster, GRAPH, {"components": parts})
        for role, name in found.items():
            expected = components[name][0] if isinstance(name, int) else name
            connector = cluster.connector(of_role(role))
            if expected is None:
                with pytest.raises(ConnectorError, match="component"):
                    await connector.validate()
                continue
            await connector.scale({role: 4})
            graph = cluster.store.get(GRAPH, "default", "graph")["spec"]["components"]
            assert {each["name"]: each["replicas"] for each in graph}[expected] == 4

    with_a_cluster(scene)


def test_a_missing_component_names_the_existing_components() -> None:
    async def scene(cluster: Cluster) -> None:
        add_graph(cluster, GRAPH_ALPHA, {"services": {"Frontend": FRONTEND}})
        with pytest.raises(ConnectorError, match=r"no component is decode; .*: Frontend"):
            await cluster.connector(of_role(D)).validate()
        named = of_role(D, component="decode")
        with pytest.raises(ConnectorError, match="decode does not exist; components: Frontend"):
            await cluster.connector(named).validate()

    with_a_cluster(scene)


def test_the_served_model_is_compared_at_the_start() -> None:
    async def scene(cluster: Cluster) -> None:
        add_graph(cluster, GRAPH_ALPHA, {"services": SERVICES})
        with pytest.raises(ConnectorError, match=r"serves Qwen.*, the deployment"):
            await cluster.connector(of_role(P, model_name="llama")).validate()
        mixed = SERVICES | {"VllmPrefillWorker": service("prefill", 1, model="llama")}
        cluster.store.patch(
            GRAPH_ALPHA, "default", "graph", {"spec": {"services": mixed}}, "merge-patch"
        )
        targets = [of_role(role, model_name=MODEL) for role in (P, D)]
        with pytest.raises(ConnectorError, match="components of different models"):
            await cluster.connector(*targets).validate()
        await cluster.connector(of_role(P, component="VllmPrefillWorker")).validate()

    with_a_cluster(scene)


@pytest.mark.parametrize(("generation", "good"), [(1, False), (0, True)])
def test_a_current_status_of_the_operator_counts(generation: int, good: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        add_graph(cluster, GRAPH, {"components": [{"name": "d", "type": "decode"}]})
        cluster.controller.paused = True
        graph = cluster.store.get(GRAPH, "default", "graph")
        status = {
            "observedGeneration": graph["metadata"]["generation"] - 1 + generation,
            "components": {"d": {"replicas": 1, "readyReplicas": 1, "servedModelName": "other"}},
        }
        cluster.store.set_status(GRAPH, graph, status)
        connector = cluster.connector(of_role(D, model_name=MODEL))
        if good:
            await connector.validate()
        else:
            with pytest.raises(ConnectorError, match="serves other"):
                await connector.validate()

    with_a_cluster(scene)


KUBERNETES = {"kind": "kubernetes"}


def load_config(connector: dict[str, Any], mode: str = "disagg") -> config.PlannerConfig:
    deployment = {"name": "chat", "model_name": MODEL, "mode": mode, "connector": connector}
    return convert_config({"selectors": ["http://a:8092"], "deployments": [deployment]})


async def test_the_planners_own_graph_needs_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlannerConfigError, match=f"default: {PARENT_GRAPH_VARIABLE}"):
        load_config(KUBERNETES)
    assert load_config(KUBERNETES | {"graph": "graph"})
    monkeypatch.setenv(PARENT_GRAPH_VARIABLE, "graph")
    (deployment,) = load_config(KUBERNETES | {"lease": None, "namespace": "default"}).deployments
    async with a_cluster() as cluster:
        add_graph(cluster, GRAPH_ALPHA, {"services": SERVICES})
        monkeypatch.setattr(
            "select_service.planner.connectors.factory.KubernetesApiClient",
            lambda _: PlainApi(cluster.fake.url),
        )
        connector = await make_connector(deployment, ConnectorEnvironment())
        await connector.validate()
        assert {role: each.ready for role, each in (await connector.read()).items()} == {P: 2, D: 3}
        await connector.close()


@pytest.mark.parametrize(
    ("connector", "mode", "fault"),
    [
        (
            {"graph": "g", "decode": {"kind": "Deployment", "name": "d"}},
            "agg",
            "either the graph or targets",
        ),
        ({"prefill": {"kind": "Deployment", "name": "p"}}, "disagg", "connector.decode: expected"),
        ({"graph": "g", "prefill": {"kind": "Deployment", "name": "p"}}, "agg", "no target is"),
    ],
)
def test_a_half_given_connector_is_refused(
    connector: dict[str, Any], mode: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT_GRAPH_VARIABLE, "graph")
    with pytest.raises(PlannerConfigError, match=fault):
        load_config(KUBERNETES | connector, mode)


def test_two_deployments_of_one_role_of_a_graph_are_refused() -> None:
    deployment = {
        "model_name": MODEL,
        "mode": "agg",
        "connector": KUBERNETES | {"graph": "graph"},
    }
    two = [deployment | {"name": name} for name in "ab"]
    with pytest.raises(PlannerConfigError, match="component of role decode is the target of two"):
        convert_config({"selectors": ["http://a:8092"], "deployments": two})
