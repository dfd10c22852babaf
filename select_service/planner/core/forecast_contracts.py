"""Inputs of the proposers: mean request, latency targets, forecasts."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from select_service.planner.core.tick_input import TrafficWindow


class MeanRequest(NamedTuple):
    """Mean request.

    isl, osl:      prompt and answer length, tokens
    hit_rate:      cached part of the prompt, 0 to 1
    accept_length: tokens generated in an iteration
    """

    isl: float
    osl: float
    hit_rate: float = 0.0
    accept_length: float = 1.0


class LatencyTargets(NamedTuple):
    """Latency targets in milliseconds."""

    ttft_ms: float
    itl_ms: float


class ForecastRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of a forecast in the diagnostics.

    requests:        expected number of requests
    demand_requests: number of requests to plan replicas for, at least `requests`
    error:           mean loss of the current predictor over its last points (0.1: about 10 % off)
    """

    requests: float
    isl: float
    osl: float
    demand_requests: float
    kv_hit_rate: float | None = None
    accept_length: float = 1.0
    predictor: str = ""
    error: float | None = None


class ExpectedTraffic(ForecastRecord, frozen=True, kw_only=True):
    """Traffic of the window in which a replica started now takes part.

    proven: whether the excess of demand over forecasts is measured, or not planned for
    """

    proven: bool = True

    def to_record(self) -> ForecastRecord:
        """Return the record of the diagnostics."""
        fields = ForecastRecord.__struct_fields__
        return ForecastRecord(**{field: getattr(self, field) for field in fields})


class Forecaster(Protocol):
    """Predictor of traffic that receives a point once a throughput interval, or a gap."""

    def add(self, traffic: TrafficWindow) -> None: ...
    def skip(self) -> None: ...
    def predict(self, lead_s: float) -> ExpectedTraffic:
        """Return the forecast for `lead_s` seconds beyond the next window."""
        ...
