"""GET /metrics: what was counted as requests passed, and the state as it is when it is scraped.

Counting costs a request less than a microsecond: plain integers in a dict.  Everything else is read
from the core and from the listeners at scrape time.  Label values are bounded: partitions and
ranks beyond a bound are summed under `other`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from indexer.sockets.listener_status import ListenerStatus
from select_service.bodies.replicas import ReplicaStatus
from select_service.core.admission.admission_report import AdmissionReport, admission_report
from select_service.core.fleet.recovered import STATES, KeepingReport
from select_service.core.hindsight import HindsightReport
from select_service.core.histogram import Histogram
from select_service.core.selector import Selector
from select_service.core.views.state_report import Load, PartitionReport, Report, report
from select_service.metrics.access import (
    AccessReport,
    AuditCounts,
    of_access,
    of_audit,
    of_connections,
)
from select_service.metrics.admission import of_admission
from select_service.metrics.comparing import of_experiments, of_shadow
from select_service.metrics.decision_log import LogCounts, of_decision_log
from select_service.metrics.discovery import SourceReport, of_discovery
from select_service.metrics.families import (
    BUILD,
    EVENTS_DROPPED,
    KEEPING,
    LISTENER_LAGS,
    LISTENER_STATES,
    LISTENERS,
    LOADS,
    PARTITIONS,
    POLICY,
    PROCESS,
    RECOVERY_STATES,
    REPORTED,
    TRUNCATED,
    WORKERS,
    Truncated,
)
from select_service.metrics.files import of_followed
from select_service.metrics.health import of_health, of_moves
from select_service.metrics.input_loops import LoopCounts, of_loops
from select_service.metrics.limits import LimitReport, of_limits
from select_service.metrics.replicas import of_replicas
from select_service.metrics.requests import of_requests
from select_service.metrics.series import (
    OTHER,
    RANK_LABELS,
    SCOPE_LABELS,
    Chosen,
    GrowingSums,
    Labels,
    series_of,
    summed_series_of,
)
from select_service.metrics.tasks import TaskCounts, of_tasks
from select_service.metrics.tls import TlsSeen, of_tls
from select_service.metrics.tracing import TracingCounts, of_tracing
from select_service.metrics.trust import of_trust

if TYPE_CHECKING:
    from select_service.core.fitness.report import HealthReport
    from select_service.core.moving.mover import MoveCounts

PARTITION_SERIES_MAX = 100
"""Partitions with series of their own: the first ones, each for as long as it exists."""
RANK_SERIES_MAX = 512
"""Ranks with series of their own, over all partitions."""
SELECTION_BUCKETS_S = (
    *(25e-6, 50e-6, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3),
    *(0.0125, 0.025, 0.05, 0.1, 0.5, 1.0),
)
"""Upper bounds of the latency histogram, in seconds; a last bucket has no bound."""

METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "any"})
"""Methods that are counted by name; a client may invent others, which count as `other`."""

RankKey = tuple[int, int]


class Edges(NamedTuple):
    """What the parts around the core say of themselves.

    replicas:          None without a replica plane
    engine_scrapes:    by result; None when no engine is asked
    callback_failures: by the name of the callback
    tasks:             by the name of the task
    input_loops:       by their numbers, from 1 on
    decision_log:      None: there is none
    access:            None: there are no keys
    audit:             None: there is no audit log
    discovery:         of the sources of workers
    refused:           connections that were not made, by what they were for
    tls:               None: there is none
    tracing:           None: there are no spans
    limits:            that all callers share
    followed:          seconds since files were looked at, by the setting or source
    """

    listeners: Mapping[RankKey, ListenerStatus]
    replicas: ReplicaStatus | None = None
    keeping: KeepingReport = KeepingReport()
    engine_scrapes: Mapping[str, int] | None = None
    callback_failures: Mapping[str, int] = MappingProxyType({})
    tasks: Mapping[str, TaskCounts] = MappingProxyType({})
    input_loops: Sequence[LoopCounts] = ()
    decision_log: LogCounts | None = None
    access: AccessReport | None = None
    audit: AuditCounts | None = None
    discovery: Sequence[SourceReport] = ()
    refused: Mapping[str, int] = MappingProxyType({})
    tls: TlsSeen | None = None
    tracing: TracingCounts | None = None
    limits: Sequence[LimitReport] = ()
    followed: Mapping[str, float] = MappingProxyType({})

    def copied(self) -> "Edges":
        """So that another thread may read it; status and reports never change."""
        scrapes = None if self.engine_scrapes is None else dict(self.engine_scrapes)
        return self._replace(
            engine_scrapes=scrapes,
            callback_failures=dict(self.callback_failures),
            tasks={name: replace(counts) for name, counts in self.tasks.items()},
            decision_log=None if self.decision_log is None else replace(self.decision_log),
            audit=None if self.audit is None else replace(self.audit),
            tracing=None if self.tracing is None else replace(self.tracing),
        )


class Observation(NamedTuple):
    """Copies of everything that one scrape shows; `now` in seconds of the monotonic clock."""

    report: Report
    edges: Edges
    requests: Mapping[tuple[str, str, int], int]
    warnings: Mapping[tuple[str, str], int]
    selections: Mapping[str, Histogram]
    admission: AdmissionReport
    hindsight: HindsightReport
    health: "HealthReport | None"
    moves: "MoveCounts | None"
    now: float


class Metrics:
    """Counts requests, observes the rest.  Only `text` may be called from another thread."""

    def __init__(self, version: str, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests: dict[tuple[str, str, int], int] = {}
        self._warnings: Counter[tuple[str, str]] = Counter()
        self._selections: dict[str, Histogram] = {}
        self._scrape = _Scrape(version)
        self.before_observing: list[Callable[[], None]] = []
        """Those who count requests elsewhere add them when they are called."""

    def request(self, route: str, method: str, status: int, n: int = 1) -> None:
        """Count answered requests.  route: a declared path, never a client's own."""
        key = (route, method if method in METHODS else OTHER, status)
        self._requests[key] = self._requests.get(key, 0) + n

    def warned(self, route: str, kind: str) -> None:
        """Count a warning of an answer.  kind: as in http.request_warnings"""
        self._warnings[route, kind] += 1

    def selection(self, route: str, seconds: float) -> None:
        """Record how long a selection took, from the decoded body to the decision."""
        durations = self._selections.get(route)
        if durations is None:
            durations = self._selections[route] = Histogram(SELECTION_BUCKETS_S)
        durations.add(seconds)

    def selections(self, route: str, counts: Sequence[int], total_s: float) -> None:
        """Record the durations of many selections.  counts: by bucket"""
        durations = self._selections.setdefault(route, Histogram(SELECTION_BUCKETS_S))
        durations.add_all(counts, total_s)

    def observe(self, selector: Selector, edges: Edges) -> Generator[None, None, Observation]:
        """Copy what a scrape shows, in steps, on the thread that owns the selector."""
        for add in self.before_observing:
            add()
        now = self._clock()
        state = yield from report(selector.fleet, selector.ledger, RANK_SERIES_MAX)
        admission = yield from admission_report(selector.gate, selector.fleet.partitions, now)
        fitness = selector.fitness
        return Observation(
            report=state,
            edges=edges.copied(),
            requests=dict(self._requests),
            warnings=dict(self._warnings),
            selections={route: durations.copy() for route, durations in self._selections.items()},
            admission=admission,
            hindsight=selector.hindsight.report(now, RANK_SERIES_MAX),
            health=None if fitness is None else (yield from fitness.report()),
            moves=None if selector.mover is None else selector.mover.counts().copied(),
            now=now,
        )

    def text(self, seen: Observation) -> bytes:
        """Prometheus text exposition, format 0.0.4.  On any thread: it may take milliseconds."""
        return self._scrape.text(seen)


