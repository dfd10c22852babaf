"""Metrics of predictions: their accuracy, overall and by rank."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.analysis.accuracy.prediction_checks import (
    AccuracyReport,
    RankAccuracyReport,
)
from select_service.metrics.series import (
    HISTOGRAM,
    RANK_LABELS,
    FamilyRow,
    make_process_series,
    make_series,
)

CHECKED: Sequence[FamilyRow[AccuracyReport]] = (
    FamilyRow(
        "prediction_checks_pending",
        "Bookings whose prediction is being checked now.",
        lambda t: t.pending,
    ),
    FamilyRow(
        "ranks_suspect",
        "Ranks with a trust below 0.5: their engines do not announce the blocks of their prompts.",
        lambda t: t.suspects,
    ),
    FamilyRow(
        "prediction_proved_ratio",
        "Share of a prompt's new blocks that the engine announced after its prefill, 0 to 1, per "
        "check.",
        lambda t: t.proved,
        kind=HISTOGRAM,
    ),
    FamilyRow(
        "prediction_wait_ratio",
        "Observed wait for the end of a prefill divided by the predicted one, per check; 1 is "
        "exact.",
        lambda t: t.waits,
        kind=HISTOGRAM,
    ),
)


TRUST: Sequence[FamilyRow[RankAccuracyReport]] = (
    FamilyRow(
        "rank_trust",
        "Mean share of new prompt blocks that the engine announced, over about 32 checks; 1 is "
        "perfect.",
        lambda rank: rank.trust,
    ),
    FamilyRow(
        "rank_wait_error",
        "Mean of |observed - predicted wait| divided by the longer one, over about 32 checks; 0 "
        "is perfect.",
        lambda rank: rank.wait_error,
    ),
)


def prediction_metrics(seen: AccuracyReport) -> Iterator[Metric]:
    yield from make_process_series(CHECKED, seen)
    ranks = {(str(r.rank.worker_id), str(r.rank.dp_rank)): r for r in seen.ranks}
    yield from make_series(TRUST, RANK_LABELS, ranks)
