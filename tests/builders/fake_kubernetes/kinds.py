"""The resources that the fake knows."""

from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Kind of a resource.

    group: API group; empty for the core
    scaled_by: whether there is a scale subresource
    """

    group: str
    version: str
    plural: str
    kind: str
    short: tuple[str, ...] = ()
    scaled_by: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def resources(self) -> list[dict[str, Any]]:
        """Return the entries of the discovery document."""
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        own: dict[str, Any] = {
            "name": self.plural,
            "singularName": self.kind.lower(),
            "namespaced": True,
            "kind": self.kind,
            "verbs": verbs,
            "shortNames": list(self.short),
        }
        if not self.scaled_by:
            return [own]
        scale = {
            "name": f"{self.plural}/scale",
            "singularName": "",
            "namespaced": True,
            "group": "autoscaling",
            "version": "v1",
            "kind": "Scale",
            "verbs": ["get", "patch", "update"],
        }
        return [own, scale]


DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", ("deploy",), True)
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", ("sts",), True)
LEADER_WORKER_SET = Kind(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", ("lws",), True
)
GRAPH = Kind("nvidia.com", "v1beta1", "dynamographdeployments", "DynamoGraphDeployment", ("dgd",))
GRAPH_ALPHA = GRAPH._replace(version="v1alpha1")
ADAPTER = Kind(
    "nvidia.com",
    "v1beta1",
    "dynamographdeploymentscalingadapters",
    "DynamoGraphDeploymentScalingAdapter",
    ("dgdsa",),
    True,
)
ENGINE_POOL = Kind("example.org", "v1", "enginepools", "EnginePool", (), True)
POD = Kind("", "v1", "pods", "Pod", ("po",))
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
KINDS = (
    DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, GRAPH, GRAPH_ALPHA, ADAPTER, ENGINE_POOL, POD,
    LEASE, ENDPOINT_SLICE,
)  # fmt: skip
