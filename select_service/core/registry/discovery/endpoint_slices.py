"""Engines from Kubernetes EndpointSlices.

A service has several slices: one per address family, and more when it is large. While endpoints
move from one slice to another they are listed in both.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.core.registry.discovery.record_template import (
    DEFAULT_ENDPOINT,
    Fields,
    fill_template,
    host_in_url,
)
from select_service.core.registry.discovery.worker_records import derive_worker_id

DEFAULT_PORT_NAME = "http"
"""Port name of engines if the source gives none."""
SERVICE_LABEL = "kubernetes.io/service-name"


class _Metadata(Struct):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815


class _Conditions(Struct):
    """Null means unknown, which counts as ready and not as terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Target(Struct):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Endpoint(Struct):
    addresses: list[str] = field(default_factory=list)
    conditions: _Conditions = field(default_factory=_Conditions)
    nodeName: str | None = None  # noqa: N815
    targetRef: _Target | None = None  # noqa: N815

    @property
    def is_ready(self) -> bool:
        """Also of a service that publishes addresses that are not ready."""
        given = self.conditions
        return given.ready is not False and given.serving is not False and not given.terminating


class _Port(Struct):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct):
    """EndpointSlice; field names as in Kubernetes."""

    metadata: _Metadata = field(default_factory=_Metadata)
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class EndpointSliceTemplate(Struct, frozen=True):
    """Template of a source.

    port: port of engines; None means the port called `port_name` in the slice
    worker: template of a record
    """

    port: int | None
    port_name: str | None
    worker: Fields


def candidates_of_slice(
    endpoint_slice: EndpointSlice, template: EndpointSliceTemplate
) -> Sequence[EngineCandidate]:
    """Return candidates for all ready endpoints. Raises ValueError with one line.

    An endpoint that is a pod is the same worker as the pod, under any address.
    """
    ready = [each for each in endpoint_slice.endpoints or () if each.is_ready and each.addresses]
    if not ready:
        return ()
    port = _choose_port(endpoint_slice, template)
    return [
        _make_candidate(each, endpoint_slice.metadata.namespace, port, template.worker)
        for each in ready
    ]


def distinct_engines(
    candidates_by_slice: Mapping[str, Sequence[EngineCandidate]],
) -> list[EngineCandidate]:
    """Return each engine once, preferring IPv4, then the first slice.

    found: candidates by key of the slice
    """
    chosen: dict[int, EngineCandidate] = {}
    for candidate in _plain_first(candidates_by_slice):
        chosen.setdefault(candidate.worker_id, candidate)
    return list(chosen.values())


def _plain_first(
    candidates_by_slice: Mapping[str, Sequence[EngineCandidate]],
) -> Iterator[EngineCandidate]:
    every = [each for key in sorted(candidates_by_slice) for each in candidates_by_slice[key]]
    # Dual-stack services list each engine twice; one record per engine is registered.
    yield from (each for each in every if "[" not in each.endpoint)
    yield from (each for each in every if "[" in each.endpoint)


def _make_candidate(
    endpoint: _Endpoint, namespace: str, port: int, worker: Fields
) -> EngineCandidate:
    host, target = endpoint.addresses[0], endpoint.targetRef or _Target()
    is_pod = target.kind == "Pod" and target.name != ""
    values = {
        "host": host_in_url(host),
        "port": str(port),
        "name": target.name if is_pod else host,
        "namespace": target.namespace or namespace,
        "node": endpoint.nodeName or "",
    }
    slice_fields = (
        {"worker_id": derive_worker_id(f"{values['namespace']}/{target.name}")} if is_pod else {}
    )
    fields = fill_template({"endpoint": DEFAULT_ENDPOINT, **slice_fields, **worker}, values)
    return EngineCandidate(str(fields["endpoint"]), fields, target.uid)


def _choose_port(endpoint_slice: EndpointSlice, template: EndpointSliceTemplate) -> int:
    """Return the port. Raises ValueError."""
    if template.port is not None:
        return template.port
    ports = [each for each in endpoint_slice.ports or () if each.port is not None]
    named = [each for each in ports if each.name == (template.port_name or DEFAULT_PORT_NAME)]
    chosen = named if named or template.port_name else ports
    if len(chosen) != 1 or chosen[0].port is None:
        names = ", ".join(each.name or "without a name" for each in ports)
        raise ValueError(
            f"ambiguous port ({names or 'none'}): set `port` or `port_name` in the source"
        )
    return chosen[0].port
