"""Metrics of predictions: their accuracy, overall and by rank."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.analysis.accuracy.prediction_checks import (
    AccuracyReport,
    RankAccuracyReport,
)
from select_service.core.duration_histogram import DurationHistogram
from select_service.metrics.series import (
    GAUGE,
    HISTOGRAM,
    RANK_LABELS,
    FamilyRow,
    make_series,
    record_itself,
)

CHECKED: Sequence[FamilyRow[AccuracyReport]] = (
    FamilyRow(
        GAUGE, "prediction_checks_pending", "Reservations under observation.", lambda t: t.pending
    ),
    FamilyRow(
        GAUGE,
        "ranks_suspect",
        "Ranks with engines that do not announce the blocks of their prompts.",
        lambda t: t.suspects,
    ),
)

PROVED: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "prediction_proved_ratio",
        "Fraction of a prompt's new blocks announced by the engine after its prefill.",
        record_itself,
    ),
)

WAITS: Sequence[FamilyRow[DurationHistogram]] = (
    FamilyRow(
        HISTOGRAM,
        "prediction_wait_ratio",
        "Observed divided by estimated wait for the end of a prefill.",
        record_itself,
    ),
)

TRUST: Sequence[FamilyRow[RankAccuracyReport]] = (
    FamilyRow(
        GAUGE,
        "rank_trust",
        "Mean fraction of new prompt blocks announced by the engine, about 32 checks.",
        lambda rank: rank.trust,
    ),
    FamilyRow(
        GAUGE,
        "rank_wait_error",
        "Mean of |observed - estimated wait| / the longer of both, about 32 waits.",
        lambda rank: rank.wait_error,
    ),
)


def prediction_metrics(seen: AccuracyReport) -> Iterator[Metric]:
    yield from make_series(CHECKED, (), {(): seen})
    yield from make_series(PROVED, (), {(): seen.proved})
    yield from make_series(WAITS, (), {(): seen.waits})
    ranks = {(str(r.rank.worker_id), str(r.rank.dp_rank)): r for r in seen.ranks}
    yield from make_series(TRUST, RANK_LABELS, ranks)
