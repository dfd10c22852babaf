"""Metrics of shared limits: size, use and refused shares."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from select_service.metrics.series import GAUGE, FamilyRow


class LimitReport(NamedTuple):
    """Figures of a limit.

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
    FamilyRow(
        "limit_total",
        "Size of a shared limit of the process, in its own unit.",
        lambda r: r.total,
        kind=GAUGE,
    ),
    FamilyRow(
        "limit_used", "Used part of a shared limit now, by all callers together.", lambda r: r.used
    ),
    FamilyRow(
        "limit_used_by_key",
        "Used part of a shared limit now, for the keys that use most of it.",
        lambda r: r.by_key,
        ("key",),
    ),
    FamilyRow(
        "share_refusals_total",
        "Requests refused because a key, or all keys of a tenant, had used their share of a limit.",
        lambda r: r.refusals,
        ("key", "scope"),
    ),
)
