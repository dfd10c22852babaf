"""GET /metrics: request counters, and the state of the service at scrape time.

Counting costs a request less than a microsecond: plain integers in a dict.  Everything else is read
from the core and the listeners at scrape time.  Label values are bounded: partitions and ranks over
a limit are summed under `other`.
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
from select_service.core.admission.admission_report import AdmissionReport, admission_report
from select_service.core.analysis.policy_evaluation import EvaluationReport
from select_service.core.assumption_service import AssumptionReport
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.pairs.pair_report import PairReport, make_pair_report
from select_service.core.registry.fleet.recovered_blocks import PersistenceReport
from select_service.core.selector import SelectorCore
from select_service.core.sessions.session_report import SessionReport, make_session_report
from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.core.views.state_report import (
    PartitionReport,
    RankLoadSums,
    StateReport,
    build_state_report,
)
from select_service.metrics.access import AUDITED, KEYS, AccessReport, AuditCounts
from select_service.metrics.admission import admission_metrics
from select_service.metrics.assumptions import ASSUMPTIONS
from select_service.metrics.decision_log import LOGGED, DecisionLogCounts
from select_service.metrics.discovery import SOURCES, SourceReport
from select_service.metrics.health import MOVES, health_metrics
from select_service.metrics.pairs import PAIRS
from select_service.metrics.policy_comparison import experiment_metrics, shadow_metrics
from select_service.metrics.predictions import prediction_metrics
from select_service.metrics.replicas import replica_metrics
from select_service.metrics.series import (
    HISTOGRAM,
    OTHER,
    RANK_LABELS,
    SCOPE_LABELS,
    FamilyRow,
    GrowingSums,
    Labels,
    SeriesChooser,
    make_family,
    make_process_series,
    make_series,
    make_summed_series,
)
from select_service.metrics.sessions import SESSIONS
from select_service.metrics.shared_caches import SHARED_CACHES
from select_service.metrics.shared_limits import LIMITS, LimitReport
from select_service.metrics.state_families import (
    LISTENERS,
    LOADS,
    OWN_PARTITIONS,
    PARTITIONS,
    PERSISTENCE,
    PROCESS,
)
from select_service.metrics.tasks import TASKS, TaskCounts
from select_service.metrics.tls import TlsFigures, tls_metrics
from select_service.metrics.tracing import TRACING, TracingCounts
from select_service.schemas.replicas import ReplicaStatus

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_report import HealthReport
    from select_service.core.health.migration.migrator import MigrationCounters

PARTITION_SERIES_MAX = 100
"""Maximum number of partitions with their own series: the first ones, for as long as they exist."""
RANK_SERIES_MAX = 512
"""Maximum number of ranks with their own series, over all partitions."""
SELECTION_BUCKETS_S = (
    *(25e-6, 50e-6, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3),
    *(0.0125, 0.025, 0.05, 0.1, 0.5, 1.0),
)
"""Upper bounds of the latency histogram, in seconds; the last bucket is unbounded."""

METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "any"})
"""Methods counted by name; other methods count as `other`."""

RankKey = tuple[int, int]


class ComponentFigures(NamedTuple):
    """Figures of the components around the core.

    replicas: replica status; None without replicas
    engine_scrapes: scrapes by result; None without engine metrics
    callback_failures: failures by callback name
    tasks: counters by task name
    decision_log: None without a decision log
    access: None without keys
    audit: None without an audit log
    discovery: figures of the sources
    refused: refused outgoing connections by purpose
    tls: None without TLS
    tracing: None without tracing
    limits: shared limits
    followed: seconds since the last check of followed files, by setting or source
    shared_caches: status of the shared caches, by model
    """

    listeners: Mapping[RankKey, ListenerStatus]
    replicas: ReplicaStatus | None = None
    keeping: PersistenceReport = PersistenceReport()
    engine_scrapes: Mapping[str, int] | None = None
    callback_failures: Mapping[str, int] = MappingProxyType({})
    tasks: Mapping[str, TaskCounts] = MappingProxyType({})
    decision_log: DecisionLogCounts | None = None
    access: AccessReport | None = None
    audit: AuditCounts | None = None
    discovery: Sequence[SourceReport] = ()
    refused: Mapping[str, int] = MappingProxyType({})
    tls: TlsFigures | None = None
    tracing: TracingCounts | None = None
    limits: Sequence[LimitReport] = ()
    followed: Mapping[str, float] = MappingProxyType({})
    shared_caches: Sequence[SharedCacheStatus] = ()

    def copy_for_thread(self) -> "ComponentFigures":
        """Return a copy that another thread may read; status and reports are immutable."""
        scrapes = None if self.engine_scrapes is None else dict(self.engine_scrapes)
        return self._replace(
            engine_scrapes=scrapes,
            callback_failures=dict(self.callback_failures),
            tasks={name: replace(counts) for name, counts in self.tasks.items()},
            decision_log=None if self.decision_log is None else replace(self.decision_log),
            audit=None if self.audit is None else replace(self.audit),
            tracing=None if self.tracing is None else replace(self.tracing),
        )


class MetricsObservation(NamedTuple):
    """Copies of all values of a scrape; `now` is the monotonic clock in seconds."""

    report: StateReport
    edges: ComponentFigures
    requests: Mapping[tuple[str, str, int], int]
    warnings: Mapping[tuple[str, str], int]
    selections: Mapping[str, DurationHistogram]
    admission: AdmissionReport
    evaluation: EvaluationReport
    assumptions: AssumptionReport
    health: "HealthReport | None"
    moves: "MigrationCounters | None"
    sessions: SessionReport
    pairs: PairReport
    now: float


OBSERVED: Sequence[FamilyRow[MetricsObservation]] = (
    FamilyRow(
        "requests_total",
        "HTTP requests answered since the start, by declared route, method and status.",
        lambda o: {
            (route, method, str(status)): n for (route, method, status), n in o.requests.items()
        },
        ("route", "method", "status"),
    ),
    FamilyRow(
        "request_warnings_total",
        "Ignored parts of answered requests, such as unknown fields, by route and kind.",
        lambda o: o.warnings,
        ("route", "kind"),
    ),
    FamilyRow(
        "selection_duration_seconds",
        "Seconds from the decoded body to the decision, by route; rejected requests do not count.",
        lambda o: o.selections,
        ("route",),
        kind=HISTOGRAM,
    ),
    FamilyRow(
        "callback_failures_total",
        "Callbacks of the event loop that raised an error; each is a defect and is logged.",
        lambda o: o.edges.callback_failures,
        ("callback",),
    ),
    FamilyRow(
        "connections_refused_total",
        "Outgoing connections refused by the egress policy, by their purpose.",
        lambda o: o.edges.refused,
        ("purpose",),
    ),
)


class ServiceMetrics:
    """Request counters and the scraper of everything else.

    Only `render_text` may be called from another thread.
    """

    def __init__(self, version: str, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests: dict[tuple[str, str, int], int] = {}
        self._warnings: Counter[tuple[str, str]] = Counter()
        self._selections: dict[str, DurationHistogram] = {}
        self._scrape = _Scrape(version)
        self.before_observing: list[Callable[[], None]] = []
        """Callbacks that add request counts kept elsewhere."""

    def count_request(self, route: str, method: str, status: int, n: int = 1) -> None:
        """Count answered requests.  route: a declared path, never the path sent by a client"""
        # Clients can send any method: unknown methods share a label, so the number of series is
        # bounded.
        key = (route, method if method in METHODS else OTHER, status)
        self._requests[key] = self._requests.get(key, 0) + n

    def count_warning(self, route: str, kind: str) -> None:
        """Count a warning of a response.  kind: as in http.request_warnings"""
        self._warnings[route, kind] += 1

    def record_selection(self, route: str, seconds: float) -> None:
        """Record the duration of a selection, from the decoded body to the decision."""
        durations = self._selections.get(route)
        if durations is None:
            durations = self._selections[route] = DurationHistogram(SELECTION_BUCKETS_S)
        durations.add(seconds)

    def record_selections(self, route: str, counts: Sequence[int], total_s: float) -> None:
        """Record the durations of many selections.  counts: number by bucket"""
        durations = self._selections.setdefault(route, DurationHistogram(SELECTION_BUCKETS_S))
        durations.add_all(counts, total_s)

    def copy_state(
        self, selector: SelectorCore, edges: ComponentFigures
    ) -> Generator[None, None, MetricsObservation]:
        """Copy the values of a scrape in steps, on the thread that owns the selector."""
        # Counters kept elsewhere, such as by the fast path, are added before the copy.
        for add in self.before_observing:
            add()
        now = self._clock()
        state = yield from build_state_report(
            selector.fleet, selector.ledger, selector.replay.pending, RANK_SERIES_MAX
        )
        admission = yield from admission_report(selector.gate, selector.fleet.partitions, now)
        fitness = selector.health
        mover = None if fitness is None else fitness.mover
        return MetricsObservation(
            report=state,
            edges=edges.copy_for_thread(),
            requests=dict(self._requests),
            warnings=dict(self._warnings),
            selections={route: durations.copy() for route, durations in self._selections.items()},
            admission=admission,
            evaluation=selector.followers.evaluation.make_report(now, RANK_SERIES_MAX),
            assumptions=selector.followers.assumptions.make_report(),
            health=None if fitness is None else (yield from fitness.build_report()),
            moves=None if mover is None else mover.read_counters().make_copy(),
            sessions=make_session_report(
                selector.decisions.sessions, selector.gate.waiting.sessions
            ),
            pairs=make_pair_report(selector.pairs),
            now=now,
        )

    def render_text(self, seen: MetricsObservation) -> bytes:
        """Return the Prometheus text format 0.0.4; runs on any thread and may take milliseconds."""
        return self._scrape.render_text(seen)


class _Scrape(Collector):
    """Encoder of observations; remembers which records have their own series."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._process = ProcessCollector(registry=None)
        self._partitions: SeriesChooser[Labels] = SeriesChooser(PARTITION_SERIES_MAX)
        self._ranks: SeriesChooser[RankKey] = SeriesChooser(RANK_SERIES_MAX)
        self._sums = GrowingSums()
        self._reasons: set[str] = set()
        self._seen: MetricsObservation | None = None
        self._lock = threading.Lock()

    def render_text(self, seen: MetricsObservation) -> bytes:
        # Scrapes run on threads; two at once would mix the state of `_seen` and the growing sums.
        with self._lock:
            self._seen = seen
            return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all families; called by generate_latest."""
        seen = self._seen
        assert seen is not None
        yield make_family(
            "build_info",
            "Always 1; the label has the version of the service.",
            ("version",),
            {(self._version,): 1},
        )
        # CPU time, memory and descriptors under the usual names of Prometheus clients.
        yield from self._process.collect()
        yield from make_process_series(OBSERVED, seen)
        yield from make_series(
            TASKS, ("task",), {(name,): n for name, n in seen.edges.tasks.items()}
        )
        yield from make_process_series(PROCESS, seen.report)
        yield from make_process_series(PERSISTENCE, seen.edges.keeping)
        yield from self._partition_metrics(seen.report)
        yield from self._listener_metrics(seen)
        yield from admission_metrics(seen.admission, seen.edges.engine_scrapes)
        yield from _evaluation_metrics(seen.evaluation)
        yield from make_process_series(ASSUMPTIONS, seen.assumptions)
        if seen.health is not None:
            yield from health_metrics(seen.health, self._sums)
        yield from make_process_series(MOVES, seen.moves)
        yield from make_process_series(SESSIONS, seen.sessions)
        yield from make_process_series(PAIRS, seen.pairs)
        yield from make_process_series(LOGGED, seen.edges.decision_log)
        yield from make_process_series(KEYS, seen.edges.access)
        yield from make_process_series(AUDITED, seen.edges.audit)
        yield from make_series(
            LIMITS, ("limit",), {(each.name,): each for each in seen.edges.limits}
        )
        if seen.edges.followed:
            yield make_family(
                "followed_file_age_seconds",
                "Seconds since the followed file was last checked for changes; grows while its "
                "file system hangs.",
                ("file",),
                seen.edges.followed,
            )
        if seen.edges.tls is not None:
            yield from tls_metrics(seen.edges.tls)
        yield from make_process_series(TRACING, seen.edges.tracing)
        yield from make_series(
            SHARED_CACHES, ("model_name",), {(s.model_name,): s for s in seen.edges.shared_caches}
        )
        yield from make_series(SOURCES, ("source",), {(s.name,): s for s in seen.edges.discovery})
        if seen.edges.replicas is not None:
            yield from replica_metrics(seen.edges.replicas)

    def _partition_metrics(self, seen: StateReport) -> Iterator[Metric]:
        by_scope = {(p.model_name, p.tenant_id): p for p in seen.partitions}
        # A scope that is really named `other` would duplicate the labels of the sum.
        chosen = self._partitions.choose_keys(
            scope for scope in by_scope if scope != (OTHER, OTHER)
        )
        own = {scope: p for scope, p in by_scope.items() if scope in chosen}
        others = {scope: p for scope, p in by_scope.items() if scope not in chosen}
        yield from make_summed_series(PARTITIONS, SCOPE_LABELS, own, others, self._sums)
        yield from make_series(OWN_PARTITIONS, SCOPE_LABELS, own)
        loads, ranks_shown = _loads_by_rank(own.values(), others.values())
        yield from make_series(LOADS, SCOPE_LABELS + RANK_LABELS, loads)
        yield make_family(
            "partition_series_truncated",
            f"Partitions without their own series, summed under `{OTHER}`.",
            (),
            {(): len(others)},
        )
        yield make_family(
            "rank_series_truncated",
            f"Ranks without their own series, summed under `{OTHER}`.",
            (),
            {(): seen.n_ranks - ranks_shown},
        )

    def _listener_metrics(self, seen: MetricsObservation) -> Iterator[Metric]:
        chosen = self._ranks.choose_keys(seen.edges.listeners)
        own = {_rank_labels(key): s for key, s in seen.edges.listeners.items() if key in chosen}
        others = {key: s for key, s in seen.edges.listeners.items() if key not in chosen}
        yield from make_summed_series(LISTENERS, RANK_LABELS, own, others, self._sums)
        lags = {
            labels: max(0.0, seen.now - status.last_event_monotonic)
            for labels, status in own.items()
            if status.last_event_monotonic is not None
        }
        yield make_family(
            "kv_event_lag_seconds",
            "Seconds since the last batch of KV events of a rank; no series before the first one.",
            RANK_LABELS,
            lags,
        )
        states = Counter(status.state for status in seen.edges.listeners.values())
        yield make_family(
            "kv_event_listeners",
            "Ranks with a KV event listener now, by state.",
            ("state",),
            states,
        )
        yield make_family(
            "kv_cache_ranks",
            "Ranks with a KV event listener now, by what their overlaps are as far as events and "
            "registration show: the exact reusable prefix, an upper bound (at_most), or unknown.",
            ("certainty",),
            _count_certainties(seen.edges.listeners.values()),
        )
        yield make_family(
            "kv_event_dropped_total",
            "Received events and frames that could not be indexed, over all ranks, by reason; "
            "attention_group: only windows and states whose group or tier is not understood.",
            ("reason",),
            self._dropped_by_reason(seen.edges.listeners),
        )

    def _dropped_by_reason(self, listeners: Mapping[RankKey, ListenerStatus]) -> dict[str, float]:
        """Return the dropped events by reason, for every reason ever seen."""
        # A reason stays forever once seen: a counter series that disappears looks like a reset.
        self._reasons |= {reason for status in listeners.values() for reason in status.dropped}
        dropped: dict[str, float] = {}
        for reason in sorted(self._reasons):
            counts = {key: status.dropped.get(reason, 0) for key, status in listeners.items()}
            dropped[reason] = self._sums.add_growth(("dropped", reason), counts)
        return dropped


def _count_certainties(listeners: Iterable[ListenerStatus]) -> dict[str, int]:
    """Return the number of ranks by certainty of their overlaps."""
    groups = [status.cache_groups for status in listeners]
    found = Counter("exact" if each is None else each.certainty for each in groups)
    return {name: found[name] for name in ("exact", "at_most", "unknown")}


def _evaluation_metrics(seen: EvaluationReport) -> Iterator[Metric]:
    if seen.predictions is not None:
        yield from prediction_metrics(seen.predictions)
    if seen.shadow is not None:
        yield from shadow_metrics(seen.shadow)
    if seen.experiments:
        yield from experiment_metrics(seen.experiments)


def _loads_by_rank(
    own: Iterable[PartitionReport], others: Iterable[PartitionReport]
) -> tuple[dict[Labels, RankLoadSums], int]:
    """Return the loads by all four labels, and the number of ranks with their own series.

    The remainder of a partition's sum is under `other`.
    """
    loads: dict[Labels, RankLoadSums] = {}
    shown = 0
    for p in own:
        scope = (p.model_name, p.tenant_id)
        loads |= {(*scope, *_rank_labels(rank[:2])): rank.load for rank in p.ranks}
        shown += len(p.ranks)
        if len(p.ranks) < p.n_ranks:
            single = _sum_loads([rank.load for rank in p.ranks])
            # The total is exact, so the ranks without series are the difference, without reading
            # each.
            rest = (all_of_it - part for all_of_it, part in zip(p.load, single, strict=True))
            loads[(*scope, OTHER, OTHER)] = RankLoadSums(*rest)
    elsewhere = [p.load for p in others]
    if elsewhere:
        loads[(OTHER,) * 4] = _sum_loads(elsewhere)
    return loads, shown


def _sum_loads(loads: list[RankLoadSums]) -> RankLoadSums:
    return RankLoadSums(*(sum(load[i] for load in loads) for i in range(len(RankLoadSums._fields))))


def _rank_labels(rank: RankKey) -> Labels:
    return str(rank[0]), str(rank[1])
