"""Stand-ins for features that are disabled: handlers need not ask which features exist."""

from collections.abc import Sequence
from typing import NoReturn

from select_service.base.errors import Conflict
from select_service.core.selector import SelectorCore
from select_service.core.state_persistence import persisted_state
from select_service.metrics.discovery import SourceReport
from select_service.schemas.discovery import DiscoveryView
from select_service.schemas.persisted_state import PersistedState
from select_service.schemas.replicas import ReplicaStatus


class DisabledReplicaSync:
    """`ReplicaSyncInterface` without replica synchronization."""

    def __init__(self, router_id: int) -> None:
        self._router_id = router_id

    def peer_endpoints(self) -> list[str]:
        return []

    def register_peer(self, endpoint: str, name: str | None = None) -> NoReturn:
        """Raise Conflict."""
        raise Conflict("replica synchronization is disabled; --replica-sync-port enables it")

    def deregister_peer(self, endpoint: str) -> NoReturn:
        """Raise Conflict."""
        self.register_peer(endpoint)

    def replica_status(self) -> ReplicaStatus:
        return ReplicaStatus(
            enabled=False,
            secured=False,
            keys_error=None,
            router_id=self._router_id,
            repair=False,
            frames_out=0,
            digests_out=0,
            progress_out=0,
            sessions_out=0,
            frames_dropped_out=0,
            frames_queued=0,
            subscribers=0,
            refused=0,
            peers=[],
        )


class DisabledDiscovery:
    """`DiscoveryInterface` without sources: clients register all workers over HTTP."""

    def __init__(self, selector: SelectorCore) -> None:
        self._selector = selector

    def discovery_view(self) -> DiscoveryView:
        return DiscoveryView(sources=[], pending=0)

    def source_reports(self) -> Sequence[SourceReport]:
        return ()

    def persisted_state(self) -> PersistedState:
        return persisted_state(self._selector)

    def owning_source(self, worker_id: int) -> str | None:
        return None

    def release_worker(self, worker_id: int) -> None:
        """No source owns the worker."""


class DisabledPolicyStore:
    """`PolicyStore` without a file: policies are lost with the process."""

    is_written = False

    async def write_policies(self) -> None:
        """Write nothing."""
