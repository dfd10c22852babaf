"""Who was refused, and how the file of keys is: without keys there are no series.  And to where
this process did not connect.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, itself, series_of


@dataclass(slots=True)
class AuditCounts:
    """Since the start.

    failures: lines that the file system refused
    summed: requests that are counted in a line for many
    refusals: actions that were refused as their line could not be written
    """

    lines: int = 0
    failures: int = 0
    summed: int = 0
    refusals: int = 0


class AccessReport(NamedTuple):
    """refusals: by route, name of the key and code
    keys: that count;  reloads: readings that changed something;  failures: of a wrong file
    is_stale: is the file wrong now, so that older keys count?
    """

    refusals: Mapping[tuple[str, str, str], int]
    keys: int
    reloads: int
    failures: int
    is_stale: bool


REFUSED: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "access_refusals",
        "Requests that were refused for who sent them; the key is `none` where none is known.",
        itself,
    ),
)
CONNECTIONS: Sequence[Family[int]] = (
    Family(
        COUNTER,
        "connections_refused",
        "Connections of this process that were refused for where they lead, by what they were for.",
        itself,
    ),
)
_READ = "api_keys_readings"
_HELP = "Readings of a changed file of keys, by result."
KEYS: Sequence[Family[AccessReport]] = (
    Family(GAUGE, "api_keys", "Keys that count.", lambda r: r.keys),
    Family(COUNTER, _READ, _HELP, lambda r: r.reloads, (("result", "ok"),)),
    Family(COUNTER, _READ, _HELP, lambda r: r.failures, (("result", "failed"),)),
    Family(
        GAUGE,
        "api_keys_stale",
        "1 while the file of keys is wrong, so that those before go on counting.",
        lambda r: r.is_stale,
    ),
)


AUDITED: Sequence[Family[AuditCounts]] = (
    Family(COUNTER, "audit_log_lines", "Lines of the audit log.", lambda c: c.lines),
    Family(
        COUNTER,
        "audit_log_failures",
        "Lines of the audit log that could not be written.",
        lambda c: c.failures,
    ),
    Family(
        COUNTER,
        "audit_log_summed_requests",
        "Requests that the audit log only counts, in a line for many.",
        lambda c: c.summed,
    ),
    Family(
        COUNTER,
        "audit_log_refusals",
        "Actions refused with --audit-required, as their line could not be written.",
        lambda c: c.refusals,
    ),
)


def of_audit(counts: AuditCounts) -> Iterator[Metric]:
    return series_of(AUDITED, (), {(): counts})


def of_connections(refused: Mapping[str, int]) -> Iterator[Metric]:
    """refused: by purpose, those of which some were"""
    return series_of(CONNECTIONS, ("purpose",), {(each,): n for each, n in refused.items()})


def of_access(report: AccessReport) -> Iterator[Metric]:
    yield from series_of(REFUSED, ("route", "key", "code"), report.refusals)
    yield from series_of(KEYS, (), {(): report})
