"""Metrics of the decision log; none without a log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, FamilyRow, make_series


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


_LOST = "decision_log_lost"
_HELP = "Decisions missing in the log, by reason."
LOGGED: Sequence[FamilyRow[DecisionLogCounts]] = (
    FamilyRow(COUNTER, "decision_log_lines", "Lines of the decision log.", lambda c: c.lines),
    FamilyRow(COUNTER, _LOST, _HELP, lambda c: c.missed, (("reason", "missed"),)),
    FamilyRow(COUNTER, _LOST, _HELP, lambda c: c.dropped, (("reason", "dropped"),)),
    FamilyRow(
        COUNTER,
        "decision_log_failures",
        "Failed writes of the decision log.",
        lambda c: c.failures,
    ),
)


def decision_log_metrics(counts: DecisionLogCounts) -> Iterator[Metric]:
    return make_series(LOGGED, (), {(): counts})
