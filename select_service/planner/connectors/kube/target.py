"""The object that is scaled for a role: where it is, how it stands, how it is written."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from select_service.planner.connectors.kube import api as requests
from select_service.planner.connectors.kube.api import Api, KubeError, decoded
from select_service.planner.connectors.kube.bodies import (
    ApiResources,
    Component,
    Pod,
    PodList,
    PodSpec,
    ReplicaCounts,
    Scale,
    Workload,
)
from select_service.planner.core.inputs import Limits, Replicas, Role

DYNAMO = "DynamoGraphDeployment"
ORDINAL = frozenset(("StatefulSet", "LeaderWorkerSet"))
"""Kinds that take away the highest numbers, whatever anybody wishes."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-1000000"
DRAINED_WORKER = "select-service/drained-worker"
"""Of a pod that goes: the id of its worker, which a planner has drained; empty: nobody drains."""

_GRAPH_LABEL = "nvidia.com/dynamo-graph-deployment-name"
_COMPONENT_LABEL = "nvidia.com/dynamo-component"
"""What the operator of Dynamo labels pods with."""

_KNOWN = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    DYNAMO: ("nvidia.com/v1beta1", "dynamographdeployments"),
    "DynamoGraphDeploymentScalingAdapter": (
        "nvidia.com/v1beta1",
        "dynamographdeploymentscalingadapters",
    ),
}


class Target(NamedTuple):
    """api_version: None: the usual one of its kind.  component: of a DynamoGraphDeployment."""

    role: Role
    kind: str
    name: str
    namespace: str
    api_version: str | None = None
    component: str | None = None

    @property
    def words(self) -> str:
        """For people."""
        part = f" component {self.component}" if self.component else ""
        return f"{self.kind} {self.namespace}/{self.name}{part}"


class Standing(NamedTuple):
    """How a target stands.

    replicas: that are wanted of it; ready: that serve; existing: pods or replicas, those that
    leave included; component_index: where it is in the list; rv: of what is written.
    """

    target: Target
    path: str
    replicas: int
    ready: int
    existing: int
    terminating: int
    is_observed: bool
    is_rolling: bool
    pods: tuple[Pod, ...]
    limits: Limits | None
    rv: str
    component_index: int | None = None

    @property
    def is_settled(self) -> bool:
        """Is everything as it is wanted?"""
        return (
            self.is_observed
            and not self.is_rolling
            and self.ready == self.replicas == self.existing
            and not self.terminating
        )

    @property
    def starts_only(self) -> bool:
        """Has everything that is there its newest form, and is only something missing?"""
        settled = self.is_observed and not self.is_rolling and not self.terminating
        return settled and self.ready < self.replicas and self.existing <= self.replicas

    def seen(self) -> Replicas:
        """For the core."""
        return Replicas(
            ready=self.ready,
            expected=self.replicas,
            pending=max(0, self.replicas - self.ready),
            in_progress=not self.is_settled,
            startup_only=self.starts_only,
            limits=self.limits,
        )


async def base_path(api: Api, target: Target) -> str:
    """Of the object.  Kinds that are not known are looked up.  Raises KubeError."""
    version, plural = _KNOWN.get(target.kind, (target.api_version, None))
    version = target.api_version or version
    if version is None:
        raise KubeError(requests.NOT_FOUND, f"{target.kind}: its api_version is not known")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if plural is None:
        found = await requests.read(api, root, ApiResources)
        names = [r.name for r in found.resources if r.kind == target.kind and "/" not in r.name]
        if not names:
            raise KubeError(requests.NOT_FOUND, f"{version} has no {target.kind}")
        plural = names[0]
    return f"{root}/namespaces/{quote(target.namespace)}/{plural}/{quote(target.name)}"


async def look(api: Api, target: Target, path: str) -> Standing:
    """As it is now.  Raises KubeError."""
    workload = await requests.read(api, path, Workload)
    if target.kind == DYNAMO:
        selector = f"{_GRAPH_LABEL}={target.name},{_COMPONENT_LABEL}={target.component}"
        pods = await _pods(api, target.namespace, selector)
        return _component_standing(target, path, workload, pods)
    scale = await requests.read(api, path + "/scale", Scale)
    pods = await _pods(api, target.namespace, scale.status.selector)
    counts = workload.status
    replicas = scale.spec.replicas
    return _standing(
        target, path, workload, counts, replicas, pods, scale.metadata.resource_version
    )


async def _pods(api: Api, namespace: str, selector: str) -> tuple[Pod, ...] | None:
    """None: this target does not say which are its own."""
    if not selector:
        return None
    query = urlencode({"labelSelector": selector})
    found = await requests.read(api, f"/api/v1/namespaces/{quote(namespace)}/pods?{query}", PodList)
    return tuple(pod for pod in found.items if not pod.is_over)


