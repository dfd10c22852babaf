"""What became of predictions: how true they were, and of which rank they were not."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from select_service.core.histogram import Histogram
from select_service.core.trust.checks import RankTrustReport, TrustReport
from select_service.metrics.series import (
    GAUGE,
    HISTOGRAM,
    RANK_LABELS,
    Family,
    itself,
    series_of,
)

CHECKED: Sequence[Family[TrustReport]] = (
    Family(GAUGE, "prediction_checks_pending", "Bookings followed now.", lambda t: t.pending),
    Family(
        GAUGE,
        "ranks_suspect",
        "Ranks whose engines do not announce the blocks of their prompts.",
        lambda t: t.suspects,
    ),
)

PROVED: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "prediction_proved_ratio",
        "Share of the new blocks of a prompt that the engine had announced after its prefill.",
        itself,
    ),
)

WAITS: Sequence[Family[Histogram]] = (
    Family(
        HISTOGRAM,
        "prediction_wait_ratio",
        "Observed wait for the end of a prefill over the believed one.",
        itself,
    ),
)

TRUST: Sequence[Family[RankTrustReport]] = (
    Family(
        GAUGE,
        "rank_trust",
        "Mean share of the new blocks of prompts that the engine announced; about 32 checks.",
        lambda rank: rank.trust,
    ),
    Family(
        GAUGE,
        "rank_wait_error",
        "Mean of |observed - believed wait| / the longer of them; about 32 waits.",
        lambda rank: rank.wait_error,
    ),
)


def of_trust(seen: TrustReport) -> Iterator[Metric]:
    yield from series_of(CHECKED, (), {(): seen})
    yield from series_of(PROVED, (), {(): seen.proved})
    yield from series_of(WAITS, (), {(): seen.waits})
    ranks = {(str(r.rank.worker_id), str(r.rank.dp_rank)): r for r in seen.ranks}
    yield from series_of(TRUST, RANK_LABELS, ranks)
