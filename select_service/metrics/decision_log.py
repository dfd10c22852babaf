"""Metrics of the decision log; none without a log."""

from collections.abc import Sequence
from dataclasses import dataclass

from select_service.metrics.series import FamilyRow


@dataclass(slots=True)
class DecisionLogCounts:
    """Counters of the decision log since the start.

    lines: lines written
    missed: decisions that ended or were overwritten before they were logged
    dropped: lines dropped because the queue was full
    failures: failed writes, with all their lines
    """

    lines: int = 0
    missed: int = 0
    dropped: int = 0
    failures: int = 0


LOGGED: Sequence[FamilyRow[DecisionLogCounts]] = (
    FamilyRow(
        "decision_log_lines_total",
        "Lines written to the decision log since the start.",
        lambda c: c.lines,
    ),
    FamilyRow(
        "decision_log_lost_total",
        "Decisions missing in the log; dropped: the queue to the file was full, missed: "
        "overwritten before they were read.",
        lambda c: {"missed": c.missed, "dropped": c.dropped},
        ("reason",),
    ),
    FamilyRow(
        "decision_log_failures_total",
        "Failed writes to the file of the decision log.",
        lambda c: c.failures,
    ),
)