def _component_standing(
    target: Target, path: str, workload: Workload, pods: tuple[Pod, ...] | None
) -> Standing:
    """Raises KubeError."""
    components = workload.spec.components
    for index, component in enumerate(components):
        if component.name == target.component:
            counts = workload.status.components.get(component.name, ReplicaCounts())
            replicas = 1 if component.replicas is None else component.replicas
            rv = workload.metadata.resource_version
            standing = _standing(target, path, workload, counts, replicas, pods, rv)
            nodes = 1 if component.multinode is None else component.multinode.node_count
            existing = max(-(-len(standing.pods) // max(1, nodes)), counts.replicas or 0)
            limits = _component_limits(component) or standing.limits
            return standing._replace(component_index=index, limits=limits, existing=existing)
    names = ", ".join(component.name for component in components) or "none"
    raise KubeError(requests.NOT_FOUND, f"no component {target.component}; there are: {names}")


def _standing(
    target: Target,
    path: str,
    workload: Workload,
    counts: ReplicaCounts,
    replicas: int,
    pods: tuple[Pod, ...] | None,
    rv: str,
) -> Standing:
    there = pods or ()
    leaving = sum(pod.metadata.deletion_timestamp is not None for pod in there)
    existing = counts.replicas or 0
    if pods is not None:
        existing = max(len(pods), existing)
    says_ready = counts.ready_replicas is not None or target.kind in _KNOWN_TO_SAY_READY
    ready = counts.ready_replicas or 0
    if not says_ready:
        ready = sum(pod.is_ready for pod in there) if pods is not None else existing
    observed = workload.status.observed_generation
    generation = workload.metadata.generation
    updated = counts.updated_replicas
    if updated is None and target.kind in _KNOWN_TO_SAY_READY:
        updated = 0
    return Standing(
        target=target,
        path=path,
        replicas=replicas,
        ready=ready,
        existing=existing,
        terminating=leaving,
        is_observed=observed is None or generation is None or observed >= generation,
        is_rolling=updated is not None and updated < (counts.replicas or 0),
        pods=there,
        limits=_limits(workload, there),
        rv=rv,
    )


_KNOWN_TO_SAY_READY = frozenset(("Deployment", "StatefulSet", "LeaderWorkerSet"))
"""Kinds that leave a count out only when it is 0."""


def _limits(workload: Workload, pods: tuple[Pod, ...]) -> Limits | None:
    """GPUs of one replica; None: nothing says so."""
    spec = workload.spec
    group = spec.leader_worker_template
    if group is not None:
        leader = group.leader_template or group.worker_template
        gpus = _gpus(leader.spec) + (group.size - 1) * _gpus(group.worker_template.spec)
    elif spec.template is not None:
        gpus = _gpus(spec.template.spec)
    else:
        gpus = _gpus(pods[0].spec) if pods else 0
    return Limits(num_gpu=gpus) if gpus > 0 else None


def _component_limits(component: Component) -> Limits | None:
    if component.pod_template is None:
        return None
    nodes = 1 if component.multinode is None else component.multinode.node_count
    gpus = nodes * _gpus(component.pod_template.spec)
    return Limits(num_gpu=gpus) if gpus > 0 else None


def _gpus(spec: PodSpec) -> int:
    counts = (_gpus_of(container.resources.limits) for container in spec.containers)
    return sum(counts)


def _gpus_of(limits: Mapping[str, str | int]) -> int:
    total = 0
    for name, amount in limits.items():
        text = str(amount)
        if name.endswith("/gpu") and text.isascii() and text.isdigit():
            total += int(text)
    return total


async def write(api: Api, standing: Standing, replicas: int) -> None:
    """Ask for so many, if nobody has changed it since.  Raises KubeError."""
    if standing.target.kind == DYNAMO:
        at = f"/spec/components/{standing.component_index}"
        patch: object = [
            {"op": "test", "path": f"{at}/name", "value": standing.target.component},
            {"op": "add", "path": f"{at}/replicas", "value": replicas},
        ]
        await api.call("PATCH", standing.path, patch, requests.JSON_PATCH)
        return
    patch = {"spec": {"replicas": replicas}, "metadata": {"resourceVersion": standing.rv}}
    content = await api.call("PATCH", standing.path + "/scale", patch, requests.MERGE_PATCH)
    decoded(content, Scale)


async def annotate(
    api: Api, namespace: str, pod: Pod, annotations: Mapping[str, str | None]
) -> None:
    """Others of a pod stay; None: take one away.  Raises KubeError."""
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod.metadata.name)}"
    patch = {"metadata": {"annotations": annotations}}
    await api.call("PATCH", path, patch, requests.MERGE_PATCH)
