"""Metrics of tracing spans; none without --otel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series


@dataclass(slots=True)
class TracingCounts:
    """Counters of spans since the start.  Each number is written by one thread only.

    aside: requests that the fast path left to Python for their span
    ended: spans queued or exported
    exported, failed: results of the exporter; failed spans are lost
    dropped: spans dropped because the queue was full
    waiting_max: capacity of the queue
    """

    aside: int = 0
    ended: int = 0
    exported: int = 0
    failed: int = 0
    dropped: int = 0
    waiting_max: int = 0

    @property
    def queued_spans(self) -> int:
        """Number of spans not exported yet, including those being exported."""
        return self.ended - self.exported - self.failed


_SPANS = "tracing_spans"
_HELP = "Selection spans by result."
TRACING: Sequence[FamilyRow[TracingCounts]] = (
    FamilyRow(COUNTER, _SPANS, _HELP, lambda c: c.exported, (("result", "exported"),)),
    FamilyRow(COUNTER, _SPANS, _HELP, lambda c: c.failed, (("result", "failed"),)),
    FamilyRow(COUNTER, _SPANS, _HELP, lambda c: c.dropped, (("result", "dropped"),)),
    FamilyRow(GAUGE, "tracing_waiting", "Queued spans.", lambda c: c.queued_spans),
    FamilyRow(
        GAUGE,
        "tracing_waiting_max",
        "Capacity of the span queue; further spans are dropped.",
        lambda c: c.waiting_max,
    ),
    FamilyRow(
        COUNTER,
        "tracing_aside",
        "Requests that the fast path left to Python for their span.",
        lambda c: c.aside,
    ),
)


def tracing_metrics(counts: TracingCounts) -> Iterator[Metric]:
    return make_series(TRACING, (), {(): counts})
