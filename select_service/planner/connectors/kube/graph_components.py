"""Components of a DynamoGraphDeployment, of either version of its API.

v1beta1 lists them in `spec.components` with `type`; v1alpha1 has the mapping `spec.services` with
`componentType` and `subComponentType`. API of the operator:
https://github.com/ai-dynamo/dynamo/tree/main/deploy/operator/api
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import NOT_FOUND
from select_service.planner.connectors.kube.objects import (
    Container,
    GraphComponent,
    GraphService,
    WorkloadCounts,
    WorkloadObject,
)
from select_service.planner.core.tick_input import Role

GENERIC_WORKER: Final = "worker"
_MODEL_FLAGS: Final = ("--served-model-name", "--model", "--model-path", "--model-name")
"""Flags with a model's name, first the name that clients use."""
_LEGACY_NAMES: Final = {
    Role.PREFILL: re.compile(r"prefill(worker)?\Z"),
    Role.DECODE: re.compile(r"decode(worker)?\Z"),
}
"""Ends of component names that meant a role before there were types: VllmPrefillWorker, decode."""


class NamedComponent(NamedTuple):
    """Component.

    kind:     its type: a role, `worker`, `frontend`, or empty
    replicas: None means 1
    gpus:     GPUs of a pod
    nodes:    pods of a replica
    model:    name of the model; None if unknown
    pointer:  JSON pointer of the component
    """

    name: str
    kind: str
    replicas: int | None
    gpus: int
    nodes: int
    counts: WorkloadCounts
    model: str | None
    pointer: str
    is_listed: bool

    def replicas_patch(self, replicas: int) -> list[dict[str, object]]:
        """Return the JSON patch that sets the replicas."""
        change: dict[str, object] = {
            "op": "add",
            "path": f"{self.pointer}/replicas",
            "value": replicas,
        }
        if not self.is_listed:
            return [change]
        # The test guards against a list that was reordered since the reading.
        return [{"op": "test", "path": f"{self.pointer}/name", "value": self.name}, change]


def find_component(workload: WorkloadObject, role: Role, name: str | None) -> NamedComponent:
    """Return the component of a name, or without a name that of a role. Raises KubernetesError."""
    components = list(list_components(workload))
    if name is not None:
        found = [each for each in components if each.name == name]
        if not found:
            raise KubernetesError(
                NOT_FOUND, f"component {name} does not exist; components: {_names(components)}"
            )
        return found[0]
    for candidates in _candidates(components, role):
        if len(candidates) > 1:
            raise KubernetesError(
                NOT_FOUND,
                f"several components are {role}: {_names(candidates)}; name one as `component`",
            )
        if candidates:
            return candidates[0]
    kinds = ", ".join(f"{each.name} ({each.kind or 'no type'})" for each in components) or "none"
    raise KubernetesError(NOT_FOUND, f"no component is {role}; components: {kinds}")


def list_components(workload: WorkloadObject) -> Iterator[NamedComponent]:
    """Yield all components."""
    spec, status = workload.spec, workload.status
    for index, component in enumerate(spec.components):
        counts = status.components.get(component.name, WorkloadCounts())
        yield _to_component(component, f"/spec/components/{index}", counts, workload)
    for name, service in spec.services.items():
        counts = status.services.get(name, WorkloadCounts())
        yield _to_service(name, service, counts)


def _candidates(components: Sequence[NamedComponent], role: Role) -> Iterator[list[NamedComponent]]:
    """Yield the components that may have a role, the surest rule first."""
    yield [each for each in components if each.kind == role]
    workers = [each for each in components if each.kind == GENERIC_WORKER]
    # Types came after names, so a name decides only where no type does.
    pattern = _LEGACY_NAMES[role]
    yield [each for each in components if not _is_other(each) and pattern.search(_plain(each.name))]
    if role is Role.DECODE:
        yield workers


def _is_other(component: NamedComponent) -> bool:
    """Return whether the type says that a component is no worker of an unknown role."""
    return component.kind not in ("", GENERIC_WORKER)


def _plain(name: str) -> str:
    """Return a name in lower case without separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _names(components: Sequence[NamedComponent]) -> str:
    """Return the names for a message."""
    return ", ".join(each.name for each in components) or "none"


def _to_component(
    component: GraphComponent, pointer: str, counts: WorkloadCounts, workload: WorkloadObject
) -> NamedComponent:
    """Return a component of v1beta1."""
    status = workload.status
    # A status of an older generation may name the model of another spec.
    is_current = status.observed_generation == workload.metadata.generation
    containers = [] if component.pod_template is None else component.pod_template.spec.containers
    return NamedComponent(
        name=component.name,
        kind=component.type,
        replicas=component.replicas,
        gpus=sum(container_gpus(each.resources.limits) for each in containers),
        nodes=1 if component.multinode is None else max(1, component.multinode.node_count),
        counts=counts,
        model=(counts.served_model_name if is_current else None) or _model_of(containers),
        pointer=pointer,
        is_listed=True,
    )


def _to_service(name: str, service: GraphService, counts: WorkloadCounts) -> NamedComponent:
    """Return a component of v1alpha1."""
    container = service.extra_pod_spec.main_container
    # The field `gpu` of v1alpha1 is the number of GPUs; other names are resources of Kubernetes.
    limits = {
        f"nvidia.com/{key}" if key == "gpu" else key: amount
        for key, amount in service.resources.limits.items()
        if isinstance(amount, str | int)
    }
    return NamedComponent(
        name=name,
        kind=service.sub_component_type or service.component_type,
        replicas=service.replicas,
        gpus=container_gpus(limits) or container_gpus(container.resources.limits),
        nodes=1 if service.multinode is None else max(1, service.multinode.node_count),
        counts=counts,
        model=_model_of([container]),
        pointer=f"/spec/services/{name.replace('~', '~0').replace('/', '~1')}",
        is_listed=False,
    )


def _model_of(containers: Sequence[Container]) -> str | None:
    """Return the name of the model on the command lines, or None."""
    words = [word for each in containers for word in _split_words((*each.command, *each.args))]
    for flag in _MODEL_FLAGS:
        for at, word in enumerate(words):
            value = None
            if word == flag and at + 1 < len(words):
                value = words[at + 1]
            elif word.startswith(f"{flag}="):
                value = word.removeprefix(f"{flag}=")
            # Variables and local paths say nothing about the name that clients use.
            if value and not value.startswith(("/", ".", "-")) and "$" not in value:
                return value
    return None


def _split_words(arguments: Sequence[str]) -> list[str]:
    """Return the words of arguments, of which one may be a whole script."""
    words: list[str] = []
    for argument in arguments:
        try:
            words += shlex.split(argument) if " " in argument else [argument]
        except ValueError:  # an unclosed quote
            words += argument.split()
    return words


def container_gpus(limits: Mapping[str, str | int]) -> int:
    """Return the GPUs of a container's limits."""
    total = 0
    for name, amount in limits.items():
        text = str(amount)
        if name.endswith("/gpu") and text.isascii() and text.isdigit():
            total += int(text)
    return total
