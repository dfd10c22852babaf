"""What the proposers ask of forecasts and of performance models."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from select_service.planner.core.inputs import ForwardPass, Limits, Traffic


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


class Carries(Protocol):
    """What one engine carries when it is always busy."""

    @property
    def rps(self) -> float: ...
    @property
    def eligible(self) -> bool:
        """Within the latency targets."""
        ...


class EngineModel(Protocol):
    """What one engine takes for an iteration. Seconds; None: cannot be said (yet)."""

    @property
    def ready(self) -> bool: ...
    @property
    def source(self) -> str | None:
        """Where it learnt: `selector`, `fpm`, `profile`."""
        ...

    def observe(self, passes: Sequence[ForwardPass], now_s: float) -> None:
        """Iterations of this tick, of all ranks."""
        ...

    def observe_traffic(self, traffic: Traffic, now_s: float) -> None:
        """What the selector has measured in a window."""
        ...

    def ttft_s(
        self,
        now: ForwardPass,
        limits: Limits,
        hit_rate: float,
        *,
        queue_scale: float = 1.0,
        decode_scale: float = 1.0,
        queued_decode: bool = False,
    ) -> float | None:
        """Until the first token of a mean request behind the queue."""
        ...

    def itl_s(
        self, now: ForwardPass, *, decode_scale: float = 1.0, queued_prefill_as_kv: bool = False
    ) -> float | None:
        """One iteration with everything scheduled and queued, and one request more."""
        ...

    def capacity(self, shape: Shape, limits: Limits, slo: Slo) -> Carries | None: ...

    def prefill_s(self, tokens: float, limits: Limits) -> float | None:
        """A prompt of so many uncached tokens alone, in chunks."""
        ...

    def decode_s(self, requests: float, kv_tokens: float) -> float | None:
        """One decode iteration."""
        ...


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
