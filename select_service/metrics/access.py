"""Metrics of access control, API keys, refused outgoing connections and the audit log.

Without keys there are no key series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from select_service.metrics.series import FamilyRow


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


KEYS: Sequence[FamilyRow[AccessReport]] = (
    FamilyRow("api_keys", "API keys in force.", lambda r: r.keys),
    FamilyRow(
        "api_keys_readings_total",
        "Readings of a changed API key file, by result; with `failed` the earlier keys stay in "
        "force.",
        lambda r: {"ok": r.reloads, "failed": r.failures},
        ("result",),
    ),
    FamilyRow(
        "api_keys_stale",
        "1 while the API key file is invalid and older keys are in use.",
        lambda r: r.is_stale,
    ),
    FamilyRow(
        "access_refusals_total",
        "Requests refused for their key, role, tenant or quota, by name of the key (`none`: no "
        "valid key).",
        lambda r: r.refusals,
        ("route", "key", "code"),
    ),
)


AUDITED: Sequence[FamilyRow[AuditCounts]] = (
    FamilyRow(
        "audit_log_lines_total",
        "Lines written to the audit log since the start.",
        lambda c: c.lines,
    ),
    FamilyRow(
        "audit_log_failures_total",
        "Audit lines that could not be written; the actions took place unless "
        "--audit-required is set.",
        lambda c: c.failures,
    ),
    FamilyRow(
        "audit_log_summed_requests_total",
        "Requests without an audit line of their own, counted in the summary line of a minute.",
        lambda c: c.summed,
    ),
    FamilyRow(
        "audit_log_refusals_total",
        "Operator actions refused with --audit-required because their audit line could not be "
        "written.",
        lambda c: c.refusals,
    ),
)
