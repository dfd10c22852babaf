"""Discovery of one process: all its sources and the application of their changes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import monotonic

from select_service.adapters.discovery.apply_changes import INTERVAL_S, ChangeApplier
from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.source_status import DiscoverySource, Kind, SourceStatus
from select_service.adapters.discovery.workers_file import WorkersFileSource
from select_service.adapters.http_get import HttpClient
from select_service.adapters.reload.file_watch import FollowedFiles
from select_service.config.discovery_sources import (
    DnsSource,
    FileSource,
    KubernetesSource,
    SourceSettings,
)
from select_service.core.periodic_task import PeriodicTask
from select_service.core.registry.discovery.fleet_snapshot import FleetSnapshot
from select_service.core.registry.discovery.reconciler import Reconciler, SourceCounts
from select_service.core.selector import SelectorCore
from select_service.core.state_persistence import persisted_state
from select_service.metrics.discovery import SourceReport
from select_service.schemas.discovery import DiscoveryView, SourceView
from select_service.schemas.persisted_state import PersistedState

LISTED_MAX = 100
"""Maximum number of ids listed per category."""
KINDS: Mapping[type, Kind] = {FileSource: "file", DnsSource: "dns", KubernetesSource: "kubernetes"}


class ServiceDiscovery:
    """All sources of workers.

    Belongs to the event loop; register its `periodic_tasks` with the scheduler.
    """

    def __init__(
        self,
        settings: Sequence[SourceSettings],
        selector: SelectorCore,
        on_change: Callable[[], None],
        drain_s: float,
    ) -> None:
        """on_change: see `ChangeApplier`
        drain_s: maximum drain time of a worker that a source dropped, seconds
        """
        names = [each.name for each in settings]
        self.reconciler = Reconciler(names, FleetSnapshot(selector.fleet), drain_s)
        self._change_applier = ChangeApplier(self.reconciler, selector, on_change)
        self._settings = settings
        self._selector = selector
        self._source_statuses = [
            SourceStatus(each.name, KINDS[type(each)], each.place, self.reconciler.set_desired)
            for each in settings
        ]
        self._sources: list[DiscoverySource] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, http: HttpClient) -> list[asyncio.Task[None]]:
        """Start one task per source; the tasks end only by `stop`.

        http: client for queries to engines
        """
        pairs = zip(self._settings, self._source_statuses, strict=True)
        self._sources = [_make_source(settings, readings, http) for settings, readings in pairs]
        self._tasks = [asyncio.create_task(source.run()) for source in self._sources]
        return self._tasks

    def followed_files(self) -> list[FollowedFiles]:
        """Return the files that are reloaded when they change."""
        return [each.files for each in self._sources if isinstance(each, WorkersFileSource)]

    async def stop(self) -> None:
        """Cancel all sources and wait for their end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks of discovery."""
        return [PeriodicTask("discovery", INTERVAL_S, self._change_applier.apply_step)]

    def owning_source(self, worker_id: int) -> str | None:
        """Return the source that owns a worker; None for workers registered over HTTP."""
        return self.reconciler.owner_of(worker_id)

    def release_worker(self, worker_id: int) -> None:
        """Release a worker from its source before it is registered over HTTP."""
        self.reconciler.release_ownership(worker_id)

    def discovery_view(self) -> DiscoveryView:
        """Return the response of GET /discovery."""
        counts = self.reconciler.counts_by_source(LISTED_MAX)
        # Lists of ids are cut at LISTED_MAX: the response must stay small for thousands of workers.
        views = [_source_view(each, counts[each.name]) for each in self._source_statuses]
        return DiscoveryView(sources=views, pending=self.reconciler.n_pending)

    def persisted_state(self) -> PersistedState:
        """Return the state that is persisted across restarts."""
        return persisted_state(self._selector, self.reconciler)

    def source_reports(self) -> list[SourceReport]:
        """Return the figures of every source for the metrics."""
        counts = self.reconciler.counts_by_source(0)
        return [_source_report(each, counts[each.name]) for each in self._source_statuses]


def _make_source(
    settings: SourceSettings, readings: SourceStatus, http: HttpClient
) -> DiscoverySource:
    if isinstance(settings, FileSource):
        return WorkersFileSource(settings.path, readings)
    completing = EngineProber(readings, http if settings.asks else None)
    if isinstance(settings, KubernetesSource):
        # Imported on use: both need packages of an extra.
        from select_service.adapters.discovery.kubernetes_engines import (
            KubernetesPods,
            KubernetesSlices,
        )
        from select_service.adapters.discovery.kubernetes_watch import KubernetesWatchClient

        followed = KubernetesSlices if settings.of_slices else KubernetesPods
        return followed(settings, readings, completing, KubernetesWatchClient(settings.kubeconfig))
    from dns.asyncresolver import Resolver

    from select_service.adapters.discovery.dns_source import DnsDiscoverySource

    return DnsDiscoverySource(settings, readings, completing, Resolver())


def _source_view(readings: SourceStatus, counts: SourceCounts) -> SourceView:
    return SourceView(
        name=readings.name,
        kind=readings.kind,
        place=readings.place,
        read_s=None if readings.read_at is None else round(monotonic() - readings.read_at, 3),
        error=readings.error,
        readings=readings.changes,
        failures=readings.failures,
        desired=counts.desired,
        owned=counts.owned,
        leaving=counts.leaving,
        conflicts=counts.n_conflicts,
        refused=counts.n_refused,
        conflicting=counts.conflicts,
        reasons=counts.refused,
        patched=counts.patched,
        deleted=counts.deleted,
        withheld=len(readings.withheld),
        unanswered=dict(islice(readings.withheld.items(), LISTED_MAX)),
    )


def _source_report(readings: SourceStatus, counts: SourceCounts) -> SourceReport:
    return SourceReport(
        name=readings.name,
        changes=readings.changes,
        failures=readings.failures,
        is_stale=readings.error is not None,
        desired=counts.desired or 0,
        owned=counts.owned,
        leaving=counts.leaving,
        conflicts=counts.n_conflicts,
        refused=counts.n_refused,
        withheld=len(readings.withheld),
    )
