"""How sources of workers are doing.  Without sources there are no series."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, series_of


class SourceReport(NamedTuple):
    """changes, failures: readings that said something new, and that failed
    is_stale: has the last reading failed, so that what was said before counts?
    The others: workers, as in `bodies.discovery.SourceView`.
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
_READ_HELP = "Readings of a source of workers that said something new, or failed."
_WORKERS = "discovery_workers"
_WORKERS_HELP = "Workers of a source, by what is to be said of them."

SOURCES: Sequence[Family[SourceReport]] = (
    Family(COUNTER, _READ, _READ_HELP, lambda r: r.changes, (("result", "ok"),)),
    Family(COUNTER, _READ, _READ_HELP, lambda r: r.failures, (("result", "failed"),)),
    Family(
        GAUGE,
        "discovery_stale",
        "1 while a source of workers cannot be read, so that what it said before counts.",
        lambda r: r.is_stale,
    ),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.desired, (("state", "desired"),)),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.owned, (("state", "owned"),)),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.leaving, (("state", "leaving"),)),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.conflicts, (("state", "conflict"),)),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.refused, (("state", "refused"),)),
    Family(GAUGE, _WORKERS, _WORKERS_HELP, lambda r: r.withheld, (("state", "withheld"),)),
)


def of_discovery(reports: Sequence[SourceReport]) -> Iterator[Metric]:
    yield from series_of(SOURCES, ("source",), {(report.name,): report for report in reports})
