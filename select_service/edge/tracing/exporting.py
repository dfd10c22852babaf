"""Where spans go, as the standard variables say, and the bounds of those that wait."""

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

from select_service.metrics.tracing import TracingCounts
from select_service.settings.config import ConfigError

EXPORTER, PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
QUEUE, QUEUE_DEFAULT, QUEUE_MAX = "OTEL_BSP_MAX_QUEUE_SIZE", 2048, 65_536
"""Spans that wait, some 3 kB each."""
INSTALL = "pip install --upgrade 'select-service[otel]' brings that of otlp"
OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def exporter() -> SpanExporter | None:
    """None: spans go nowhere.  Raises ConfigError."""
    wanted = os.environ.get(EXPORTER, "") or "otlp"
    if wanted == "none":
        return None
    name = _otlp() if wanted == "otlp" else wanted
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ConfigError(f"{EXPORTER}={wanted}: no exporter `{name}` is installed; {INSTALL}")
    try:
        made: SpanExporter = found[0].load()()
    except ImportError as error:
        fault = f"the exporter `{name}` cannot be imported ({error}); {INSTALL}"
        raise ConfigError(f"{EXPORTER}={wanted}: {fault}") from error
    except Exception as error:  # whatever an exporter makes of a wrong setting of its own
        raise ConfigError(f"{EXPORTER}={wanted}: {error}") from error
    return made


def _otlp() -> str:
    protocol = os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL) or "http/protobuf"
    if protocol not in OTLP:
        raise ConfigError(f"{PROTOCOL}={protocol}: not one of {', '.join(OTLP)}")
    return OTLP[protocol]


def queue_size() -> int:
    """Raises ConfigError."""
    given = os.environ.get(QUEUE, "") or str(QUEUE_DEFAULT)
    size = int(given) if given.isdecimal() and len(given) < 10 else 0
    if not 1 <= size <= QUEUE_MAX:
        raise ConfigError(f"{QUEUE}={given}: not a whole number from 1 to {QUEUE_MAX}")
    return size


class Counted(SpanExporter):
    """Counts what the exporter behind it says of each batch; on the thread that exports."""

    def __init__(self, inner: SpanExporter, counts: TracingCounts) -> None:
        self._inner, self._counts = inner, counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Raises what the exporter raises; the SDK's thread logs it and goes on."""
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


class Bounded(SpanProcessor):
    """The SDK's queue and its thread, with a bound that counts batches under way and what it drops.

    The SDK drops the oldest span of a full queue in silence; here it is the newest, and counted.
    """

    def __init__(self, into: SpanExporter, counts: TracingCounts) -> None:
        """Raises ConfigError."""
        self._counts, counts.waiting_max = counts, queue_size()
        try:
            self._batches = BatchSpanProcessor(
                Counted(into, counts), max_queue_size=counts.waiting_max
            )
        except ValueError as error:
            raise ConfigError(f"OTEL_BSP_…: {error}") from None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        if self._counts.waiting >= self._counts.waiting_max:
            self._counts.dropped += 1
            return
        self._counts.ended += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Exports what waits.  Blocks, for up to 30 s."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)
