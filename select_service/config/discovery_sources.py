"""Discovery sources from the settings: the workers file and the discovery file."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from indexer.zmq_endpoints import is_host_name
from select_service.base.shape_errors import convert_document
from select_service.config.settings_loader import Config, ConfigError
from select_service.core.registry.discovery.endpoint_slices import SERVICE_LABEL
from select_service.core.registry.discovery.kubernetes_pods import POD_PLACEHOLDERS
from select_service.core.registry.discovery.record_template import Fields, find_template_error
from select_service.core.registry.discovery.workers_document import read_workers_document
from select_service.files.yaml_document import read_document
from select_service.schemas.workers import WorkerRegistration

WORKERS_BYTES_MAX = 16 << 20
"""Size limit of a workers file; 4,096 workers with many ranks take less."""
SOURCES_MAX = 64
ADDRESS_PLACEHOLDERS = frozenset({"host", "port"})
"""Placeholders permitted in the template of a DNS source."""


class FileSource(NamedTuple):
    """Settings of a workers file.

    name: name in metrics, log lines and /discovery
    """

    name: str
    path: Path

    @property
    def place(self) -> str:
        """Description of the source, for people."""
        return str(self.path)


class DnsSource(NamedTuple):
    """Settings of a DNS source.

    port: port for address records; SRV records have their own
    worker: template of a worker registration
    asks: whether engines are queried for fields missing in the template
    """

    name: str
    host: str
    port: int
    is_srv: bool
    worker: Fields
    asks: bool

    @property
    def place(self) -> str:
        """Description of the source, for people."""
        return f"SRV {self.host}" if self.is_srv else f"{self.host}:{self.port}"


class KubernetesSource(NamedTuple):
    """Settings of a Kubernetes source.

    namespace: None means that of this pod or of the kubeconfig; `*` means all
    labels: label selector as for kubectl, for pods, or for EndpointSlices if `of_slices`
    port: port of engines; None means the port in the pod
    kubeconfig: None means the service account of this pod
    worker, asks: as for DNS sources
    port_name: name of the engine port in EndpointSlices; None means `http`, or the only one
    """

    name: str
    namespace: str | None
    labels: str
    port: int | None
    kubeconfig: Path | None
    worker: Fields
    asks: bool
    of_slices: bool = False
    port_name: str | None = None

    @property
    def place(self) -> str:
        """Description of the source, for people."""
        kind = "endpointslices" if self.of_slices else "pods"
        return f"{kind} {self.namespace or '(own namespace)'} {self.labels}"


SourceSettings: TypeAlias = FileSource | DnsSource | KubernetesSource


_Selector: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Kubernetes(msgspec.Struct, forbid_unknown_fields=True):
    labels: _Selector | None = None
    service: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] | None = None
    slices: _Selector | None = None
    port_name: Annotated[str, Meta(pattern="^[a-z0-9-]{1,63}$")] | None = None
    namespace: Annotated[str, Meta(pattern="^([a-z0-9-]{1,63}|[*])$")] | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    kubeconfig: str | None = None


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    file: str | None = None
    dns: str | None = None
    srv: str | None = None
    kubernetes: _Kubernetes | None = None
    worker: dict[str, Any] = msgspec.field(default_factory=dict)
    ask: bool = True


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    sources: Annotated[list[_Source], Meta(min_length=1, max_length=SOURCES_MAX)]


def source_settings(config: Config) -> list[SourceSettings]:
    """Return the configured sources, highest precedence first.  Raises ConfigError."""
    sources: list[SourceSettings] = []
    if config["workers_file"] is not None:
        sources.append(FileSource("workers-file", Path(config["workers_file"])))
    if config["discovery_config"] is not None:
        sources += _read_discovery_file(config["discovery_config"])
    for source in sources:
        if isinstance(source, FileSource):
            flag = "--workers-file" if source.name == "workers-file" else "--discovery-config: file"
            try:
                read_workers(source.path)
            except ValueError as error:
                raise ConfigError(f"{flag} {source.path}: {error}") from None
    return sources


def _read_discovery_file(path: str) -> list[SourceSettings]:
    """Return the sources of the discovery file.  Raises ConfigError."""
    try:
        found = convert_document(read_document(path), _Document).sources
        sources = [_validate_source(number, each) for number, each in enumerate(found, 1)]
        # Names identify a source in metrics and in the persisted state, so names must be unique.
        names = [each.name for each in sources]
        for name in names:
            if names.count(name) > 1 or name == "workers-file":
                raise ValueError(f"duplicate source name `{name}`: give each source its own name")
    except ValueError as error:
        raise ConfigError(f"--discovery-config {path}: {error}") from None
    return sources


def _validate_source(number: int, given: _Source) -> SourceSettings:
    """Validate a source.  Raises ValueError."""
    kinds = [kind for kind in KINDS if getattr(given, kind) is not None]
    if len(kinds) != 1:
        raise ValueError(f"source {number}: exactly one of {', '.join(KINDS)} is expected")
    name = given.name or f"{kinds[0]}-{number}"
    try:
        return KINDS[kinds[0]](name, given)
    except ValueError as error:
        raise ValueError(f"source `{name}`: {error}") from None


def _make_file_source(name: str, given: _Source) -> FileSource:
    if given.worker:
        raise ValueError("`worker` is not valid for a file: use `defaults` in the file")
    return FileSource(name, Path(str(given.file)))


def _make_address_source(name: str, given: _Source) -> DnsSource:
    host, _, port = str(given.dns).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise ValueError("`dns` must be NAME:PORT, the host name and the port of the engines")
    return _make_dns_source(name, given, host, int(port))


def _make_dns_source(name: str, given: _Source, host: str, port: int) -> DnsSource:
    if find_spec("dns") is None:
        raise ValueError("dnspython is missing: pip install 'select-service[dns]'")
    if not is_host_name(host.replace("_", "a")):  # SRV names contain _http._tcp
        raise ValueError(f"`{host}` is not a host name")
    _check_template(given.worker, ADDRESS_PLACEHOLDERS)
    return DnsSource(name, host, port, given.srv is not None, given.worker, given.ask)


def _make_kubernetes_source(name: str, given: _Source) -> KubernetesSource:
    if find_spec("kubernetes_asyncio") is None:
        raise ValueError("kubernetes-asyncio is missing: pip install 'select-service[kubernetes]'")
    found = given.kubernetes
    assert found is not None
    _check_template(given.worker, POD_PLACEHOLDERS)
    kubeconfig = None if found.kubeconfig is None else Path(found.kubeconfig)
    labels, of_slices = _label_selector(found)
    common = (found.port, kubeconfig, given.worker, given.ask)
    return KubernetesSource(name, found.namespace, labels, *common, of_slices, found.port_name)


def _label_selector(given: _Kubernetes) -> tuple[str, bool]:
    """Return the label selector and whether it selects EndpointSlices.  Raises ValueError."""
    by_name = None if given.service is None else f"{SERVICE_LABEL}={given.service}"
    chosen = [(given.labels, False), (by_name, True), (given.slices, True)]
    selectors = [(labels, of_slices) for labels, of_slices in chosen if labels is not None]
    if len(selectors) != 1:
        raise ValueError("kubernetes: exactly one of labels, service, slices is expected")
    if given.port_name is not None and (not selectors[0][1] or given.port is not None):
        raise ValueError("kubernetes: `port_name` is for service and slices without `port`")
    return selectors[0]


def _check_template(worker: Fields, known: frozenset[str]) -> None:
    """Raise ValueError for an invalid template."""
    if (error := find_template_error(worker, known)) is not None:
        raise ValueError(f"worker: {error}")
    unknown = [name for name in worker if name not in WorkerRegistration.__struct_fields__]
    if unknown:
        raise ValueError(f"worker: unknown field `{unknown[0]}`")


KINDS: Mapping[str, Callable[[str, _Source], SourceSettings]] = {
    "file": _make_file_source,
    "dns": _make_address_source,
    "srv": lambda name, given: _make_dns_source(name, given, str(given.srv), 0),
    "kubernetes": _make_kubernetes_source,
}
"""Parser of a source by the field that names its kind."""


def read_workers(path: Path) -> dict[int, WorkerRegistration]:
    """Return the workers of a file by id.  Blocks.

    Raises ValueError with a one-line message without the file name.
    """
    return read_workers_document(read_document(str(path), WORKERS_BYTES_MAX))
