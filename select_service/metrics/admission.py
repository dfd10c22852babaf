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
from select_service.core.workers.engine_load import EngineReading
from select_service.metrics.series import (
    DYNAMO,
    HISTOGRAM,
    RANK_LABELS,
    SCOPE_LABELS,
    FamilyRow,
    make_family,
    make_process_series,
    make_series,
)
from select_service.schemas.admission import BusyThresholdView

V = TypeVar("V")
K = TypeVar("K")

SERIES_MAX = 512
"""Maximum number of series per family: the first by name."""


STAGE: Sequence[FamilyRow[AdmissionReport]] = (
    FamilyRow(
        "tasks_issued_total",
        "Requests for a rank that reached admission, whether admitted, queued or rejected.",
        lambda a: a.issued,
        prefix=DYNAMO,
    ),
    FamilyRow(
        "tasks_rejected_total",
        "Requests rejected by admission: busy ranks, full queue, timeout, deadline, shed tier.",
        lambda a: a.rejected,
        prefix=DYNAMO,
    ),
    FamilyRow(
        "queued_requests",
        "Requests waiting in the admission queue now, over all models.",
        lambda a: a.waiting.requests,
        prefix=DYNAMO,
    ),
    FamilyRow(
        "queue_requests_max",
        "Limit of queued requests (--queue-max-requests); 0 without a queue.",
        lambda a: a.bounds.requests,
    ),
    FamilyRow(
        "queue_isl_tokens_max",
        "Limit of queued prompt tokens (--queue-max-tokens); 0 without a queue.",
        lambda a: a.bounds.isl_tokens,
    ),
    FamilyRow(
        "engine_ranks",
        "Ranks whose engine metrics were read; stale: the reading is older than "
        "--engine-metrics-stale-secs and ignored.",
        lambda a: {"fresh": len(a.engine_readings), "stale": a.engine_stale},
        ("state",),
    ),
    FamilyRow(
        "admission_requests_total",
        "Requests judged by admission, by outcome, counted when the outcome is final.",
        lambda a: a.outcomes,
        ("outcome",),
    ),
    FamilyRow(
        "admission_shed_total",
        "Requests rejected because their priority tier was shed, by tier.",
        lambda a: a.shed,
        ("tier",),
    ),
    FamilyRow(
        "admission_tier_shed",
        "1 while requests of the priority tier are rejected, else 0.",
        lambda a: a.tier_shed,
        ("tier",),
    ),
    FamilyRow(
        "queue_deadline_exceeded_total",
        "Requests whose deadline_ms was not met: refused at once, or after waiting in vain.",
        lambda a: _first_by_name(a.missed_deadlines),
        ("policy_class",),
    ),
    FamilyRow(
        "queue_flows",
        "Different values of fairness_id among the waiting requests now; one more without.",
        lambda a: _first_by_name(a.flows),
        ("policy_class",),
    ),
    FamilyRow(
        "queue_wait_seconds",
        "Seconds in the queue, of requests that got a rank after waiting.",
        lambda a: _first_by_name(a.waits),
        ("policy_class",),
        kind=HISTOGRAM,
    ),
)


BUSY: Sequence[FamilyRow[BusyCounts]] = (
    FamilyRow(
        "busy_ranks",
        "Ranks above a busy threshold now, no candidates for requests.",
        lambda b: b.ranks,
    ),
    FamilyRow(
        "busy_workers",
        "Workers whose ranks are all above a busy threshold now.",
        lambda b: b.workers,
    ),
)

THRESHOLDS: Sequence[FamilyRow[BusyThresholdView]] = (
    FamilyRow(
        "busy_threshold_decode_blocks",
        "Fraction of the KV cache above which a rank is busy; no series if not checked.",
        lambda t: t.active_decode_blocks_threshold,
    ),
    FamilyRow(
        "busy_threshold_prefill_tokens",
        "Booked prefill tokens above which a rank is busy; no series if not checked.",
        lambda t: t.active_prefill_tokens_threshold,
    ),
)

CLASSES: Sequence[FamilyRow[Backlog]] = (
    FamilyRow(
        "queue_requests",
        "Requests waiting in the queue of a policy class now.",
        lambda w: w.requests,
    ),
    FamilyRow(
        "queue_isl_tokens",
        "Prompt tokens of the requests that wait in a policy class now.",
        lambda w: w.isl_tokens,
    ),
)


ENGINES: Sequence[FamilyRow[EngineReading]] = (
    FamilyRow(
        "engine_kv_usage",
        "Used share of the KV cache by the last reading of the engine, 0 to 1.",
        lambda r: r.kv_usage,
    ),
    FamilyRow(
        "engine_requests_waiting",
        "Requests waiting inside the engine by its last reading.",
        lambda r: r.requests_waiting,
    ),
    FamilyRow(
        "engine_requests_running",
        "Requests running inside the engine by its last reading.",
        lambda r: r.requests_running,
    ),
)


def admission_metrics(seen: AdmissionReport, scrapes: Mapping[str, int] | None) -> Iterator[Metric]:
    """Yield the series of admission.

    scrapes: engine scrapes by result
    """
    yield from make_process_series(STAGE, seen)
    yield from make_series(BUSY, SCOPE_LABELS, _first_by_name(seen.busy))
    thresholds = {(each.model,): each for each in seen.thresholds}
    yield from make_series(THRESHOLDS, ("model_name",), _first_by_name(thresholds))
    classes = {(name,): waiting for name, waiting in seen.classes.items()}
    yield from make_series(CLASSES, ("policy_class",), _first_by_name(classes))
    readings = {
        (*key, str(rank.worker_id), str(rank.dp_rank)): reading
        for (key, rank), reading in seen.engine_readings.items()
    }
    yield from make_series(ENGINES, SCOPE_LABELS + RANK_LABELS, _first_by_name(readings))
    if scrapes is not None:
        yield make_family(
            "engine_scrapes_total",
            "Readings of metrics endpoints of engines, by result.",
            ("result",),
            scrapes,
        )


def _first_by_name(records: Mapping[K, V]) -> dict[K, V]:
    # Sorted, so that the same series survive from scrape to scrape.
    return dict(islice(sorted(records.items(), key=itemgetter(0)), SERIES_MAX))
