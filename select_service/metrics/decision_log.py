"""What became of the lines of the decision log.  Without a log there are no series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, Family, series_of


@dataclass(slots=True)
class LogCounts:
    """Since the start.

    lines:    written
    missed:   decisions that had ended, or were overwritten, before they were looked at
    dropped:  lines for which the writer had no room
    failures: writes that the file system refused, with all lines of them
    """

    lines: int = 0
    missed: int = 0
    dropped: int = 0
    failures: int = 0


_LOST = "decision_log_lost"
_HELP = "Decisions that are not in the log, by reason."
LOGGED: Sequence[Family[LogCounts]] = (
    Family(COUNTER, "decision_log_lines", "Lines of the decision log.", lambda c: c.lines),
    Family(COUNTER, _LOST, _HELP, lambda c: c.missed, (("reason", "missed"),)),
    Family(COUNTER, _LOST, _HELP, lambda c: c.dropped, (("reason", "dropped"),)),
    Family(
        COUNTER,
        "decision_log_failures",
        "Writes of the decision log that failed.",
        lambda c: c.failures,
    ),
)


def of_decision_log(counts: LogCounts) -> Iterator[Metric]:
    return series_of(LOGGED, (), {(): counts})
