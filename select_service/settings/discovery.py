"""The settings -> the sources of workers: a file of them, or a file that lists sources."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from indexer.endpoints import is_host_name
from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.endpoint_slices import SERVICE_LABEL
from select_service.core.discovery.pods import OF_PODS
from select_service.core.discovery.template import Fields, template_error
from select_service.core.discovery.workers_document import workers_of
from select_service.settings.config import Config, ConfigError
from select_service.shape_errors import converted
from select_service.yaml_document import read_document

WORKERS_BYTES_MAX = 16 << 20
"""Of a file of workers; 4,096 of many ranks take less."""
SOURCES_MAX = 64
OF_ADDRESSES = frozenset({"host", "port"})
"""Names that a template may have for what DNS finds."""


class FileSource(NamedTuple):
    """name: for metrics, log lines and /discovery"""

    name: str
    path: Path

    @property
    def place(self) -> str:
        """What is read, for people."""
        return str(self.path)


class DnsSource(NamedTuple):
    """port: of addresses; SRV records have their own
    worker: the template of a record
    asks: are engines asked for what it does not say?
    """

    name: str
    host: str
    port: int
    is_srv: bool
    worker: Fields
    asks: bool

    @property
    def place(self) -> str:
        """What is read, for people."""
        return f"SRV {self.host}" if self.is_srv else f"{self.host}:{self.port}"


class KubernetesSource(NamedTuple):
    """namespace: None: that of this pod, or of the kubeconfig; `*`: all
    labels: a selector, as kubectl has it, of pods; of EndpointSlices where `of_slices`
    port: of engines; None: pods say it
    kubeconfig: None: the account of this pod
    worker, asks: as of names
    port_name: of the engines' port in EndpointSlices; None: `http`, or the only one
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
        """What is read, for people."""
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
    """Those that count, first ones first.  Raises ConfigError."""
    sources: list[SourceSettings] = []
    if config["workers_file"] is not None:
        sources.append(FileSource("workers-file", Path(config["workers_file"])))
    if config["discovery_config"] is not None:
        sources += _configured(config["discovery_config"])
    for source in sources:
        if isinstance(source, FileSource):
            _check_file(source)
    return sources


def _configured(path: str) -> list[SourceSettings]:
    """Raises ConfigError."""
    try:
        found = converted(read_document(path), _Document).sources
        sources = [_judged(number, each) for number, each in enumerate(found, 1)]
        names = [each.name for each in sources]
        for name in names:
            if names.count(name) > 1 or name == "workers-file":
                raise ValueError(f"two sources have the name `{name}`")
    except ValueError as error:
        raise ConfigError(f"--discovery-config {path}: {error}") from None
    return sources


def _judged(number: int, given: _Source) -> SourceSettings:
    """Raises ValueError."""
    kinds = [kind for kind in KINDS if getattr(given, kind) is not None]
    if len(kinds) != 1:
        raise ValueError(f"source {number}: exactly one of {', '.join(KINDS)} is expected")
    name = given.name or f"{kinds[0]}-{number}"
    try:
        return KINDS[kinds[0]](name, given)
    except ValueError as error:
        raise ValueError(f"source `{name}`: {error}") from None


def _of_file(name: str, given: _Source) -> FileSource:
    if given.worker:
        raise ValueError("`worker` has no meaning for a file: it has `defaults`")
    return FileSource(name, Path(str(given.file)))


def _of_addresses(name: str, given: _Source) -> DnsSource:
    host, _, port = str(given.dns).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise ValueError("`dns` is a host name and the port of the engines: NAME:PORT")
    return _dns(name, given, host, int(port))


def _of_srv(name: str, given: _Source) -> DnsSource:
    return _dns(name, given, str(given.srv), 0)


def _dns(name: str, given: _Source, host: str, port: int) -> DnsSource:
    if find_spec("dns") is None:
        raise ValueError("it needs dnspython: pip install 'select-service[dns]'")
    if not is_host_name(host.replace("_", "a")):  # services are called _http._tcp
        raise ValueError(f"`{host}` is no host name")
    _check_template(given.worker, OF_ADDRESSES)
    return DnsSource(name, host, port, given.srv is not None, given.worker, given.ask)


def _of_kubernetes(name: str, given: _Source) -> KubernetesSource:
    if find_spec("kubernetes_asyncio") is None:
        raise ValueError("it needs the extra: pip install 'select-service[kubernetes]'")
    found = given.kubernetes
    assert found is not None
    _check_template(given.worker, OF_PODS)
    kubeconfig = None if found.kubeconfig is None else Path(found.kubeconfig)
    labels, of_slices = _selected(found)
    common = (found.port, kubeconfig, given.worker, given.ask)
    return KubernetesSource(name, found.namespace, labels, *common, of_slices, found.port_name)


def _selected(given: _Kubernetes) -> tuple[str, bool]:
    """The selector, and is it one of EndpointSlices?  Raises ValueError."""
    by_name = None if given.service is None else f"{SERVICE_LABEL}={given.service}"
    chosen = [(given.labels, False), (by_name, True), (given.slices, True)]
    selectors = [(labels, of_slices) for labels, of_slices in chosen if labels is not None]
    if len(selectors) != 1:
        raise ValueError("kubernetes: exactly one of labels, service, slices is expected")
    if given.port_name is not None and (not selectors[0][1] or given.port is not None):
        raise ValueError("kubernetes: `port_name` is for service and slices without `port`")
    return selectors[0]


def _check_template(worker: Fields, known: frozenset[str]) -> None:
    """Raises ValueError."""
    if (error := template_error(worker, known)) is not None:
        raise ValueError(f"worker: {error}")
    unknown = [name for name in worker if name not in WorkerRegistration.__struct_fields__]
    if unknown:
        raise ValueError(f"worker: unknown field `{unknown[0]}`")


KINDS: Mapping[str, Callable[[str, _Source], SourceSettings]] = {
    "file": _of_file,
    "dns": _of_addresses,
    "srv": _of_srv,
    "kubernetes": _of_kubernetes,
}
"""By the field that says what is read."""


def _check_file(source: FileSource) -> None:
    """Raises ConfigError."""
    flag = "--workers-file" if source.name == "workers-file" else "--discovery-config: file"
    try:
        read_workers(source.path)
    except ValueError as error:
        raise ConfigError(f"{flag} {source.path}: {error}") from None


def read_workers(path: Path) -> dict[int, WorkerRegistration]:
    """A file of workers, by id.  Raises ValueError with one line that names no file.  Blocks."""
    return workers_of(read_document(str(path), WORKERS_BYTES_MAX))
