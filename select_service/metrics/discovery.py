"""Metrics of discovery sources; none without sources."""

from collections.abc import Sequence
from typing import NamedTuple

from select_service.metrics.series import FamilyRow


class SourceReport(NamedTuple):
    """Figures of a source.

    changes: reads with a changed result
    failures: failed reads
    is_stale: whether the last read failed and older workers are in use
    The other fields are numbers of workers, as in `SourceView`.
    """

    name: str
    changes: int
    failures: int
    is_stale: bool
    desired: int
    owned: int
    leaving: int
    conflicts: int
    refused: int
    withheld: int


SOURCES: Sequence[FamilyRow[SourceReport]] = (
    FamilyRow(
        "discovery_readings_total",
        "Readings of a discovery source that changed its workers or failed, by result.",
        lambda r: {"ok": r.changes, "failed": r.failures},
        ("result",),
    ),
    FamilyRow(
        "discovery_stale",
        "1 while a discovery source is unreadable and its older workers are in use.",
        lambda r: r.is_stale,
    ),
    FamilyRow(
        "discovery_workers",
        "Workers of a discovery source now, by state of their registration.",
        lambda r: {
            "desired": r.desired,
            "owned": r.owned,
            "leaving": r.leaving,
            "conflict": r.conflicts,
            "refused": r.refused,
            "withheld": r.withheld,
        },
        ("state",),
    ),
)
