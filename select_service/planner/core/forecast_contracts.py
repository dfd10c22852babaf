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


class ForecastLike(Protocol):
    """Forecast of a window. requests: expected number; demand_requests: number at the quantile."""

    @property
    def requests(self) -> float: ...
    @property
    def isl(self) -> float: ...
    @property
    def osl(self) -> float: ...
    @property
    def kv_hit_rate(self) -> float | None: ...
    @property
    def accept_length(self) -> float: ...
    @property
    def demand_requests(self) -> float: ...
    @property
    def predictor(self) -> str: ...
    @property
    def error(self) -> float | None: ...
    @property
    def proven(self) -> bool:
        """Whether the excess of demand over such forecasts has been measured."""
        ...


class Forecaster(Protocol):
    """Predictor of traffic that receives a point once a throughput interval, or a gap."""

    def add(self, traffic: TrafficWindow) -> None: ...
    def skip(self) -> None: ...
    def predict(self, lead_s: float) -> ForecastLike:
        """Return the forecast for `lead_s` seconds beyond the next window."""
        ...


class ForecastRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of a forecast in the diagnostics."""

    requests: float
    isl: float
    osl: float
    demand_requests: float
    kv_hit_rate: float | None = None
    accept_length: float = 1.0
    predictor: str = ""
    error: float | None = None
