"""Metrics of discovery sources; none without sources."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series


class SourceReport(NamedTuple):
    """Figures of one source.

    changes: reads with a changed result
    failures: failed reads
    is_stale: whether the last read failed and older workers are in use
    The other fields are numbers of workers, as in `bodies.discovery.SourceView`.
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


_READ = "discovery_readings"
_READ_HELP = "Reads of a discovery source that changed something or failed."
_WORKERS = "discovery_workers"
_WORKERS_HELP = "Workers of a discovery source by state."

SOURCES: Sequence[FamilyRow[SourceReport]] = (
    FamilyRow(COUNTER, _READ, _READ_HELP, lambda r: r.changes, (("result", "ok"),)),
    FamilyRow(COUNTER, _READ, _READ_HELP, lambda r: r.failures, (("result", "failed"),)),
    FamilyRow(
        GAUGE,
        "discovery_stale",
        "1 while a discovery source is unreadable and its older workers are in use.",
        lambda r: r.is_stale,
    ),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.desired, (("state", "desired"),)),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.owned, (("state", "owned"),)),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.leaving, (("state", "leaving"),)),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.conflicts, (("state", "conflict"),)),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.refused, (("state", "refused"),)),
    FamilyRow(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.withheld, (("state", "withheld"),)),
)


def discovery_metrics(reports: Sequence[SourceReport]) -> Iterator[Metric]:
    yield from make_series(SOURCES, ("source",), {(report.name,): report for report in reports})