class _Scrape(Collector):
    """Turns observations into text; remembers which records have series of their own."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._process = ProcessCollector(registry=None)
        self._partitions: Chosen[Labels] = Chosen(PARTITION_SERIES_MAX)
        self._ranks: Chosen[RankKey] = Chosen(RANK_SERIES_MAX)
        self._sums = GrowingSums()
        self._reasons: set[str] = set()
        self._seen: Observation | None = None
        self._lock = threading.Lock()

    def text(self, seen: Observation) -> bytes:
        with self._lock:
            self._seen = seen
            return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Called by generate_latest."""
        seen = self._seen
        assert seen is not None
        yield from series_of(BUILD, ("version",), {(self._version,): 1})
        yield from self._process.collect()
        yield from of_requests(
            seen.requests, seen.warnings, seen.selections, seen.edges.callback_failures
        )
        yield from of_tasks(seen.edges.tasks)
        yield from of_loops(seen.edges.input_loops)
        yield from series_of(PROCESS, (), {(): seen.report})
        yield from series_of(KEEPING, (), {(): seen.edges.keeping})
        states = {(state,): state == seen.edges.keeping.state for state in STATES}
        yield from series_of(RECOVERY_STATES, ("state",), states)
        workers = {(lifecycle,): n for lifecycle, n in seen.report.workers.items()}
        yield from series_of(WORKERS, ("lifecycle",), workers)
        yield from self._of_partitions(seen.report)
        yield from self._of_listeners(seen)
        yield from of_admission(seen.admission, seen.edges.engine_scrapes)
        yield from _of_hindsight(seen.hindsight)
        if seen.health is not None:
            yield from of_health(seen.health, self._sums)
        if seen.moves is not None:
            yield from of_moves(seen.moves)
        if seen.edges.decision_log is not None:
            yield from of_decision_log(seen.edges.decision_log)
        if seen.edges.access is not None:
            yield from of_access(seen.edges.access)
        if seen.edges.audit is not None:
            yield from of_audit(seen.edges.audit)
        yield from of_limits(seen.edges.limits)
        yield from of_connections(seen.edges.refused)
        yield from of_followed(seen.edges.followed)
        if seen.edges.tls is not None:
            yield from of_tls(seen.edges.tls)
        if seen.edges.tracing is not None:
            yield from of_tracing(seen.edges.tracing)
        yield from of_discovery(seen.edges.discovery)
        if seen.edges.replicas is not None:
            yield from of_replicas(seen.edges.replicas)

    def _of_partitions(self, seen: Report) -> Iterator[Metric]:
        by_scope = {(p.model_name, p.tenant_id): p for p in seen.partitions}
        # A scope that is really called so would be a second series of the same labels.
        chosen = self._partitions.of(scope for scope in by_scope if scope != (OTHER, OTHER))
        own = {scope: p for scope, p in by_scope.items() if scope in chosen}
        others = {scope: p for scope, p in by_scope.items() if scope not in chosen}
        yield from summed_series_of(PARTITIONS, SCOPE_LABELS, own, others, self._sums)
        policies = {(*scope, p.policy): 1 for scope, p in own.items()}
        yield from series_of(POLICY, (*SCOPE_LABELS, "policy"), policies)
        reported = {scope: p.reported_share for scope, p in own.items()}
        yield from series_of(REPORTED, SCOPE_LABELS, reported)
        loads, ranks_shown = _loads(own.values(), others.values())
        yield from series_of(LOADS, SCOPE_LABELS + RANK_LABELS, loads)
        truncated = Truncated(len(others), seen.n_ranks - ranks_shown)
        yield from series_of(TRUNCATED, (), {(): truncated})

    def _of_listeners(self, seen: Observation) -> Iterator[Metric]:
        chosen = self._ranks.of(seen.edges.listeners)
        own = {_named(key): s for key, s in seen.edges.listeners.items() if key in chosen}
        others = {key: s for key, s in seen.edges.listeners.items() if key not in chosen}
        yield from summed_series_of(LISTENERS, RANK_LABELS, own, others, self._sums)
        lags = {
            labels: max(0.0, seen.now - status.last_event_monotonic)
            for labels, status in own.items()
            if status.last_event_monotonic is not None
        }
        yield from series_of(LISTENER_LAGS, RANK_LABELS, lags)
        states = Counter(status.state for status in seen.edges.listeners.values())
        yield from series_of(LISTENER_STATES, ("state",), {(s,): n for s, n in states.items()})
        yield from series_of(EVENTS_DROPPED, ("reason",), self._dropped(seen.edges.listeners))

    def _dropped(self, listeners: Mapping[RankKey, ListenerStatus]) -> dict[Labels, float]:
        """By reason; every one that was ever seen."""
        self._reasons |= {reason for status in listeners.values() for reason in status.dropped}
        dropped: dict[Labels, float] = {}
        for reason in sorted(self._reasons):
            counts = {key: status.dropped.get(reason, 0) for key, status in listeners.items()}
            dropped[reason,] = self._sums.grow(("dropped", reason), counts)
        return dropped


