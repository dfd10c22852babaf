"""What the proposers ask for, and what they are told of forecasts."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from select_service.planner.core.inputs import Traffic


class Shape(NamedTuple):
    """A mean request. hit_rate: cached part of the prompt; accept_length: tokens an iteration"""

    isl: float
    osl: float
    hit_rate: float = 0.0
    accept_length: float = 1.0


class Slo(NamedTuple):
    """Latency targets in milliseconds."""

    ttft_ms: float
    itl_ms: float


class Forecast(Protocol):
    """The next window. requests: expected; demand_requests: with the quantile."""

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
        """How far demand goes beyond such forecasts is known."""
        ...


class Forecaster(Protocol):
    """A point once a throughput interval, or none where the window is unknown."""

    def add(self, traffic: Traffic) -> None: ...
    def skip(self) -> None: ...
    def predict(self, lead_s: float) -> Forecast:
        """lead_s: beyond the next window"""
        ...


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A forecast as diagnostics keep it."""

    requests: float
    isl: float
    osl: float
    demand_requests: float
    kv_hit_rate: float | None = None
    accept_length: float = 1.0
    predictor: str = ""
    error: float | None = None
