"""Metrics of admission, partly under names of the Dynamo document.

Policy classes and tiers are bounded by the configuration; partitions and ranks as in `metrics`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from prometheus_client.metrics_core import Metric

from select_service.core.admission.admission_report import AdmissionReport
from select_service.core.admission.busy_check import BusyCounts
from select_service.core.admission.waiting_list import Backlog
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.workers.engine_load import EngineReading
from select_service.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    RANK_LABELS,
    SCOPE_LABELS,
    FamilyRow,
    Labels,
    make_series,
    record_itself,
)
from select_service.schemas.admission import BusyThresholdView

V = TypeVar("V")
L = TypeVar("L", bound=Labels)

DYNAMO = "dynamo_"
SERIES_MAX = 512
"""Maximum number of series per family: the first by name."""

_ENGINE_RANKS = "Ranks with an engine reading, by its freshness."

STAGE: Sequence[FamilyRow[AdmissionReport]] = (
    FamilyRow(
        COUNTER,
        "tasks_issued",
        "Requests for a worker that reached admission, including rejected ones.",
        lambda a: a.issued,
        prefix=DYNAMO,
    ),
    FamilyRow(
        COUNTER,
        "tasks_rejected",
        "Requests rejected by admission.",
        lambda a: a.rejected,
        prefix=DYNAMO,
    ),
    FamilyRow(
        GAUGE,
        "queued_requests",
        "Queued requests.",
        lambda a: a.waiting.requests,
        prefix=DYNAMO,
    ),
    FamilyRow(
        GAUGE,
        "queue_requests_max",
        "Maximum number of queued requests; 0 without queueing.",
        lambda a: a.bounds.requests,
    ),
    FamilyRow(
        GAUGE,
        "queue_isl_tokens_max",
        "Maximum number of queued prompt tokens; 0 without queueing.",
        lambda a: a.bounds.isl_tokens,
    ),
    FamilyRow(
        GAUGE,
        "engine_ranks",
        _ENGINE_RANKS,
        lambda a: len(a.engine_readings),
        (("state", "fresh"),),
    ),
    FamilyRow(
        GAUGE, "engine_ranks", _ENGINE_RANKS, lambda a: a.engine_stale, (("state", "stale"),)
    ),
)

OUTCOMES: Sequence[FamilyRow[int]] = (
    FamilyRow(COUNTER, "admission_requests", "Requests by outcome.", record_itself),
)

SHED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "admission_shed",
        "Requests rejected because their priority tier is shed.",
        record_itself,
    ),
)

TIERS: Sequence[FamilyRow[bool]] = (
    FamilyRow(GAUGE, "admission_tier_shed", "1 while the priority tier is shed.", record_itself),
)

BUSY: Sequence[FamilyRow[BusyCounts]] = (
    FamilyRow(GAUGE, "busy_ranks", "Ranks above a busy threshold.", lambda b: b.ranks),
    FamilyRow(
        GAUGE,
        "busy_workers",
        "Workers with all ranks above a busy threshold.",
        lambda b: b.workers,
    ),
)

THRESHOLDS: Sequence[FamilyRow[BusyThresholdView]] = (
    FamilyRow(
        GAUGE,
        "busy_threshold_decode_blocks",
        "Fraction of the KV cache above which a rank is busy; no series if not checked.",
        lambda t: t.active_decode_blocks_threshold,
    ),
    FamilyRow(
        GAUGE,
        "busy_threshold_prefill_tokens",
        "Active prefill tokens above which a rank is busy; no series if not checked.",
        lambda t: t.active_prefill_tokens_threshold,
    ),
)

CLASSES: Sequence[FamilyRow[Backlog]] = (
    FamilyRow(
        GAUGE,
        "queue_requests",
        "Queued requests by policy class.",
        lambda w: w.requests,
    ),
    FamilyRow(
        GAUGE,
        "queue_isl_tokens",
        "Prompt tokens of queued requests by policy class.",
        lambda w: w.isl_tokens,
    ),
)

WAITS: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "queue_wait_seconds",
        "Queueing time of requests that got a rank.",
        record_itself,
    ),
)

ENGINES: Sequence[FamilyRow[EngineReading]] = (
    FamilyRow(
        GAUGE,
        "engine_kv_usage",
        "Used fraction of the KV cache as reported by the engine.",
        lambda r: r.kv_usage,
    ),
    FamilyRow(
        GAUGE,
        "engine_requests_waiting",
        "Waiting requests in the engine.",
        lambda r: r.requests_waiting,
    ),
    FamilyRow(
        GAUGE,
        "engine_requests_running",
        "Running requests in the engine.",
        lambda r: r.requests_running,
    ),
)

SCRAPES: Sequence[FamilyRow[int]] = (
    FamilyRow(COUNTER, "engine_scrapes", "Scrapes of engine metrics by result.", record_itself),
)


def admission_metrics(seen: AdmissionReport, scrapes: Mapping[str, int] | None) -> Iterator[Metric]:
    """Yield the series of admission.

    scrapes: engine scrapes by result
    """
    yield from make_series(STAGE, (), {(): seen})
    yield from make_series(OUTCOMES, ("outcome",), _label_by_name(seen.outcomes))
    yield from make_series(SHED, ("tier",), _label_by_name(seen.shed))
    yield from make_series(TIERS, ("tier",), _label_by_name(seen.tier_shed))
    yield from make_series(BUSY, SCOPE_LABELS, _first_by_name(seen.busy))
    thresholds = {(each.model,): each for each in seen.thresholds}
    yield from make_series(THRESHOLDS, ("model_name",), _first_by_name(thresholds))
    yield from make_series(CLASSES, ("policy_class",), _first_by_name(_label_by_name(seen.classes)))
    yield from make_series(WAITS, ("policy_class",), _first_by_name(_label_by_name(seen.waits)))
    readings = {
        (*key, str(rank.worker_id), str(rank.dp_rank)): reading
        for (key, rank), reading in seen.engine_readings.items()
    }
    yield from make_series(ENGINES, SCOPE_LABELS + RANK_LABELS, _first_by_name(readings))
    if scrapes is not None:
        yield from make_series(SCRAPES, ("result",), _label_by_name(scrapes))


def _label_by_name(values: Mapping[str, V]) -> dict[Labels, V]:
    return {(name,): value for name, value in values.items()}


def _first_by_name(records: Mapping[L, V]) -> dict[L, V]:
    # Sorted, so that the same series survive from scrape to scrape.
    return dict(islice(sorted(records.items(), key=itemgetter(0)), SERIES_MAX))
