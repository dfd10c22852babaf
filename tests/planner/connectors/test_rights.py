"""Test of the documented rights: exactly those that the connector uses."""

import subprocess
import sys
from pathlib import Path

import yaml

from select_service.planner.connectors.kube.leader_election import LeaderElection
from select_service.planner.connectors.kube.pod_replacement import PodRules
from select_service.planner.connectors.kube.scale_target import ScaleTarget
from select_service.planner.connectors.selector_client import SelectorClients
from select_service.planner.connectors.worker_drain import WorkerDrainer
from tests.builders.fake_kubernetes.kinds import (
    ADAPTER,
    DEPLOYMENT,
    GRAPH,
    LEADER_WORKER_SET,
    STATEFUL_SET,
)
from tests.planner.connectors.a_cluster import Cluster, D, a_cluster
from tests.planner.connectors.a_selector import ASelector, running

RIGHTS = Path(__file__).parents[3] / "docs" / "examples" / "planner-rbac.yaml"
VERBS = {"GET": "get", "PATCH": "patch", "PUT": "update", "POST": "create", "DELETE": "delete"}
DELETED = PodRules(replaces="delete")
Right = tuple[str, str, str]
"""Group, resource and verb."""


def documented_rights() -> set[Right]:
    (role,) = (
        document
        for document in yaml.safe_load_all(RIGHTS.read_text())
        if document["kind"] == "Role"
    )
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def right_of_request(method: str, path: str) -> Right:
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    resource, *rest = parts[parts.index("namespaces") + 2 :]
    if len(rest) == 2:
        resource = f"{resource}/{rest[1]}"
    verb = "list" if method == "GET" and not rest else VERBS[method]
    return group, resource, verb


async def scaled_up_and_down(cluster: Cluster, target: ScaleTarget, selector: ASelector) -> None:
    drainer = WorkerDrainer(SelectorClients([selector.url], "llama", "default"), clock=cluster.time)
    election = LeaderElection(cluster.api, "default", "select-planner", "one", clock=cluster.time)
    connector = cluster.connector(target, drainer=drainer, election=election, pods=DELETED)
    await connector.validate()
    await connector.read()
    await connector.scale({D: 3})
    cluster.settle()
    if target.kind == DEPLOYMENT.kind:
        pod = cluster.controller.pods("engines")[0]
        selector.booked[7], selector.blocks[7] = 0, 0
        selector.hosts[7] = pod["status"]["podIP"]
        selector.draining.add(7)
        assert (await connector.scale({}, (7,))).replaced == (7,)
        selector.booked.clear()
        cluster.settle()
    await election.try_once()
    await connector.scale({D: 1})
    await connector.close()


async def test_the_rights_in_the_documents_are_those_that_are_used() -> None:
    selector = ASelector(booked={}, blocks={})
    async with a_cluster() as cluster, running(selector):
        graph = {"components": [{"name": "decode", "replicas": 2}]}
        kinds = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, ADAPTER, GRAPH)
        for kind in kinds:
            spec = graph if kind == GRAPH else None
            cluster.add(kind, "engines", 2, spec)
            component = "decode" if kind == GRAPH else None
            target = ScaleTarget(D, kind.kind, "engines", "default", None, component)
            await scaled_up_and_down(cluster, target, selector)
            cluster.store.delete_worker(kind, "default", "engines")
        assert {
            right_of_request(method, path) for method, path in cluster.fake.requests
        } == documented_rights()


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys, select_service.planner.connectors.factory as _;"
        "print(*sorted({'kubernetes_asyncio', 'starlette', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == []
