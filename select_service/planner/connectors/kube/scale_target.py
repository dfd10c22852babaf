"""Object that is scaled for a role: its path, state and updates."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube import api_requests as requests
from select_service.planner.connectors.kube.api_requests import (
    KubernetesApi,
    decode_answer,
)
from select_service.planner.connectors.kube.graph_components import (
    NamedComponent,
    container_gpus,
    find_component,
)
from select_service.planner.connectors.kube.objects import (
    ApiResources,
    PodList,
    PodObject,
    PodSpec,
    ScaleObject,
    WorkloadCounts,
    WorkloadObject,
)
from select_service.planner.core.tick_input import EngineLimits, Role, RoleReplicas

DYNAMO_GRAPH_KIND = "DynamoGraphDeployment"
GRAPH_VERSIONS = ("nvidia.com/v1beta1", "nvidia.com/v1alpha1")
"""Versions of that kind, the newest first."""
ORDINAL_KINDS = frozenset(("StatefulSet", "LeaderWorkerSet"))
"""Kinds that always remove the highest ordinals."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-1000000"
DRAINED_WORKER = "select-service/drained-worker"
"""Annotation of a pod to remove: id of its worker drained by a planner; empty without a drain."""

_GRAPH_LABEL = "nvidia.com/dynamo-graph-deployment-name"
_COMPONENT_LABEL = "nvidia.com/dynamo-component"
"""Labels of pods by the operator of Dynamo."""

_API_PATHS = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    DYNAMO_GRAPH_KIND: ("nvidia.com/v1beta1", "dynamographdeployments"),
    "DynamoGraphDeploymentScalingAdapter": (
        "nvidia.com/v1beta1",
        "dynamographdeploymentscalingadapters",
    ),
}


class ScaleTarget(NamedTuple):
    """Object to scale.

    api_version: None means the usual one of its kind
    component:   component of a DynamoGraphDeployment; None means that of the role
    model_name:  model that the component must serve; None means any
    """

    role: Role
    kind: str
    name: str
    namespace: str
    api_version: str | None = None
    component: str | None = None
    model_name: str | None = None

    @property
    def description(self) -> str:
        """Description for messages."""
        part = f" component {self.component}" if self.component else ""
        return f"{self.kind} {self.namespace}/{self.name}{part}"


class ScaleReading(NamedTuple):
    """Desired and observed counts of a target, read at one version.

    replicas: desired replicas
    resource_version: version for the write
    """

    replicas: int
    counts: WorkloadCounts
    resource_version: str


class TargetState(NamedTuple):
    """State of a target.

    replicas:         desired replicas
    ready:            serving replicas
    existing:         pods or replicas, including terminating ones
    component:        component of a DynamoGraphDeployment
    resource_version: version for the write
    """

    target: ScaleTarget
    path: str
    replicas: int
    ready: int
    existing: int
    terminating: int
    is_observed: bool
    is_rolling: bool
    pods: tuple[PodObject, ...]
    limits: EngineLimits | None
    resource_version: str
    component: NamedComponent | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the state equals the desired one."""
        return (
            self.is_observed
            and not self.is_rolling
            and self.ready == self.replicas == self.existing
            and not self.terminating
        )

    @property
    def starts_only(self) -> bool:
        """Whether all pods are up to date and only some are missing."""
        settled = self.is_observed and not self.is_rolling and not self.terminating
        return settled and self.ready < self.replicas and self.existing <= self.replicas

    def to_replicas(self) -> RoleReplicas:
        """Return the replicas for the core."""
        return RoleReplicas(
            ready=self.ready,
            expected=self.replicas,
            pending=max(0, self.replicas - self.ready),
            in_progress=not self.is_settled,
            startup_only=self.starts_only,
            limits=self.limits,
        )


async def find_object_path(api: KubernetesApi, target: ScaleTarget) -> str:
    """Return the path of the object; unknown kinds are looked up.  Raises KubernetesError."""
    version, plural = _API_PATHS.get(target.kind, (target.api_version, None))
    version = target.api_version or version
    if version is None:
        raise KubernetesError(
            requests.NOT_FOUND, f"{target.kind}: api_version is missing: give it in the target"
        )
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if target.kind == DYNAMO_GRAPH_KIND and target.api_version is None:
        return await _find_graph_path(api, target)
    if plural is None:
        found = await requests.read_object(api, root, ApiResources)
        names = [r.name for r in found.resources if r.kind == target.kind and "/" not in r.name]
        if not names:
            raise KubernetesError(requests.NOT_FOUND, f"{version} has no {target.kind}")
        plural = names[0]
    return f"{root}/namespaces/{quote(target.namespace)}/{plural}/{quote(target.name)}"


async def _find_graph_path(api: KubernetesApi, target: ScaleTarget) -> str:
    """Return the path in the newest version of the API that the cluster serves."""
    missing = None
    for version in GRAPH_VERSIONS:
        path = await find_object_path(api, target._replace(api_version=version))
        try:
            await api.call("GET", path)
        except KubernetesError as error:
            # An object that does not exist and a version that is not served look the same.
            if error.status != requests.NOT_FOUND:
                raise
            missing = missing or error
        else:
            return path
    raise missing or KubernetesError(requests.NOT_FOUND, "no version")


async def read_target_state(api: KubernetesApi, target: ScaleTarget, path: str) -> TargetState:
    """Read the current state.  Raises KubernetesError."""
    workload = await requests.read_object(api, path, WorkloadObject)
    if target.kind == DYNAMO_GRAPH_KIND:
        component = find_component(workload, target.role, target.component)
        selector = f"{_GRAPH_LABEL}={target.name},{_COMPONENT_LABEL}={component.name}"
        pods = await _list_pods(api, target.namespace, selector)
        found = target._replace(component=component.name)
        return _component_state(found, path, workload, component, pods)
    scale = await requests.read_object(api, path + "/scale", ScaleObject)
    pods = await _list_pods(api, target.namespace, scale.status.selector)
    version = scale.metadata.resource_version
    reading = ScaleReading(scale.spec.replicas, workload.status, version)
    return _target_state(target, path, workload, reading, pods)


def find_served_model_fault(found: Iterable[TargetState]) -> str | None:
    """Return why components that were found by their role do not serve the model, or None."""
    asked = [
        (each.target, each.component.model)
        for each in found
        if each.component is not None and each.component.model is not None
    ]
    # Names are compared without case: Dynamo's frontends have them in lower case.
    by_name = {model.lower(): (target, model) for target, model in asked if target.model_name}
    if len(by_name) > 1:
        text = ", ".join(f"{target.component} serves {model}" for target, model in by_name.values())
        return f"components of different models: {text}"
    for name, (target, model) in by_name.items():
        if target.model_name is not None and name != target.model_name.lower():
            return (
                f"{target.description} serves {model}, the deployment's model_name is "
                f"{target.model_name}: correct it, or name the `component`"
            )
    return None


async def _list_pods(
    api: KubernetesApi, namespace: str, selector: str
) -> tuple[PodObject, ...] | None:
    """Return the pods of a selector that have not ended; None without a selector."""
    if not selector:
        return None
    query = urlencode({"labelSelector": selector})
    found = await requests.read_object(
        api, f"/api/v1/namespaces/{quote(namespace)}/pods?{query}", PodList
    )
    return tuple(pod for pod in found.items if not pod.has_ended)


def _component_state(
    target: ScaleTarget,
    path: str,
    workload: WorkloadObject,
    component: NamedComponent,
    pods: tuple[PodObject, ...] | None,
) -> TargetState:
    """Return the state of a component."""
    replicas = 1 if component.replicas is None else component.replicas
    reading = ScaleReading(replicas, component.counts, workload.metadata.resource_version)
    standing = _target_state(target, path, workload, reading, pods)
    # A replica spans several pods, of which some may not exist yet: round up.
    existing = max(-(-len(standing.pods) // component.nodes), component.counts.replicas or 0)
    gpus = component.gpus * component.nodes
    limits = EngineLimits(num_gpu=gpus) if gpus > 0 else standing.limits
    return standing._replace(component=component, limits=limits, existing=existing)


def _target_state(
    target: ScaleTarget,
    path: str,
    workload: WorkloadObject,
    reading: ScaleReading,
    pods: tuple[PodObject, ...] | None,
) -> TargetState:
    """Return the state of a target from its counts and pods."""
    counts = reading.counts
    there = pods or ()
    leaving = sum(pod.metadata.deletion_timestamp is not None for pod in there)
    existing = counts.replicas or 0
    if pods is not None:
        # The status lags behind the pods, and the pods lag behind the status at creation.
        existing = max(len(pods), existing)
    # Kubernetes omits zero counts. For known kinds a missing count is 0; other kinds may not have
    # the field at all, so their pods are counted.
    says_ready = counts.ready_replicas is not None or target.kind in _READY_COUNT_KINDS
    ready = counts.ready_replicas or 0
    if not says_ready:
        ready = sum(pod.is_ready for pod in there) if pods is not None else existing
    observed = workload.status.observed_generation
    generation = workload.metadata.generation
    updated = counts.updated_replicas
    if updated is None and target.kind in _READY_COUNT_KINDS:
        updated = 0
    return TargetState(
        target=target,
        path=path,
        replicas=reading.replicas,
        ready=ready,
        existing=existing,
        terminating=leaving,
        # Until the controller has seen the new spec, its status describes the old spec.
        is_observed=observed is None or generation is None or observed >= generation,
        is_rolling=updated is not None and updated < (counts.replicas or 0),
        pods=there,
        limits=_workload_limits(workload, there),
        resource_version=reading.resource_version,
    )


_READY_COUNT_KINDS = frozenset(("Deployment", "StatefulSet", "LeaderWorkerSet"))
"""Kinds that omit a count only if it is 0."""


def _workload_limits(workload: WorkloadObject, pods: tuple[PodObject, ...]) -> EngineLimits | None:
    """Return the GPUs of a replica, or None if unknown."""
    spec = workload.spec
    group = spec.leader_worker_template
    if group is not None:
        leader = group.leader_template or group.worker_template
        # The leader is one of the group's pods.
        gpus = _pod_gpus(leader.spec) + (group.size - 1) * _pod_gpus(group.worker_template.spec)
    elif spec.template is not None:
        gpus = _pod_gpus(spec.template.spec)
    else:
        gpus = _pod_gpus(pods[0].spec) if pods else 0
    return EngineLimits(num_gpu=gpus) if gpus > 0 else None


def _pod_gpus(spec: PodSpec) -> int:
    """Return the GPUs of a pod."""
    counts = (container_gpus(container.resources.limits) for container in spec.containers)
    return sum(counts)


async def write_replicas(api: KubernetesApi, standing: TargetState, replicas: int) -> None:
    """Set the replicas unless changed by another actor meanwhile.  Raises KubernetesError."""
    if standing.component is not None:
        patch: object = standing.component.replicas_patch(replicas)
        await api.call("PATCH", standing.path, patch, requests.JSON_PATCH)
        return
    # The resource version makes the API server refuse the write if anything changed since.
    patch = {
        "spec": {"replicas": replicas},
        "metadata": {"resourceVersion": standing.resource_version},
    }
    content = await api.call("PATCH", standing.path + "/scale", patch, requests.MERGE_PATCH)
    decode_answer(content, ScaleObject)


async def annotate_pod(
    api: KubernetesApi, namespace: str, pod: PodObject, annotations: Mapping[str, str | None]
) -> None:
    """Set annotations of a pod, None removes; the others stay.  Raises KubernetesError."""
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod.metadata.name)}"
    patch = {"metadata": {"annotations": annotations}}
    await api.call("PATCH", path, patch, requests.MERGE_PATCH)
