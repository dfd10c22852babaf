"""EndpointSlices of Kubernetes as engines that were found.

A service has several: one for each family of addresses, and more of them when it is large.  While
endpoints move from one to another they stand in both.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.records import made_id
from select_service.core.discovery.template import ENDPOINT, Fields, filled, in_url

PORT_NAME = "http"
"""Of the engines' port where the source names none."""
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
    """The names are those of Kubernetes."""

    metadata: _Metadata = field(default_factory=_Metadata)
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class SliceTemplate(Struct, frozen=True):
    """port: of engines; None: the slice says it, under `port_name`
    worker: the template of a record
    """

    port: int | None
    port_name: str | None
    worker: Fields


def candidates_of(found: EndpointSlice, template: SliceTemplate) -> Sequence[Candidate]:
    """Of its endpoints that are ready.  Raises ValueError with one line.

    An endpoint that is a pod is the same worker as the pod, under whichever address.
    """
    ready = [each for each in found.endpoints or () if each.is_ready and each.addresses]
    if not ready:
        return ()
    port = _port(found, template)
    return [_candidate(each, found.metadata.namespace, port, template.worker) for each in ready]


def distinct(found: Mapping[str, Sequence[Candidate]]) -> list[Candidate]:
    """Each engine once, by IPv4 where it can be, else by the first of the slices.

    found: by the key of the slice
    """
    chosen: dict[int, Candidate] = {}
    for candidate in _plain_first(found):
        chosen.setdefault(candidate.worker_id, candidate)
    return list(chosen.values())


def _plain_first(found: Mapping[str, Sequence[Candidate]]) -> Iterator[Candidate]:
    every = [each for key in sorted(found) for each in found[key]]
    yield from (each for each in every if "[" not in each.endpoint)
    yield from (each for each in every if "[" in each.endpoint)


def _candidate(found: _Endpoint, namespace: str, port: int, worker: Fields) -> Candidate:
    host, target = found.addresses[0], found.targetRef or _Target()
    is_pod = target.kind == "Pod" and target.name != ""
    values = {
        "host": in_url(host),
        "port": str(port),
        "name": target.name if is_pod else host,
        "namespace": target.namespace or namespace,
        "node": found.nodeName or "",
    }
    known = {"worker_id": made_id(f"{values['namespace']}/{target.name}")} if is_pod else {}
    fields = filled({"endpoint": ENDPOINT, **known, **worker}, values)
    return Candidate(str(fields["endpoint"]), fields, target.uid)


def _port(found: EndpointSlice, template: SliceTemplate) -> int:
    """Raises ValueError."""
    if template.port is not None:
        return template.port
    ports = [each for each in found.ports or () if each.port is not None]
    named = [each for each in ports if each.name == (template.port_name or PORT_NAME)]
    chosen = named if named or template.port_name else ports
    if len(chosen) != 1 or chosen[0].port is None:
        names = ", ".join(each.name or "without a name" for each in ports)
        raise ValueError(
            f"which of its ports ({names or 'none'})? Say `port` or `port_name` in the source"
        )
    return chosen[0].port
