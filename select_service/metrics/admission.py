"""What the admission stage tells Prometheus: under the names of Dynamo's document, and our own.

Policy classes and tiers are bounded by the configuration; partitions and ranks as in `metrics`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from prometheus_client.metrics_core import Metric

from select_service.bodies.admission import BusyThresholdView
from select_service.core.admission.admission_report import AdmissionReport
from select_service.core.admission.busy import BusyCounts
from select_service.core.admission.waiting_list import Backlog
from select_service.core.engines.engine_load import EngineReading
from select_service.core.histogram import Histogram
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    RANK_LABELS,
    SCOPE_LABELS,
    Family,
    Labels,
    itself,
    series_of,
)

V = TypeVar("V")
L = TypeVar("L", bound=Labels)

DYNAMO = "dynamo_"
SERIES_MAX = 512
"""Series of one family at most: the first by name."""

_ENGINE_RANKS = "Ranks whose engine has been heard, by whether its last reading counts."

STAGE: Sequence[Family[AdmissionReport]] = (
    Family(
        COUNTER,
        "tasks_issued",
        "Requests for a worker that were judged, rejected ones included.",
        lambda a: a.issued,
        prefix=DYNAMO,
    ),
    Family(
        COUNTER,
        "tasks_rejected",
        "Requests that admission refused.",
        lambda a: a.rejected,
        prefix=DYNAMO,
    ),
    Family(
        GAUGE,
        "queued_requests",
        "Requests that wait now.",
        lambda a: a.waiting.requests,
        prefix=DYNAMO,
    ),
    Family(
        GAUGE,
        "queue_requests_max",
        "Requests that may wait; 0 when queueing is off.",
        lambda a: a.bounds.requests,
    ),
    Family(
        GAUGE,
        "queue_isl_tokens_max",
        "Prompt tokens that may wait; 0 when queueing is off.",
        lambda a: a.bounds.isl_tokens,
    ),
    Family(
        GAUGE,
        "engine_ranks",
        _ENGINE_RANKS,
        lambda a: len(a.engine_readings),
        (("state", "fresh"),),
    ),
    Family(GAUGE, "engine_ranks", _ENGINE_RANKS, lambda a: a.engine_stale, (("state", "stale"),)),
)

OUTCOMES: Sequence[Family[int]] = (
    Family(COUNTER, "admission_requests", "Requests by what became of them.", itself),
)

SHED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "admission_shed",
        "Requests refused because their priority tier is shed.",
        itself,
    ),
)

TIERS: Sequence[Family[bool]] = (
    Family(GAUGE, "admission_tier_shed", "1 while the priority tier is shed.", itself),
)

BUSY: Sequence[Family[BusyCounts]] = (
    Family(GAUGE, "busy_ranks", "Ranks above a busy threshold.", lambda b: b.ranks),
    Family(
        GAUGE,
        "busy_workers",
        "Workers whose ranks are all above a busy threshold.",
        lambda b: b.workers,
    ),
)

THRESHOLDS: Sequence[Family[BusyThresholdView]] = (
    Family(
        GAUGE,
        "busy_threshold_decode_blocks",
        "Part of the KV cache above which a rank is busy; no series when it is not judged.",
        lambda t: t.active_decode_blocks_threshold,
    ),
    Family(
        GAUGE,
        "busy_threshold_prefill_tokens",
        "Active prefill tokens above which a rank is busy; no series when it is not judged.",
        lambda t: t.active_prefill_tokens_threshold,
    ),
)

CLASSES: Sequence[Family[Backlog]] = (
    Family(
        GAUGE,
        "queue_requests",
        "Requests that wait, by policy class.",
        lambda w: w.requests,
    ),
    Family(
        GAUGE,
        "queue_isl_tokens",
        "Prompt tokens of the requests that wait, by policy class.",
        lambda w: w.isl_tokens,
    ),
)

WAITS: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "queue_wait_seconds",
        "How long requests waited that got a rank after waiting.",
        itself,
    ),
)

ENGINES: Sequence[Family[EngineReading]] = (
    Family(
        GAUGE,
        "engine_kv_usage",
        "Used part of the KV cache in the words of the engine.",
        lambda r: r.kv_usage,
    ),
    Family(
        GAUGE,
        "engine_requests_waiting",
        "Requests that wait in the engine.",
        lambda r: r.requests_waiting,
    ),
    Family(
        GAUGE,
        "engine_requests_running",
        "Requests that run in the engine.",
        lambda r: r.requests_running,
    ),
)

SCRAPES: Sequence[Family[int]] = (
    Family(COUNTER, "engine_scrapes", "Readings of engines' own metrics, by result.", itself),
)


def of_admission(seen: AdmissionReport, scrapes: Mapping[str, int] | None) -> Iterator[Metric]:
    """scrapes: engine scrapes by result"""
    yield from series_of(STAGE, (), {(): seen})
    yield from series_of(OUTCOMES, ("outcome",), _by_name(seen.outcomes))
    yield from series_of(SHED, ("tier",), _by_name(seen.shed))
    yield from series_of(TIERS, ("tier",), _by_name(seen.tier_shed))
    yield from series_of(BUSY, SCOPE_LABELS, _first(seen.busy))
    thresholds = {(each.model,): each for each in seen.thresholds}
    yield from series_of(THRESHOLDS, ("model_name",), _first(thresholds))
    yield from series_of(CLASSES, ("policy_class",), _first(_by_name(seen.classes)))
    yield from series_of(WAITS, ("policy_class",), _first(_by_name(seen.waits)))
    readings = {
        (*key, str(rank.worker_id), str(rank.dp_rank)): reading
        for (key, rank), reading in seen.engine_readings.items()
    }
    yield from series_of(ENGINES, SCOPE_LABELS + RANK_LABELS, _first(readings))
    if scrapes is not None:
        yield from series_of(SCRAPES, ("result",), _by_name(scrapes))


def _by_name(values: Mapping[str, V]) -> dict[Labels, V]:
    return {(name,): value for name, value in values.items()}


def _first(records: Mapping[L, V]) -> dict[L, V]:
    return dict(islice(sorted(records.items(), key=itemgetter(0)), SERIES_MAX))
