"""All sources of workers of one process, and what becomes of what they say."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import monotonic

from select_service.bodies.discovery import DiscoveryView, SourceView
from select_service.bodies.state import KeptState
from select_service.core.discovery.following import Following, SourceCounts
from select_service.core.discovery.standing import FleetStanding
from select_service.core.due_task import DueTask
from select_service.core.kept_state import kept_state
from select_service.core.selector import Selector
from select_service.edge.discovery.carrying_out import INTERVAL_S, CarryingOut
from select_service.edge.discovery.completing import Completing
from select_service.edge.discovery.source import Kind, Readings, Source
from select_service.edge.discovery.workers_file import WorkersFile
from select_service.edge.file_changes import FollowedFiles
from select_service.edge.http_client import HttpClient
from select_service.metrics.discovery import SourceReport
from select_service.settings.discovery import (
    DnsSource,
    FileSource,
    KubernetesSource,
    SourceSettings,
)

LISTED_MAX = 100
"""Ids that are shown of a kind."""
KINDS: Mapping[type, Kind] = {FileSource: "file", DnsSource: "dns", KubernetesSource: "kubernetes"}


class Discovery:
    """Belongs to the event loop, whose due tasks `tasks` are to be."""

    def __init__(
        self,
        settings: Sequence[SourceSettings],
        selector: Selector,
        in_force: Callable[[], None],
        drain_s: float,
    ) -> None:
        """in_force: see `CarryingOut`;  drain_s: how long a worker leaves at most"""
        names = [each.name for each in settings]
        self.following = Following(names, FleetStanding(selector.fleet), drain_s)
        self._carrying = CarryingOut(self.following, selector, in_force)
        self._settings = settings
        self._selector = selector
        self._readings = [
            Readings(each.name, KINDS[type(each)], each.place, self.following.offer)
            for each in settings
        ]
        self._sources: list[Source] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, http: HttpClient) -> list[asyncio.Task[None]]:
        """The tasks end only by `stop`.  http: for questions to engines"""
        pairs = zip(self._settings, self._readings, strict=True)
        self._sources = [_source(settings, readings, http) for settings, readings in pairs]
        self._tasks = [asyncio.create_task(source.run()) for source in self._sources]
        return self._tasks

    def followed(self) -> list[FollowedFiles]:
        """Files that are read again when they change."""
        return [each.files for each in self._sources if isinstance(each, WorkersFile)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def tasks(self) -> list[DueTask]:
        """What is to be done again and again."""
        return [DueTask("discovery", INTERVAL_S, self._carrying.step)]

    def owner(self, worker_id: int) -> str | None:
        """The source to which a worker belongs; None: to whoever registered it over HTTP."""
        return self.following.owner(worker_id)

    def taken_by_hand(self, worker_id: int) -> None:
        """It is about to be registered over HTTP, and belongs to nobody."""
        self.following.taken_by_hand(worker_id)

    def view(self) -> DiscoveryView:
        """GET /discovery."""
        counts = self.following.counts(LISTED_MAX)
        views = [_view(each, counts[each.name]) for each in self._readings]
        return DiscoveryView(sources=views, pending=self.following.pending)

    def state(self) -> KeptState:
        """What is kept over a restart."""
        return kept_state(self._selector, self.following)

    def report(self) -> list[SourceReport]:
        """For metrics."""
        counts = self.following.counts(0)
        return [_report(each, counts[each.name]) for each in self._readings]


def _source(settings: SourceSettings, readings: Readings, http: HttpClient) -> Source:
    if isinstance(settings, FileSource):
        return WorkersFile(settings.path, readings)
    completing = Completing(readings, http if settings.asks else None)
    if isinstance(settings, KubernetesSource):
        from select_service.edge.discovery.kubernetes_api import KubeApi
        from select_service.edge.discovery.kubernetes_pods import KubernetesPods
        from select_service.edge.discovery.kubernetes_slices import KubernetesSlices

        followed = KubernetesSlices if settings.of_slices else KubernetesPods
        return followed(settings, readings, completing, KubeApi(settings.kubeconfig))
    from dns.asyncresolver import Resolver

    from select_service.edge.discovery.dns_names import DnsNames

    return DnsNames(settings, readings, completing, Resolver())


def _view(readings: Readings, counts: SourceCounts) -> SourceView:
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


def _report(readings: Readings, counts: SourceCounts) -> SourceReport:
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
