"""Begins the spans of a process, and ends with them.

The SDK does what it does everywhere: OTEL_* variables choose sampler, resource, exporter and
bounds.  Nothing here is global: other code of the process that uses OpenTelemetry is not touched.
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

from select_service.edge.tracing.exporting import Bounded, exporter
from select_service.edge.tracing.spans import SelectionSpan
from select_service.metrics.tracing import TracingCounts
from select_service.settings.config import ConfigError

log = logging.getLogger("select_service.tracing")

FLUSH_S_MAX = 2.0
"""What waits at the end of the process has so long to be exported."""
SAMPLER, SAMPLER_ARG = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
SAMPLERS = ("always_on", "always_off", "traceidratio")
UNNAMED = "unknown_service"
_PARENT, _STATE = b"traceparent", b"tracestate"
_LEAST_ID = 1 << 64
"""A trace id whose judged bits are 0: who samples any part of all traces samples this one."""


class MaySample(NamedTuple):
    """Could the sampler take a request whose caller samples it, or does not, or that has none?"""

    sampled: bool
    unsampled: bool
    rootless: bool


class Tracing:
    """One per process."""

    def __init__(self, version: str) -> None:
        """Raises ConfigError, for OTEL_* variables that make no sense."""
        _check_sampler()
        self.counts = TracingCounts()
        into = exporter()
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._bounded = None if into is None else Bounded(into, self.counts)
        if self._bounded is not None:
            self._provider.add_span_processor(self._bounded)
        self._tracer = self._provider.get_tracer("select_service", version)
        self._propagator = TraceContextTextMapPropagator()
        is_off = self._bounded is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        self._is_off = is_off
        self.may_sample = (
            MaySample(False, False, False) if is_off else _may_sample(self._provider.sampler)
        )

    def begin(self, route: str, scope: Mapping[str, Any]) -> SelectionSpan | None:
        """None: nobody wants it.  scope: the ASGI scope of the request"""
        if self._is_off:
            return None
        context = self._propagator.extract(_carrier(scope["headers"]), Context())
        method = scope["method"]
        span = self._tracer.start_span(
            f"{method} {route}", context, SpanKind.SERVER, _of_request(method, route, scope)
        )
        return SelectionSpan(span) if span.is_recording() else None

    async def end(self) -> None:
        """Export what waits, for FLUSH_S_MAX at most.

        On a thread of its own, which the process does not wait for: an exporter may hang.
        """
        if self._bounded is None:
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def export() -> None:
            self._provider.shutdown()
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=export, name="tracing-end", daemon=True).start()
        try:
            await asyncio.wait_for(over.wait(), FLUSH_S_MAX)
        except TimeoutError:
            fields = {"spans": self.counts.waiting, "seconds": FLUSH_S_MAX}
            log.warning("spans were not exported in time", extra={"fields": fields})


def _resource(version: str) -> Resource:
    """As OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say; what they leave out is our own."""
    given = Resource.create()
    own = {"service.version": version}
    if str(given.attributes.get("service.name", UNNAMED)).startswith(UNNAMED):
        return given.merge(Resource({"service.name": "select-service", **own}))
    return Resource(own).merge(given)


def _carrier(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Of W3C Trace Context: several `tracestate` are one list, of several parents none counts."""
    parents = [value for name, value in headers if name == _PARENT]
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
    """The SDK would take another one, with a line in the log.  Raises ConfigError."""
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


def _may_sample(sampler: Sampler) -> MaySample:
    def may(context: Context) -> bool:
        judged = sampler.should_sample(context, _LEAST_ID, "", SpanKind.SERVER)
        return judged.decision is Decision.RECORD_AND_SAMPLE

    def below(flags: int) -> Context:
        parent = SpanContext(_LEAST_ID, 1, is_remote=True, trace_flags=TraceFlags(flags))
        return set_span_in_context(NonRecordingSpan(parent), Context())

    return MaySample(may(below(1)), may(below(0)), may(Context()))
