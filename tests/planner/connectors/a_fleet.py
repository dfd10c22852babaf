"""Workers in pods, a selector in front of the workers, and planners that scale both roles."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from select_service.planner.connectors.kube.leader_election import LeaderElection
from select_service.planner.connectors.kube.pod_replacement import PodRules
from select_service.planner.connectors.kube.scale_target import (
    DELETION_COST,
    DRAINED_WORKER,
    ScaleTarget,
)
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from select_service.planner.connectors.selector_client import SelectorClients
from select_service.planner.connectors.worker_drain import WorkerDrainer
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, GRAPH, POD, Kind
from tests.builders.fake_kubernetes.store import Object
from tests.planner.connectors.a_cluster import Cluster, D, P, PlainApi, a_cluster, deployment
from tests.planner.connectors.a_selector import ASelector, running

BLOCKS = {101: 3, 102: 8, 103: 1, 104: 5}
"""Numbers of active blocks of the workers, in the order of their pods."""


@dataclass
class Fleet:
    """Pods of one workload with their selector.

    app: name of the pods' workload
    """

    cluster: Cluster
    selector: ASelector
    kind: Kind
    app: str
    opened: list[SelectorClients] = field(default_factory=list)

    def planner(
        self,
        election: LeaderElection | None = None,
        api: PlainApi | None = None,
        selectors: SelectorClients | None = None,
        pods: PodRules | None = None,
    ) -> KubernetesConnector:
        client = selectors or self.selectors()
        name, component = ("engines", "decode") if self.kind == GRAPH else (self.app, None)
        decode = ScaleTarget(D, self.kind.kind, name, "default", None, component)
        targets, time = (deployment(P, "prefill"), decode), self.cluster.time
        return KubernetesConnector(
            api or self.cluster.api,
            targets,
            election,
            WorkerDrainer(client, clock=time),
            pods=pods,
            clock=time,
        )

    def selectors(self) -> SelectorClients:
        self.opened.append(SelectorClients([self.selector.url], "llama", "default"))
        return self.opened[-1]

    def election(self, identity: str) -> LeaderElection:
        api, time = self.cluster.api, self.cluster.time
        return LeaderElection(api, "default", "select-planner", identity, clock=time)

    def staying(self) -> dict[int, Object]:
        """Return the workers with pods that do not terminate, and these pods."""
        by_host = {host: worker_id for worker_id, host in self.selector.hosts.items()}
        return {
            by_host[pod["status"]["podIP"]]: pod
            for pod in self.cluster.controller.pods(self.app)
            if "deletionTimestamp" not in pod["metadata"]
        }

    def marks(self) -> dict[int, tuple[str | None, bool]]:
        """Return (drained worker, whether the pod has a deletion cost) by worker with marks."""
        said = {w: pod["metadata"].get("annotations", {}) for w, pod in self.staying().items()}
        return {w: (s.get(DRAINED_WORKER), DELETION_COST in s) for w, s in said.items() if s}

    def finish(self, *workers: int) -> None:
        """End all reservations of these workers."""
        for worker_id in workers:
            self.selector.booked[worker_id] = 0

    def forget_marks(self) -> None:
        """Remove all deletion costs, so that the platform chooses pods freely."""
        gone = {"metadata": {"annotations": {DELETION_COST: None}}}
        for pod in self.staying().values():
            name = pod["metadata"]["name"]
            self.cluster.store.patch(POD, "default", name, gone, "merge-patch")


@asynccontextmanager
async def a_fleet(kind: Kind = DEPLOYMENT) -> AsyncIterator[Fleet]:
    """Yield four decode workers with one request each, and four prefill pods without workers."""
    selector = ASelector(booked=dict.fromkeys(BLOCKS, 1), blocks=dict(BLOCKS))
    async with a_cluster() as cluster, running(selector):
        app = "decode"
        if kind == GRAPH:
            app = "engines-decode"
            cluster.add(kind, "engines", 4, {"components": [{"name": "decode", "replicas": 4}]})
        elif kind != DEPLOYMENT:
            app = "engines"
            cluster.add(kind, app, 4)
        pods = cluster.controller.pods(app)
        selector.hosts |= zip(BLOCKS, (pod["status"]["podIP"] for pod in pods), strict=True)
        fleet = Fleet(cluster, selector, kind, app)
        yield fleet
        await asyncio.gather(*(each.close() for each in fleet.opened))
