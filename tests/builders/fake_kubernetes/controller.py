"""Pods that are Pending, Running, Terminating and gone, in simulated time, `step` by `step`."""

from typing import Any

from tests.builders.fake_kubernetes.kinds import (
    ADAPTER,
    DEPLOYMENT,
    ENGINE_POOL,
    GRAPH,
    GRAPH_ALPHA,
    LEADER_WORKER_SET,
    POD,
    STATEFUL_SET,
    Kind,
)
from tests.builders.fake_kubernetes.store import Object, Store

COST = "controller.kubernetes.io/pod-deletion-cost"
ORDINAL = (STATEFUL_SET, LEADER_WORKER_SET)


class Controller:
    """Controller of all workloads.

    startup_s, termination_s: seconds that a pod needs to start and to end
    stuck: apps with pods that never start
    clinging: apps with pods that never end
    paused: whether the controller observes nothing at all
    """

    def __init__(self, store: Store, startup_s: float = 30.0, termination_s: float = 10.0) -> None:
        self.store = store
        self.startup_s, self.termination_s = startup_s, termination_s
        self.stuck: set[str] = set()
        self.clinging: set[str] = set()
        self.paused = False
        self.most_pods = 0
        self.labels: dict[str, dict[str, str]] = {}
        self._since: dict[str, float] = {}
        self._made = 0

    def step(self, seconds: float) -> None:
        """Advance the time and take all actions that are due then."""
        self.store.now += seconds
        if self.paused:
            return
        self._end_pods()
        for kind in (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, ADAPTER, ENGINE_POOL):
            for found in self.store.list(kind, None):
                counts = self._reconcile(kind, found, found["metadata"]["name"], found["spec"])
                status = {"observedGeneration": found["metadata"]["generation"], **counts}
                self.store.set_status(kind, self._fresh(kind, found), status)
        for found in self.store.list(GRAPH, None):
            self._graph(found)
        for found in self.store.list(GRAPH_ALPHA, None):
            self._alpha_graph(found)
        self.most_pods = max(self.most_pods, len(self.store.list(POD, None)))

    def _fresh(self, kind: Kind, found: Object) -> Object:
        where = found["metadata"]
        return self.store.get(kind, where["namespace"], where["name"])

    def _graph(self, found: Object) -> None:
        parts = {}
        for component in found["spec"]["components"]:
            name = f"{found['metadata']['name']}-{component['name']}"
            self.labels[name] = {
                "nvidia.com/dynamo-graph-deployment-name": found["metadata"]["name"],
                "nvidia.com/dynamo-component": component["name"],
            }
            parts[component["name"]] = self._reconcile(GRAPH, found, name, component)
        status = {"observedGeneration": found["metadata"]["generation"], "components": parts}
        self.store.set_status(GRAPH, self._fresh(GRAPH, found), status)

    def _alpha_graph(self, found: Object) -> None:
        parts = {}
        for service, spec in found["spec"]["services"].items():
            name = f"{found['metadata']['name']}-{service}"
            self.labels[name] = {
                "nvidia.com/dynamo-graph-deployment-name": found["metadata"]["name"],
                "nvidia.com/dynamo-component": service,
            }
            parts[service] = self._reconcile(GRAPH_ALPHA, found, name, spec)
        status = {"observedGeneration": found["metadata"]["generation"], "services": parts}
        self.store.set_status(GRAPH_ALPHA, self._fresh(GRAPH_ALPHA, found), status)

    def pods(self, app: str) -> list[Object]:
        """Return all pods of an app, including terminating pods."""
        return [p for p in self.store.list(POD, None) if p["metadata"]["labels"]["app"] == app]

    def _reconcile(self, kind: Kind, found: Object, app: str, spec: Object) -> dict[str, Any]:
        staying = [p for p in self.pods(app) if "deletionTimestamp" not in p["metadata"]]
        wanted = spec.get("replicas", 1)
        for _ in range(wanted - len(staying)):
            self._make(kind, found["metadata"]["namespace"], app, spec)
        for pod in self._by_use(kind, staying)[: max(0, len(staying) - wanted)]:
            self._delete(pod)
        for pod in self.pods(app):
            self._start(pod, app)
        staying = [p for p in self.pods(app) if "deletionTimestamp" not in p["metadata"]]
        ready = sum(p["status"]["phase"] == "Running" for p in staying)
        counts = {"replicas": len(staying), "updatedReplicas": len(staying)}
        return counts | ({"readyReplicas": ready, "availableReplicas": ready} if ready else {})

    def _by_use(self, kind: Kind, pods: list[Object]) -> list[Object]:
        """Return the pods in the order of deletion."""
        if kind in ORDINAL:
            return sorted(pods, key=lambda p: -int(p["metadata"]["name"].rpartition("-")[2]))

        def order(pod: Object) -> tuple[bool, int, int]:
            cost = int(pod["metadata"].get("annotations", {}).get(COST, "0"))
            made = -int(pod["metadata"]["name"].rpartition("-")[2])
            return pod["status"]["phase"] == "Running", cost, made

        return sorted(pods, key=order)

    def _make(self, kind: Kind, namespace: str, app: str, spec: Object) -> None:
        number = self._made
        self._made += 1
        if kind in ORDINAL:
            taken = {p["metadata"]["name"] for p in self.pods(app)}
            number = next(n for n in range(1 << 20) if f"{app}-{n}" not in taken)
        name = f"{app}-{number}"
        pod = {
            "metadata": {"name": name, "labels": {"app": app} | self.labels.get(app, {})},
            "spec": spec.get("template", {}).get("spec", {"containers": []}),
            "status": {"phase": "Pending", "podIP": f"10.0.0.{self._made}"},
        }
        self.store.create(POD, namespace, pod)
        self._since[name] = self.store.now

    def _start(self, pod: Object, app: str) -> None:
        since = self._since[pod["metadata"]["name"]]
        due = self.store.now - since >= self.startup_s and app not in self.stuck
        if due and pod["status"]["phase"] == "Pending":
            status = pod["status"] | {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            self.store.set_status(POD, pod, status)

    def _delete(self, pod: Object) -> None:
        where = pod["metadata"]
        stamp = {"metadata": {"deletionTimestamp": self.store.stamp()}}
        self.store.patch(POD, where["namespace"], where["name"], stamp, "merge-patch")
        self._since[where["name"]] = self.store.now

    def _end_pods(self) -> None:
        for pod in self.store.list(POD, None):
            where = pod["metadata"]
            leaving = "deletionTimestamp" in where and where["labels"]["app"] not in self.clinging
            if leaving and self.store.now - self._since[where["name"]] >= self.termination_s:
                self.store.delete_worker(POD, where["namespace"], where["name"])
