"""Components used by every handler, and helpers shared by handlers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from starlette.requests import Request

from indexer.sockets.ingest import Ingest
from select_service.api.feature_interfaces import (
    AuditLogInterface,
    CallbackFailures,
    CatalogFollowerInterface,
    DiscoveryInterface,
    PolicyStore,
    ReloadedFiles,
    ReplicaSyncInterface,
    SharedCachesInterface,
    SpanInterface,
    TracingInterface,
)
from select_service.api.live.live_history import LiveHistory
from select_service.api.live.live_stream import FrameBroadcaster
from select_service.api.process_limits import SharedLimits
from select_service.auth.guard import Grant, Guard
from select_service.base.errors import SelectError
from select_service.config.health_settings import Network
from select_service.config.settings_loader import Config
from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.draining import DrainRegistry
from select_service.core.load.ledger import Ledger
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.recovered_blocks import (
    PersistenceReport,
    RecoveryStatus,
    SnapshotStatus,
)
from select_service.core.selector import CoreFollowers, SelectorCore
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.metrics.decision_log import DecisionLogCounts
from select_service.metrics.service_metrics import ServiceMetrics
from select_service.metrics.tasks import TaskCounts
from select_service.net.tls.current_tls import ClientTls, CurrentTls, ServerTls
from select_service.schemas.doctor import DoctorReport

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService
    from select_service.core.health.migration.migrator import Migrator

TRACEPARENT_CHARS_MAX = 128
"""Logged length of a traceparent; a valid header has 55 characters."""


class InternalError(SelectError):
    """An unexpected failure of the service."""

    status, code = 500, "internal_error"


class ExaminerInterface(Protocol):
    """Doctor of the service, as handlers use it."""

    async def examine_workers(
        self,
        service: "ServiceContext",
        workers: Sequence[RegisteredWorker],
        with_service: bool,
        probes: bool,
    ) -> DoctorReport:
        """Examine the workers; the flags include the service itself, and permit test prompts."""


class ServiceFeatures(NamedTuple):
    """Optional features; a stand-in of `disabled_features`, or None, when disabled."""

    replicas: ReplicaSyncInterface
    discovery: DiscoveryInterface
    audit: AuditLogInterface | None
    tracing: TracingInterface | None
    shared_caches: SharedCachesInterface | None = None


class ServiceTls(NamedTuple):
    """TLS by side.

    server: None means plain HTTP
    client: None means the CAs of the system
    """

    server: ServerTls | None
    client: ClientTls | None

    def files_by_side(self) -> list[tuple[str, CurrentTls]]:
        """Return the TLS files by side, `server` or `client`."""
        return [(side, kept) for side, kept in self._asdict().items() if kept is not None]


class PersistenceParts(NamedTuple):
    """Progress of the index recovery and of snapshots, and the store of policies."""

    recovery: RecoveryStatus
    snapshot: SnapshotStatus
    policy_store: PolicyStore


class FigureSources(NamedTuple):
    """Figures that only GET /metrics reads.

    engine_scrapes: scrapes of engine metrics by result
    tasks: counters of periodic tasks by name
    decision_log: function that returns the counters, or None without a decision log
    reloaded_files: function that returns the files that are read again when changed
    """

    engine_scrapes: Mapping[str, int]
    tasks: Mapping[str, TaskCounts]
    decision_log: Callable[[], DecisionLogCounts | None]
    reloaded_files: Callable[[], Sequence[ReloadedFiles]]


class LiveFeed(NamedTuple):
    """Content of the fleet page: frames for all viewers, and the samples of the last minutes."""

    frame_broadcaster: FrameBroadcaster
    history: LiveHistory


@dataclass(slots=True)
class ProcessState:
    """State of the process that handlers and the server change; all else in a context is fixed.

    open_connections: live collection of the server's connections; set when the server is made
    json_dumps, compact_dumps: index dumps sent, by format
    """

    is_draining: bool = False
    open_connections: Collection[object] = ()
    json_dumps: int = 0
    compact_dumps: int = 0


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Components of a process that handlers use.

    Built once, by `select_service.server.build`.

    selector: operations on the parts of the core, of which the following fields are some
    health, mover: None while health checks are off
    reporter_networks: networks of hosts that may report outcomes of requests
    """

    config: Config
    version: str
    selector: SelectorCore
    fleet: WorkerFleet
    ledger: Ledger
    gate: AdmissionGate
    prompt_resolver: PromptResolver
    draining: DrainRegistry
    health: "HealthService | None"
    mover: "Migrator | None"
    followers: CoreFollowers
    ingest: Ingest
    catalog_follower: CatalogFollowerInterface
    metrics: ServiceMetrics
    limits: SharedLimits
    guard: Guard
    reporter_networks: Sequence[Network]
    callbacks: CallbackFailures
    examiner: ExaminerInterface
    features: ServiceFeatures
    tls: ServiceTls
    persistence: PersistenceParts
    figures: FigureSources
    live: LiveFeed
    process: ProcessState


def persistence_report(service: ServiceContext) -> PersistenceReport:
    """Return the progress of recovery, snapshots and dumps."""
    at, recovered = monotonic(), service.fleet.recovered_blocks
    recovery, written, _ = service.persistence
    return PersistenceReport(
        state=recovery.state,
        recovered_blocks=recovery.blocks,
        waiting_blocks=recovered.count_blocks(),
        dropped_blocks=recovered.dropped_blocks,
        bad_entries=recovery.bad_entries,
        recovery_s=recovery.elapsed_seconds(at),
        snapshot_bytes=written.bytes,
        snapshot_failures=written.failures,
        written_ago_s=-1.0 if written.written_at is None else at - written.written_at,
        json_dumps=service.process.json_dumps,
        compact_dumps=service.process.compact_dumps,
    )


def request_grant(request: Request) -> Grant:
    """Return the authenticated grant of a request."""
    grant: Grant = request.scope["grant"]
    return grant


def request_span(scope: Mapping[str, Any]) -> SpanInterface | None:
    """Return the span of a traced request, or None."""
    span: SpanInterface | None = scope.get("span")
    return span


def trace_fields(request: Request) -> dict[str, str]:
    """Return the W3C trace context of a request, as a field for log lines."""
    traceparent = request.headers.get("traceparent")
    return {} if traceparent is None else {"traceparent": traceparent[:TRACEPARENT_CHARS_MAX]}


def core_time() -> float:
    """Return the core's time: seconds of the monotonic clock."""
    return monotonic()
