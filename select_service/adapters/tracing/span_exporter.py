"""Span exporter configured by the standard OTEL_* variables, with a bounded queue."""

import os
from collections.abc import Sequence
from importlib.metadata import entry_points

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

from select_service.config.settings_loader import ConfigError
from select_service.metrics.tracing import TracingCounts

EXPORTER, PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
QUEUE, QUEUE_DEFAULT, QUEUE_MAX = "OTEL_BSP_MAX_QUEUE_SIZE", 2048, 65_536
"""Queue sizes in spans, about 3 kB each."""
INSTALL = "the otlp exporter needs: pip install --upgrade 'select-service[otel]'"
OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def make_exporter() -> SpanExporter | None:
    """Return the configured exporter; None means that spans are discarded.  Raises ConfigError."""
    wanted = os.environ.get(EXPORTER, "") or "otlp"
    if wanted == "none":
        return None
    name = _otlp_exporter_name() if wanted == "otlp" else wanted
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ConfigError(f"{EXPORTER}={wanted}: no exporter `{name}` is installed; {INSTALL}")
    try:
        made: SpanExporter = found[0].load()()
    except ImportError as error:
        fault = f"the exporter `{name}` cannot be imported ({error}); {INSTALL}"
        raise ConfigError(f"{EXPORTER}={wanted}: {fault}") from error
    except Exception as error:  # an exporter raises anything for a wrong setting
        raise ConfigError(f"{EXPORTER}={wanted}: {error}") from error
    return made


def _otlp_exporter_name() -> str:
    protocol = os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL) or "http/protobuf"
    if protocol not in OTLP:
        raise ConfigError(f"{PROTOCOL}={protocol}: not one of {', '.join(OTLP)}")
    return OTLP[protocol]


def read_queue_size() -> int:
    """Return the queue size in spans.  Raises ConfigError."""
    given = os.environ.get(QUEUE, "") or str(QUEUE_DEFAULT)
    size = int(given) if given.isdecimal() and len(given) < 10 else 0
    if not 1 <= size <= QUEUE_MAX:
        raise ConfigError(f"{QUEUE}={given}: not a whole number from 1 to {QUEUE_MAX}")
    return size


class CountingExporter(SpanExporter):
    """Exporter wrapper that counts exported and failed spans; runs on the exporting thread."""

    def __init__(self, inner: SpanExporter, counts: TracingCounts) -> None:
        self._inner, self._counts = inner, counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch.  An exception passes to the SDK's thread, which logs it and continues."""
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._counts.exported += len(spans)
            else:
                self._counts.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class BoundedSpanProcessor(SpanProcessor):
    """SDK batch processor with a limit that includes batches being exported.

    The SDK silently drops the oldest span of a full queue; this class drops the newest and counts
    it.
    """

    def __init__(self, into: SpanExporter, counts: TracingCounts) -> None:
        """Create the queue and its thread.  Raises ConfigError."""
        self._counts, counts.waiting_max = counts, read_queue_size()
        try:
            self._batches = BatchSpanProcessor(
                CountingExporter(into, counts), max_queue_size=counts.waiting_max
            )
        except ValueError as error:
            raise ConfigError(f"OTEL_BSP_…: {error}") from None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        # Checked here: the SDK's queue does not count the batch being exported.
        if self._counts.queued_spans >= self._counts.waiting_max:
            self._counts.dropped += 1
            return
        self._counts.ended += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Export queued spans.  Blocks for up to 30 s."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)
