"""Metrics of tracing spans; none without --otel."""

from collections.abc import Sequence
from dataclasses import dataclass

from select_service.metrics.series import FamilyRow


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


TRACING: Sequence[FamilyRow[TracingCounts]] = (
    FamilyRow(
        "tracing_spans_total",
        "Spans of selections, by result: exported, dropped (full queue) or failed (collector).",
        lambda c: {"exported": c.exported, "failed": c.failed, "dropped": c.dropped},
        ("result",),
    ),
    FamilyRow("tracing_waiting", "Spans that wait for their export now.", lambda c: c.queued_spans),
    FamilyRow(
        "tracing_waiting_max",
        "Capacity of the queue of spans; further ones are dropped.",
        lambda c: c.waiting_max,
    ),
    FamilyRow(
        "tracing_aside_total",
        "Requests that took the Python path because they are sampled for a span.",
        lambda c: c.aside,
    ),
)
