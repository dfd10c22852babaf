"""What became of spans.  Without --otel there are no series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, series_of


@dataclass(slots=True)
class TracingCounts:
    """Since the start.  Each number is written by one thread only.

    aside:    requests that compiled code left to Python, so that they get their span
    ended:    spans that wait to be exported, or have been
    exported, failed: of these, as the exporter said.  failed: they are lost
    dropped:  spans for which there was no room among those that wait
    waiting_max: room for those that wait
    """

    aside: int = 0
    ended: int = 0
    exported: int = 0
    failed: int = 0
    dropped: int = 0
    waiting_max: int = 0

    @property
    def waiting(self) -> int:
        """Spans that are not exported yet, those under way included."""
        return self.ended - self.exported - self.failed


_SPANS = "tracing_spans"
_HELP = "Spans of selections, by what became of them."
TRACING: Sequence[Family[TracingCounts]] = (
    Family(COUNTER, _SPANS, _HELP, lambda c: c.exported, (("result", "exported"),)),
    Family(COUNTER, _SPANS, _HELP, lambda c: c.failed, (("result", "failed"),)),
    Family(COUNTER, _SPANS, _HELP, lambda c: c.dropped, (("result", "dropped"),)),
    Family(GAUGE, "tracing_waiting", "Spans that wait to be exported.", lambda c: c.waiting),
    Family(
        GAUGE,
        "tracing_waiting_max",
        "Room for spans that wait; further ones are dropped.",
        lambda c: c.waiting_max,
    ),
    Family(
        COUNTER,
        "tracing_aside",
        "Requests that compiled code left to Python, so that they get their span.",
        lambda c: c.aside,
    ),
)


def of_tracing(counts: TracingCounts) -> Iterator[Metric]:
    return series_of(TRACING, (), {(): counts})