def _of_hindsight(seen: HindsightReport) -> Iterator[Metric]:
    if seen.predictions is not None:
        yield from of_trust(seen.predictions)
    if seen.shadow is not None:
        yield from of_shadow(seen.shadow)
    if seen.experiments:
        yield from of_experiments(seen.experiments)


def _loads(
    own: Iterable[PartitionReport], others: Iterable[PartitionReport]
) -> tuple[dict[Labels, Load], int]:
    """Loads by all four labels, and how many of them are single ranks.

    What the single ranks of a partition leave of its sum stands under `other`.
    """
    loads: dict[Labels, Load] = {}
    shown = 0
    for p in own:
        scope = (p.model_name, p.tenant_id)
        loads |= {(*scope, *_named(rank[:2])): rank.load for rank in p.ranks}
        shown += len(p.ranks)
        if len(p.ranks) < p.n_ranks:
            single = _sum([rank.load for rank in p.ranks])
            rest = (all_of_it - part for all_of_it, part in zip(p.load, single, strict=True))
            loads[(*scope, OTHER, OTHER)] = Load(*rest)
    elsewhere = [p.load for p in others]
    if elsewhere:
        loads[(OTHER,) * 4] = _sum(elsewhere)
    return loads, shown


def _sum(loads: list[Load]) -> Load:
    return Load(*(sum(load[i] for load in loads) for i in range(len(Load._fields))))


def _named(rank: RankKey) -> Labels:
    return str(rank[0]), str(rank[1])
