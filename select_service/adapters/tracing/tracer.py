"""OpenTelemetry tracer of the process.

OTEL_* variables choose sampler, resource, exporter and limits as usual.  Nothing is registered
globally: other code of the process that uses OpenTelemetry is unaffected.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from select_service.adapters.tracing.selection_span import SelectionSpan
from select_service.adapters.tracing.span_exporter import BoundedSpanProcessor, make_exporter
from select_service.config.settings_loader import ConfigError
from select_service.metrics.tracing import TracingCounts

log = logging.getLogger("select_service.tracing")

FLUSH_S_MAX = 2.0
"""Time limit for exporting queued spans at shutdown, in seconds."""
SAMPLER, SAMPLER_ARG = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
SAMPLERS = ("always_on", "always_off", "traceidratio")
UNNAMED = "unknown_service"
_PARENT, _STATE = b"traceparent", b"tracestate"
_LEAST_ID = 1 << 64
"""Trace id with ratio bits of 0: every non-zero sampling ratio samples this trace."""


class SamplingChances(NamedTuple):
    """Whether the sampler can sample requests with a sampled parent, an unsampled parent, or no
    parent.
    """

    sampled: bool
    unsampled: bool
    rootless: bool


class Tracer:
    """Tracer of a process."""

    def __init__(self, version: str) -> None:
        """Set up the SDK.  Raises ConfigError for invalid OTEL_* variables."""
        _check_sampler()
        self.counts = TracingCounts()
        into = make_exporter()
        self._provider = TracerProvider(resource=_make_resource(version), shutdown_on_exit=False)
        self._span_processor = None if into is None else BoundedSpanProcessor(into, self.counts)
        if self._span_processor is not None:
            self._provider.add_span_processor(self._span_processor)
        self._tracer = self._provider.get_tracer("select_service", version)
        self._propagator = TraceContextTextMapPropagator()
        is_off = (
            self._span_processor is None
            or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        )
        self._is_off = is_off
        self.may_sample = (
            SamplingChances(False, False, False) if is_off else _may_sample(self._provider.sampler)
        )

    def start_span(self, route: str, scope: Mapping[str, Any]) -> SelectionSpan | None:
        """Start the span of a request; None if it is not sampled.

        scope: ASGI scope of the request
        """
        if self._is_off:
            return None
        context = self._propagator.extract(_trace_context(scope["headers"]), Context())
        method = scope["method"]
        span = self._tracer.start_span(
            f"{method} {route}", context, SpanKind.SERVER, _of_request(method, route, scope)
        )
        return SelectionSpan(span) if span.is_recording() else None

    async def shut_down(self) -> None:
        """Export queued spans, for at most FLUSH_S_MAX.

        The export runs on a daemon thread that shutdown does not wait for: an exporter may hang.
        """
        if self._span_processor is None:
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def export() -> None:
            self._provider.shutdown()
            loop.call_soon_threadsafe(over.set)

        # Not the executor: its threads may hang in the exporter and delay the exit.
        threading.Thread(target=export, name="tracing-end", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S_MAX):
                await over.wait()
        except TimeoutError:
            fields = {"spans": self.counts.queued_spans, "seconds": FLUSH_S_MAX}
            log.warning("spans not exported in time", extra={"fields": fields})


def _make_resource(version: str) -> Resource:
    """Return the resource of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, completed with
    defaults.
    """
    given = Resource.create()
    own = {"service.version": version}
    if str(given.attributes.get("service.name", UNNAMED)).startswith(UNNAMED):
        return given.merge(Resource({"service.name": "select-service", **own}))
    return Resource(own).merge(given)


def _trace_context(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the W3C trace context of a request.

    Several `tracestate` headers are joined; several `traceparent` headers are ignored.
    """
    parents = [value for name, value in headers if name == _PARENT]
    # W3C Trace Context: an ambiguous parent is treated like none.
    if len(parents) != 1:
        return {}
    states = b",".join(value for name, value in headers if name == _STATE)
    found = {"traceparent": parents[0].decode("latin-1")}
    return found | ({"tracestate": states.decode("latin-1")} if states else {})


def _of_request(method: str, route: str, scope: Mapping[str, Any]) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "http.request.method": method,
        "http.route": route,
        "url.path": route,
        "url.scheme": scope["scheme"],
    }
    if scope.get("server"):
        found["server.address"], found["server.port"] = scope["server"]
    return found


def _check_sampler() -> None:
    """Raise ConfigError for an invalid sampler, which the SDK would replace with only a log
    line.
    """
    name = os.environ.get(SAMPLER, "") or "always_on"
    kind = name.lower().removeprefix("parentbased_")
    if kind not in SAMPLERS:
        known = ", ".join((*SAMPLERS, *(f"parentbased_{each}" for each in SAMPLERS)))
        raise ConfigError(f"{SAMPLER}={name}: not one of {known}")
    given = os.environ.get(SAMPLER_ARG, "")
    if kind == "traceidratio" and given:
        try:
            is_ratio = 0.0 <= float(given) <= 1.0
        except ValueError:
            is_ratio = False
        if not is_ratio:
            raise ConfigError(f"{SAMPLER_ARG}={given}: not a number from 0 to 1")


def _may_sample(sampler: Sampler) -> SamplingChances:
    def may(context: Context) -> bool:
        judged = sampler.should_sample(context, _LEAST_ID, "", SpanKind.SERVER)
        return judged.decision is Decision.RECORD_AND_SAMPLE

    def below(flags: int) -> Context:
        parent = SpanContext(_LEAST_ID, 1, is_remote=True, trace_flags=TraceFlags(flags))
        return set_span_in_context(NonRecordingSpan(parent), Context())

    return SamplingChances(may(below(1)), may(below(0)), may(Context()))
