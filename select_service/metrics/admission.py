"""What the admission stage tells Prometheus: under the names of Dynamo's document, and our own.

Policy classes and tiers are bounded by the configuration; partitions and ranks as in `metrics`.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from prometheus_client.metrics_core import Metric

from select_service.core.admission.admission_report import AdmissionReport
from select_service.metrics.families import RANK_LABELS, SCOPE_LABELS
from select_service.metrics.series import Labels, counters, gauges, histograms

V = TypeVar("V")

DYNAMO = "dynamo_"
SERIES_MAX = 512
"""Series of one family at most: the first by name."""


def of_admission(seen: AdmissionReport, scrapes: Mapping[str, int] | None) -> Iterator[Metric]:
    """scrapes: engine scrapes by result"""
    yield counters(
        "tasks_issued",
        "Requests for a worker that were judged, rejected ones included.",
        (),
        {(): seen.issued},
        DYNAMO,
    )
    yield counters(
        "tasks_rejected", "Requests that admission refused.", (), {(): seen.rejected}, DYNAMO
    )
    yield gauges(
        "queued_requests", "Requests that wait now.", (), {(): seen.waiting.requests}, DYNAMO
    )
    yield counters(
        "admission_requests",
        "Requests by what became of them.",
        ("outcome",),
        _by_name(seen.outcomes),
    )
    yield counters(
        "admission_shed",
        "Requests refused because their priority tier is shed.",
        ("tier",),
        _by_name(seen.shed),
    )
    yield gauges(
        "admission_tier_shed",
        "1 while the priority tier is shed.",
        ("tier",),
        _by_name(seen.tier_shed),
    )
    yield from _of_thresholds(seen)
    yield from _of_queue(seen)
    yield from _of_engines(seen)
    if scrapes is not None:
        yield counters(
            "engine_scrapes",
            "Readings of engines' own metrics, by result.",
            ("result",),
            _by_name(scrapes),
        )


def _of_thresholds(seen: AdmissionReport) -> Iterator[Metric]:
    yield gauges(
        "busy_ranks",
        "Ranks above a busy threshold.",
        SCOPE_LABELS,
        _first({tuple(key): counts.ranks for key, counts in seen.busy.items()}),
    )
    yield gauges(
        "busy_workers",
        "Workers whose ranks are all above a busy threshold.",
        SCOPE_LABELS,
        _first({tuple(key): counts.workers for key, counts in seen.busy.items()}),
    )
    yield gauges(
        "busy_threshold_decode_blocks",
        "Part of the KV cache above which a rank is busy; no series when it is not judged.",
        ("model_name",),
        _first(
            {
                (each.model,): each.active_decode_blocks_threshold
                for each in seen.thresholds
                if each.active_decode_blocks_threshold is not None
            }
        ),
    )
    yield gauges(
        "busy_threshold_prefill_tokens",
        "Active prefill tokens above which a rank is busy; no series when it is not judged.",
        ("model_name",),
        _first(
            {
                (each.model,): each.active_prefill_tokens_threshold
                for each in seen.thresholds
                if each.active_prefill_tokens_threshold is not None
            }
        ),
    )


def _of_queue(seen: AdmissionReport) -> Iterator[Metric]:
    yield gauges(
        "queue_requests",
        "Requests that wait, by policy class.",
        ("policy_class",),
        _first({(name,): waiting.requests for name, waiting in seen.classes.items()}),
    )
    yield gauges(
        "queue_isl_tokens",
        "Prompt tokens of the requests that wait, by policy class.",
        ("policy_class",),
        _first({(name,): waiting.isl_tokens for name, waiting in seen.classes.items()}),
    )
    yield gauges(
        "queue_requests_max",
        "Requests that may wait; 0 when queueing is off.",
        (),
        {(): seen.bounds.requests},
    )
    yield gauges(
        "queue_isl_tokens_max",
        "Prompt tokens that may wait; 0 when queueing is off.",
        (),
        {(): seen.bounds.isl_tokens},
    )
    yield histograms(
        "queue_wait_seconds",
        "How long requests waited that got a rank after waiting.",
        ("policy_class",),
        _first({(name,): waits for name, waits in seen.waits.items()}),
    )


def _of_engines(seen: AdmissionReport) -> Iterator[Metric]:
    yield gauges(
        "engine_ranks",
        "Ranks whose engine has been heard, by whether its last reading counts.",
        ("state",),
        {("fresh",): len(seen.engine_readings), ("stale",): seen.engine_stale},
    )
    readings = {
        (*key, str(rank.worker_id), str(rank.dp_rank)): reading
        for (key, rank), reading in seen.engine_readings.items()
    }
    for name, text in (
        ("kv_usage", "Used part of the KV cache in the words of the engine."),
        ("requests_waiting", "Requests that wait in the engine."),
        ("requests_running", "Requests that run in the engine."),
    ):
        told = {labels: getattr(reading, name) for labels, reading in readings.items()}
        yield gauges(
            f"engine_{name}",
            text,
            SCOPE_LABELS + RANK_LABELS,
            _first({labels: value for labels, value in told.items() if value is not None}),
        )


def _by_name(counts: Mapping[str, float]) -> dict[Labels, float]:
    return {(name,): value for name, value in counts.items()}


def _first(values: Mapping[Labels, V]) -> dict[Labels, V]:
    return dict(islice(sorted(values.items(), key=itemgetter(0)), SERIES_MAX))
