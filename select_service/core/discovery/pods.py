"""Pods of Kubernetes as engines that were found.

Of a pod only what is needed is read, whatever else its document holds.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.records import made_id
from select_service.core.discovery.template import (
    ENDPOINT,
    Fields,
    filled,
    in_url,
    template_error,
)
from select_service.unreadable_json import UNREADABLE

PORT_ANNOTATION = "select-service/port"
WORKER_ANNOTATION = "select-service/worker"
"""Fields of its record as a JSON object, a template like that of the source, which they replace."""
PORT_NAME = "http"
OF_PODS = frozenset({"host", "port", "name", "namespace", "node"})
"""Names that a template may have."""
_READY = "Ready"


class _Metadata(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _Port(Struct):
    containerPort: int  # noqa: N815
    name: str | None = None


class _Container(Struct):
    ports: list[_Port] | None = None


class _Spec(Struct):
    nodeName: str | None = None  # noqa: N815
    containers: list[_Container] = field(default_factory=list)


class _Condition(Struct):
    type: str
    status: str


class _ContainerStatus(Struct):
    restartCount: int = 0  # noqa: N815


class _Status(Struct):
    phase: str | None = None
    podIP: str | None = None  # noqa: N815
    conditions: list[_Condition] | None = None
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815


class Pod(Struct):
    """The names are those of Kubernetes."""

    metadata: _Metadata = field(default_factory=_Metadata)
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class PodTemplate(Struct, frozen=True):
    """port: of engines; None: the pod says it
    worker: the template of a record
    """

    port: int | None
    worker: Fields


def serves(pod: Pod) -> bool:
    """Is it ready, and does it stay?"""
    ready = any(c.type == _READY and c.status == "True" for c in pod.status.conditions or ())
    is_running = pod.status.phase == "Running" and pod.status.podIP is not None
    return ready and is_running and pod.metadata.deletionTimestamp is None


def candidate_of(pod: Pod, template: PodTemplate) -> Candidate:
    """Of a pod that serves.  Raises ValueError with one line.

    A pod that comes again under its name, as those of a StatefulSet do, is the same worker.
    """
    annotations = pod.metadata.annotations or {}
    worker = template.worker | _annotated(annotations.get(WORKER_ANNOTATION))
    values = {
        "host": in_url(pod.status.podIP or ""),
        "port": str(_port(pod, annotations.get(PORT_ANNOTATION), template.port)),
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "node": pod.spec.nodeName or "",
    }
    fields = filled({"endpoint": ENDPOINT, "worker_id": made_id(pod.key), **worker}, values)
    restarts = sum(each.restartCount for each in pod.status.containerStatuses or ())
    return Candidate(str(fields["endpoint"]), fields, f"{pod.metadata.uid}/{restarts}")


def _annotated(text: str | None) -> Fields:
    """Raises ValueError."""
    if text is None:
        return {}
    try:
        found: Any = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise ValueError(f"annotation {WORKER_ANNOTATION}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"annotation {WORKER_ANNOTATION}: an object is expected")
    unknown = [name for name in found if name not in WorkerRegistration.__struct_fields__]
    error_text = f"unknown field `{unknown[0]}`" if unknown else template_error(found, OF_PODS)
    if error_text is not None:
        raise ValueError(f"annotation {WORKER_ANNOTATION}: {error_text}")
    return found


def _port(pod: Pod, annotated: str | None, given: int | None) -> int:
    """Raises ValueError."""
    if annotated is not None:
        if not annotated.isascii() or not annotated.isdigit() or not 0 < int(annotated[:6]) < 65536:
            raise ValueError(f"annotation {PORT_ANNOTATION}: `{annotated[:20]}` is no port")
        return int(annotated)
    if given is not None:
        return given
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    named = [port for port in ports if port.name == PORT_NAME]
    chosen = named or ports
    if len(chosen) != 1:
        raise ValueError(
            f"it has {len(ports)} ports and none that is called `{PORT_NAME}`: say `port` in the "
            f"source, or in its annotation {PORT_ANNOTATION}"
        )
    return chosen[0].containerPort
