"""Metrics of access control, API keys, refused outgoing connections and the audit log.

Without keys there are no key series.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series, record_itself


@dataclass(slots=True)
class AuditCounts:
    """Counters of the audit log since the start.

    failures: lines that could not be written
    summed: requests counted in a summary line
    refusals: actions refused because their line could not be written
    """

    lines: int = 0
    failures: int = 0
    summed: int = 0
    refusals: int = 0


class AccessReport(NamedTuple):
    """Figures of access control.

    refusals: refused requests by route, key name and code
    keys: number of valid keys
    reloads: reads that changed something
    failures: failed reads
    is_stale: whether the current file is invalid and older keys are in use
    """

    refusals: Mapping[tuple[str, str, str], int]
    keys: int
    reloads: int
    failures: int
    is_stale: bool


REFUSED: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "access_refusals",
        "Requests refused by access control; the key is `none` if unknown.",
        record_itself,
    ),
)
CONNECTIONS: Sequence[FamilyRow[int]] = (
    FamilyRow(
        COUNTER,
        "connections_refused",
        "Outgoing connections refused by the egress policy, by purpose.",
        record_itself,
    ),
)
_READ = "api_keys_readings"
_HELP = "Reloads of the API key file, by result."
KEYS: Sequence[FamilyRow[AccessReport]] = (
    FamilyRow(GAUGE, "api_keys", "Valid API keys.", lambda r: r.keys),
    FamilyRow(COUNTER, _READ, _HELP, lambda r: r.reloads, (("result", "ok"),)),
    FamilyRow(COUNTER, _READ, _HELP, lambda r: r.failures, (("result", "failed"),)),
    FamilyRow(
        GAUGE,
        "api_keys_stale",
        "1 while the API key file is invalid and older keys are in use.",
        lambda r: r.is_stale,
    ),
)


AUDITED: Sequence[FamilyRow[AuditCounts]] = (
    FamilyRow(COUNTER, "audit_log_lines", "Lines of the audit log.", lambda c: c.lines),
    FamilyRow(
        COUNTER,
        "audit_log_failures",
        "Failed lines of the audit log.",
        lambda c: c.failures,
    ),
    FamilyRow(
        COUNTER,
        "audit_log_summed_requests",
        "Requests counted in summary lines of the audit log.",
        lambda c: c.summed,
    ),
    FamilyRow(
        COUNTER,
        "audit_log_refusals",
        "Actions refused with --audit-required because of a failed audit line.",
        lambda c: c.refusals,
    ),
)


def audit_metrics(counts: AuditCounts) -> Iterator[Metric]:
    return make_series(AUDITED, (), {(): counts})


def connection_metrics(refused: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the series of refused outgoing connections, by purpose."""
    return make_series(CONNECTIONS, ("purpose",), {(each,): n for each, n in refused.items()})


def access_metrics(report: AccessReport) -> Iterator[Metric]:
    yield from make_series(REFUSED, ("route", "key", "code"), report.refusals)
    yield from make_series(KEYS, (), {(): report})
