"""Engines from Kubernetes pods. Only the necessary fields of a pod are decoded."""

from typing import Any

import msgspec
from msgspec import Struct, field

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.core.registry.discovery.record_template import (
    DEFAULT_ENDPOINT,
    Fields,
    fill_template,
    find_template_error,
    host_in_url,
)
from select_service.core.registry.discovery.worker_records import derive_worker_id
from select_service.schemas.workers import WorkerRegistration

PORT_ANNOTATION = "select-service/port"
WORKER_ANNOTATION = "select-service/worker"
"""Fields of the record as a JSON object, a template like the source's, which they override."""
PORT_NAME = "http"
POD_PLACEHOLDERS = frozenset({"host", "port", "name", "namespace", "node"})
"""Names available in templates."""
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


class KubernetesPod(Struct):
    """Pod; field names as in Kubernetes."""

    metadata: _Metadata = field(default_factory=_Metadata)
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class KubernetesPodTemplate(Struct, frozen=True):
    """Template of a source.

    port: port of engines; None means the port in the pod
    worker: template of a record
    """

    port: int | None
    worker: Fields


def is_serving(pod: KubernetesPod) -> bool:
    """Return whether the pod is ready and not being deleted."""
    ready = any(c.type == _READY and c.status == "True" for c in pod.status.conditions or ())
    is_running = pod.status.phase == "Running" and pod.status.podIP is not None
    return ready and is_running and pod.metadata.deletionTimestamp is None


def candidate_of_pod(pod: KubernetesPod, template: KubernetesPodTemplate) -> EngineCandidate:
    """Return the candidate of a serving pod. Raises ValueError with one line.

    A pod that returns under the same name, as in a StatefulSet, is the same worker.
    """
    annotations = pod.metadata.annotations or {}
    worker = template.worker | _annotation_fields(annotations.get(WORKER_ANNOTATION))
    values = {
        "host": host_in_url(pod.status.podIP or ""),
        "port": str(_choose_port(pod, annotations.get(PORT_ANNOTATION), template.port)),
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "node": pod.spec.nodeName or "",
    }
    fields = fill_template(
        {"endpoint": DEFAULT_ENDPOINT, "worker_id": derive_worker_id(pod.key), **worker}, values
    )
    # A restarted container has the same pod uid but may be another engine version.
    restarts = sum(each.restartCount for each in pod.status.containerStatuses or ())
    return EngineCandidate(str(fields["endpoint"]), fields, f"{pod.metadata.uid}/{restarts}")


def _annotation_fields(text: str | None) -> Fields:
    """Return the fields of the annotation. Raises ValueError."""
    if text is None:
        return {}
    try:
        found: Any = msgspec.json.decode(text)
    except DECODE_ERRORS as error:
        raise ValueError(f"annotation {WORKER_ANNOTATION}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"annotation {WORKER_ANNOTATION}: expected a JSON object")
    unknown = [name for name in found if name not in WorkerRegistration.__struct_fields__]
    error_text = (
        f"unknown field `{unknown[0]}`" if unknown else find_template_error(found, POD_PLACEHOLDERS)
    )
    if error_text is not None:
        raise ValueError(f"annotation {WORKER_ANNOTATION}: {error_text}")
    return found


def _choose_port(pod: KubernetesPod, annotated: str | None, template_port: int | None) -> int:
    """Return the port. Raises ValueError."""
    if annotated is not None:
        if not annotated.isascii() or not annotated.isdigit() or not 0 < int(annotated[:6]) < 65536:
            raise ValueError(
                f"annotation {PORT_ANNOTATION}: `{annotated[:20]}` is not a port: give 1 to 65535"
            )
        return int(annotated)
    if template_port is not None:
        return template_port
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    named = [port for port in ports if port.name == PORT_NAME]
    chosen = named or ports
    if len(chosen) != 1:
        raise ValueError(
            f"the pod has {len(ports)} ports and none called `{PORT_NAME}`: set `port` in the "
            f"source, or the annotation {PORT_ANNOTATION}"
        )
    return chosen[0].containerPort
