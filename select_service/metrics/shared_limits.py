"""Metrics of shared limits: their size, their use and refused shares."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series, record_itself


class LimitReport(NamedTuple):
    """Figures of one limit.

    used: use by all callers
    by_key: use by key, for the keys with the highest use
    refusals: refused shares since the start, by key name and scope
    """

    name: str
    total: int
    used: int
    by_key: Mapping[str, int]
    refusals: Mapping[tuple[str, str], int]


LIMITS: Sequence[FamilyRow[LimitReport]] = (
    FamilyRow(GAUGE, "limit_total", "Size of a shared limit.", lambda r: r.total),
    FamilyRow(GAUGE, "limit_used", "Use of a shared limit by all callers.", lambda r: r.used),
)
BY_KEY: Sequence[FamilyRow[int]] = (
    FamilyRow(
        GAUGE,
        "limit_used_by_key",
        "Use of a shared limit by key, for the keys with the highest use.",
        record_itself,
    ),
)
REFUSED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "share_refusals",
        "Requests refused because a key or its tenants had used their share of a limit.",
        record_itself,
    ),
)


def limit_metrics(reports: Sequence[LimitReport]) -> Iterator[Metric]:
    yield from make_series(LIMITS, ("limit",), {(each.name,): each for each in reports})
    by_key = {(each.name, key): n for each in reports for key, n in each.by_key.items()}
    yield from make_series(BY_KEY, ("limit", "key"), by_key)
    refused = {(each.name, *whose): n for each in reports for whose, n in each.refusals.items()}
    yield from make_series(REFUSED, ("limit", "key", "scope"), refused)
