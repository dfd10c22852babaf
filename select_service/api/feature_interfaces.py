"""Interfaces of the components that handlers use and other packages implement."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from select_service.auth.audit_lines import AuditLine
from select_service.core.decision_maker import PlacementDecision
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.metrics.access import AuditCounts
from select_service.metrics.discovery import SourceReport
from select_service.metrics.tracing import TracingCounts
from select_service.schemas.discovery import DiscoveryView
from select_service.schemas.persisted_state import PersistedState
from select_service.schemas.prompts import PromptFields
from select_service.schemas.replicas import ReplicaStatus
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import SelectRequest


class ReplicaSyncInterface(Protocol):
    """Interface of replica synchronization, as handlers use it."""

    def peer_endpoints(self) -> list[str]: ...
    def register_peer(self, endpoint: str, name: str | None = None) -> bool: ...
    def deregister_peer(self, endpoint: str) -> bool: ...
    def replica_status(self) -> ReplicaStatus: ...


class CatalogFollowerInterface(Protocol):
    """Applies the consequences of catalog changes."""

    async def wait_until_applied(self) -> None:
        """Wait until all changes so far are in effect."""

    async def wait_until_adopted(self) -> None:
        """Wait until no rank is between waiting for recovered blocks and having them."""


class DiscoveryInterface(Protocol):
    """Interface of the sources of workers, as handlers use it."""

    def discovery_view(self) -> DiscoveryView: ...
    def source_reports(self) -> Sequence[SourceReport]: ...
    def persisted_state(self) -> PersistedState: ...

    def owning_source(self, worker_id: int) -> str | None:
        """Return the source that owns a registered worker; None means no source."""

    def release_worker(self, worker_id: int) -> None:
        """Note that a worker without an owner is about to be registered over HTTP."""


class SharedCachesInterface(Protocol):
    """Interface of the shared caches, as handlers use it."""

    def serves(self, model_name: str) -> bool: ...
    async def look_up(self, body: PromptFields, block_size: int, is_eagle: bool) -> SharedHits: ...
    def list_status(self) -> list[SharedCacheStatus]: ...


class PolicyStore(Protocol):
    """Persists policies set at run time."""

    is_written: bool

    async def write_policies(self) -> None:
        """Write the policies; afterwards `is_written` is whether that succeeded."""


class AuditLogInterface(Protocol):
    """Log of operators' actions."""

    @property
    def current_counts(self) -> AuditCounts: ...
    @property
    def is_required(self) -> bool:
        """Whether actions that cannot be logged must not be carried out."""

    async def record_begin(self, line: AuditLine) -> None:
        """Log the line durably before the action.  Raises AuditUnavailable."""

    async def record_answered(self, line: AuditLine, *, has_begun: bool) -> None:
        """Log the line, if possible.  has_begun: whether `begin` was called for this action"""


class ReloadedFiles(Protocol):
    """Files that are read again when changed."""

    @property
    def name(self) -> str: ...
    def age_s(self) -> float:
        """Return the seconds since the files were last checked, and read if changed."""


class SpanInterface(Protocol):
    """Trace span of a selection; docs/guides/monitoring.md describes its attributes."""

    def record_request(self, body: SelectRequest | ReservationRequest) -> None: ...
    def record_decision(self, decision: PlacementDecision, ring: DecisionRing | None) -> None: ...
    def record_reservation(self, reservation: Reservation, request: ReservationRequest) -> None: ...
    def end_span(self, status: int, code: str | None) -> None: ...


class TracingInterface(Protocol):
    """Starts spans."""

    @property
    def counts(self) -> TracingCounts: ...
    def start_span(self, route: str, scope: Mapping[str, Any]) -> SpanInterface | None:
        """Start a span; None means this request is not traced."""


class CallbackFailures(Protocol):
    """Failure counters of event loop callbacks."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Return the number of failed calls by callback name."""

    def record_failure(self, name: str) -> None:
        """Count and log the exception just caught in a callback."""
