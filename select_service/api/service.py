"""What every handler works with, and the endpoint that gives a handler its errors and its count."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.requests import Request

from indexer.sockets.ingest import Ingest
from select_service.access.audit import AuditLine
from select_service.access.guard import Grant, Guard
from select_service.api.limits import Limits
from select_service.api.live_history import LiveHistory
from select_service.api.watching import Live
from select_service.bodies.discovery import DiscoveryView
from select_service.bodies.doctor import DoctorReport
from select_service.bodies.replicas import ReplicaStatus
from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import SelectRequest
from select_service.bodies.state import KeptState
from select_service.core.decide.decision_ring import DecisionRing
from select_service.core.decisions import Decision
from select_service.core.due_task import DueTask
from select_service.core.fleet.recovered import KeepingReport, RecoveryStatus, SnapshotStatus
from select_service.core.selector import Selector
from select_service.core.workers.catalog import Worker
from select_service.errors import SelectError
from select_service.metrics.access import AuditCounts
from select_service.metrics.decision_log import LogCounts
from select_service.metrics.discovery import SourceReport
from select_service.metrics.input_loops import LoopCounts
from select_service.metrics.service_metrics import Metrics
from select_service.metrics.tasks import TaskCounts
from select_service.metrics.tracing import TracingCounts
from select_service.settings.config import Config
from select_service.settings.health_settings import Network
from select_service.tls.kept import ClientTls, Kept, ServerTls

if TYPE_CHECKING:
    from select_service.core.degrading.capacity_watch import CapacityWatch

TRACEPARENT_CHARS_MAX = 128
"""A valid one has 55; the rest of a longer one is not logged."""


class ReplicaPlane(Protocol):
    """What the interface needs of the replica plane."""

    def peers(self) -> list[str]: ...
    def register(self, endpoint: str, name: str | None = None) -> bool: ...
    def deregister(self, endpoint: str) -> bool: ...
    def status(self) -> ReplicaStatus: ...


class CatalogPlane(Protocol):
    """Carries out what follows a change of workers."""

    async def followed(self) -> None:
        """Wait until all that has changed until now is in force."""

    async def adopted(self) -> None:
        """Wait until no rank is between waiting for recovered blocks and having them."""


class DiscoveryPlane(Protocol):
    """What the interface needs of the sources of workers."""

    def view(self) -> DiscoveryView: ...
    def report(self) -> Sequence[SourceReport]: ...
    def state(self) -> KeptState: ...

    def owner(self, worker_id: int) -> str | None:
        """The source that has added a worker that is there; None: nobody of them."""

    def taken_by_hand(self, worker_id: int) -> None:
        """It is about to be registered over HTTP, and belongs to nobody."""


class PolicyKeeper(Protocol):
    """Keeps the policies that were set over a restart."""

    is_kept: bool

    async def keep(self) -> None:
        """Write them; afterwards `is_kept` says whether that succeeded."""


class AuditLog(Protocol):
    """Keeps what operators did."""

    @property
    def counts(self) -> AuditCounts: ...
    @property
    def is_required(self) -> bool:
        """Whether what cannot be kept is not done."""

    async def begin(self, line: AuditLine) -> None:
        """Returns when it is kept.  Raises AuditUnavailable."""

    async def note(self, line: AuditLine, *, has_begun: bool) -> None:
        """Returns when it is kept, or cannot be.  has_begun: after `begin`"""

    def tasks(self) -> list[DueTask]:
        """What is to be done again and again."""

    async def close(self) -> None:
        """At the end of the process."""


class Followed(Protocol):
    """Files that are read again when they change."""

    @property
    def name(self) -> str: ...
    def age_s(self) -> float:
        """Seconds since they were last looked at, and read if they had changed."""


class Span(Protocol):
    """What handlers tell of one selection; docs/tracing.md says what becomes of it."""

    def asked(self, body: SelectRequest | ReservationRequest) -> None: ...
    def chose(self, decision: Decision, ring: DecisionRing | None) -> None: ...
    def booked(self, reservation: Reservation, request: ReservationRequest) -> None: ...
    def end(self, status: int, code: str | None) -> None: ...


class TracingPlane(Protocol):
    """Begins spans."""

    @property
    def counts(self) -> TracingCounts: ...
    def begin(self, route: str, scope: Mapping[str, Any]) -> Span | None:
        """None: this request gets none."""


Examine: TypeAlias = Callable[[Sequence[Worker], bool, bool], Awaitable[DoctorReport]]
"""Of some workers, and of the service if the second says so; does the third want prompts sent?"""


class InternalError(SelectError):
    status, code = 500, "internal_error"


@dataclass(slots=True)
class Service:
    """The parts of one process that handlers use."""

    config: Config
    version: str
    selector: Selector
    ingest: Ingest
    follower: CatalogPlane
    metrics: Metrics
    limits: Limits
    replicas: ReplicaPlane | None = None
    audit: AuditLog | None = None
    guard: Guard = field(default_factory=Guard)
    server_tls: ServerTls | None = None
    client_tls: ClientTls | None = None
    discovery: DiscoveryPlane | None = None
    tracing: TracingPlane | None = None
    followed: Sequence[Followed] = ()
    engine_scrapes: Mapping[str, int] | None = None
    callback_failures: Mapping[str, int] = field(default_factory=dict)
    callback_failed: Callable[[str], None] = lambda name: None
    tasks: Mapping[str, TaskCounts] = field(default_factory=dict)
    open_connections: Callable[[], int] = lambda: 0
    input_loops: Callable[[], Sequence[LoopCounts]] = tuple
    decision_log: Callable[[], LogCounts | None] = lambda: None
    live: Live = field(default_factory=Live)
    json_dumps: int = 0
    compact_dumps: int = 0
    capacity: "CapacityWatch | None" = None
    is_draining: bool = False
    doctor: Examine | None = None
    kept_policies: PolicyKeeper | None = None
    reporters: Sequence[Network] = ()
    recovery: RecoveryStatus = field(default_factory=RecoveryStatus)
    snapshot: SnapshotStatus = field(default_factory=SnapshotStatus)
    history: LiveHistory = field(init=False)

    def __post_init__(self) -> None:
        self.history = LiveHistory(self.selector)

    def tls(self) -> list[tuple[str, Kept]]:
        """What there is of TLS, by the side."""
        sides = (("server", self.server_tls), ("client", self.client_tls))
        return [(side, kept) for side, kept in sides if kept is not None]


def keeping_report(service: Service) -> KeepingReport:
    """How recovery, snapshots and dumps are doing."""
    at, recovered = monotonic(), service.selector.fleet.recovered
    recovery, written = service.recovery, service.snapshot
    return KeepingReport(
        state=recovery.state,
        recovered_blocks=recovery.blocks,
        waiting_blocks=recovered.blocks(),
        dropped_blocks=recovered.dropped_blocks,
        bad_entries=recovery.bad_entries,
        recovery_s=recovery.seconds(at),
        snapshot_bytes=written.bytes,
        snapshot_failures=written.failures,
        written_ago_s=-1.0 if written.written_at is None else at - written.written_at,
        json_dumps=service.json_dumps,
        compact_dumps=service.compact_dumps,
    )


def grant_of(request: Request) -> Grant:
    """Who calls, as the guard has judged."""
    grant: Grant = request.scope["grant"]
    return grant


def trace_of(request: Request) -> dict[str, str]:
    """The W3C trace context that came with a request, as a field of its log lines."""
    traceparent = request.headers.get("traceparent")
    return {} if traceparent is None else {"traceparent": traceparent[:TRACEPARENT_CHARS_MAX]}


def now() -> float:
    """The core's time: seconds of the monotonic clock."""
    return monotonic()
