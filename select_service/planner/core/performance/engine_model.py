"""Performance model of a role, with the sources of its samples."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.bucketed_samples import (
    BucketedSamples,
    LoadSample,
    RunningAverage,
)
from select_service.planner.core.performance.engine_capacity import (
    EngineCapacity,
    EngineKind,
    IterationTime,
    LinearIterationTime,
    aggregated_capacity,
    chunked_prefill_s,
    decode_capacity,
    prefill_capacity,
)
from select_service.planner.core.performance.line_fit import FittedLine, fit_line, fit_robust_line
from select_service.planner.core.performance.measured_profile import MeasuredProfile
from select_service.planner.core.performance.request_timings import RequestTimings
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    TrafficWindow,
    usable_hit_rate,
)

FittedSource = Literal["fpm", "profile"]
"""Sources with iterations as samples."""
SampleSource = Literal["fpm", "selector", "profile"]
SOURCES: tuple[SampleSource, ...] = ("fpm", "selector", "profile")
"""Sources in order of preference; the first ready source is used."""
SLOPE_ROUNDING = 1e-12
REQUESTS_SLOPE_MIN = -1e-6
CAPACITIES = {
    "prefill": prefill_capacity,
    "decode": decode_capacity,
    "aggregated": aggregated_capacity,
}


class EngineModel:
    """Model of an engine's iteration time: lines through samples, one for each source.

    All times in seconds; None means unknown.
    """

    def __init__(
        self,
        kind: EngineKind,
        settings: DeploymentSettings,
        given: IterationTime | None = None,
        profile: MeasuredProfile | None = None,
    ) -> None:
        """Create the model.

        given:   known iteration times, so that only averages are learnt
        profile: measured times, used until samples suffice
        """
        self._kind = kind
        self._given_model = given
        self._observations_min = settings.load_min_observations
        self._robust = settings.robust
        axes = 1 if kind == "prefill" else 2
        size, buckets = settings.max_num_fpm_samples, settings.fpm_sample_bucket_size
        self.samples: dict[FittedSource, BucketedSamples] = {
            "fpm": BucketedSamples(axes, size, buckets),
            "profile": BucketedSamples(axes, size, buckets),
        }
        self._timed = RequestTimings(kind, settings)
        self._lines: dict[FittedSource, FittedLine | None] = {}
        self._now_s = 0.0
        self._profile = profile or MeasuredProfile()
        self._add_profile(self._profile)
        self.isl = RunningAverage(size)
        self.context = RunningAverage(size)
        self.prefill_tokens = RunningAverage(size)

    @property
    def is_ready(self) -> bool:
        """Whether the time of an iteration is known."""
        return self.iteration_time is not None

    @property
    def source(self) -> str | None:
        """Source in use; a given model counts as `fpm`."""
        return "fpm" if self._given_model is not None else self._learnt_model[0]

    @property
    def iteration_time(self) -> IterationTime | None:
        """Time model in use; None with too few samples, or if the line falls with the load."""
        return self._learnt_model[1] if self._given_model is None else self._given_model

    @property
    def _learnt_model(self) -> tuple[SampleSource | None, LinearIterationTime | None]:
        """First ready source, with its time model."""
        for source in SOURCES:
            if (learnt := self._learnt_from(source)) is not None:
                return source, learnt
        return None, None

    def fitted_line(self, source: FittedSource) -> FittedLine | None:
        """Return the line of a source, fitted after new samples on demand."""
        if source not in self._lines:
            # The points of a profile are measurements of equal value, however long ago.
            fades = self._robust and source != "profile"
            self._lines[source] = self._fit_samples(list(self.samples[source]), fades)
        return self._lines[source]

    def observe_passes(self, passes: Sequence[ForwardPass], now_s: float) -> None:
        """Add iterations; idle iterations only move averages."""
        self._now_s = now_s
        for one in passes:
            self._update_averages(one)
            # Idle passes have no duration; as samples they would pull the line towards zero.
            if one.wall_s > 0:
                self._add_sample("fpm", self._sample_axes(one), one.wall_s)

    def observe_traffic(self, traffic: TrafficWindow, now_s: float) -> None:
        """Add the prompts and output blocks timed by the selector."""
        self._now_s = now_s
        if traffic.isl is not None and self.source != "fpm":
            self.isl.add_value(traffic.isl)
            self.context.add_value(traffic.isl + (traffic.osl or 0.0) / 2)
        self._timed.observe_traffic(traffic, now_s)

    def ttft_s(
        self,
        now: ForwardPass,
        limits: EngineLimits,
        hit_rate: float,
        *,
        queue_scale: float = 1.0,
        decode_scale: float = 1.0,
        queued_decode: bool = False,
    ) -> float | None:
        """Return the time to first token of a mean request behind the queue."""
        forward, chunk_max = self.iteration_time, limits.max_num_batched_tokens
        if forward is None or self._kind == "decode" or (chunk_max is not None and chunk_max <= 0):
            return None
        waiting = now.queued_prefill_tokens * queue_scale + self.isl.mean_value
        # Queued tokens are reported before the cache is considered.
        tokens = max(1, ceil(waiting * (1 - usable_hit_rate(hit_rate))))
        if self._kind == "prefill":
            return chunked_prefill_s(forward, tokens, chunk_max)
        kv = now.decode_kv_tokens + queued_decode * now.queued_decode_kv_tokens
        requests = now.decode_requests + queued_decode * now.queued_decode_requests
        # Decoding continues beside the prefill, and slows every chunk.
        scaled = (ceil(kv * decode_scale), ceil(requests * decode_scale))
        return chunked_prefill_s(forward, tokens, chunk_max, *scaled)

    def itl_s(
        self, now: ForwardPass, *, decode_scale: float = 1.0, queued_prefill_as_kv: bool = False
    ) -> float | None:
        """Return the time of an iteration with all scheduled and queued requests, and one more."""
        forward = self.iteration_time
        if forward is None or self._kind == "prefill":
            return None
        kv = now.decode_kv_tokens + now.queued_decode_kv_tokens
        requests = now.decode_requests + now.queued_decode_requests
        if queued_prefill_as_kv:
            kv += now.queued_prefill_tokens
            requests += now.queued_prefill_requests
        beside = 0 if self._kind == "decode" else ceil(self.prefill_tokens.mean_value)
        all_kv = ceil(kv * decode_scale + self.context.mean_value)
        return forward.seconds(beside, all_kv, ceil(requests * decode_scale + 1))

    def find_capacity(
        self, shape: MeanRequest, limits: EngineLimits, slo: LatencyTargets
    ) -> EngineCapacity | None:
        """Return the capacity of an engine that is always busy."""
        forward = self.iteration_time
        return None if forward is None else CAPACITIES[self._kind](forward, shape, limits, slo)

    def prefill_s(self, tokens: float, limits: EngineLimits) -> float | None:
        """Return the time of a prompt of so many uncached tokens alone, in chunks."""
        forward = self.iteration_time
        if forward is None or self._kind == "decode":
            return None
        if self._profile.prefill is not None and self.source == "profile":
            return self._profile.prefill.seconds(tokens)
        return chunked_prefill_s(forward, tokens, limits.max_num_batched_tokens or None)

    def decode_s(self, requests: float, kv_tokens: float) -> float | None:
        """Return the time of an iteration that only decodes."""
        forward = self.iteration_time
        if forward is None or self._kind == "prefill":
            return None
        surface = self._profile.decode
        if surface is not None and requests > 0 and self.source == "profile":
            return surface.seconds(kv_tokens / surface.max_kv_tokens, kv_tokens / requests)
        return forward.seconds(0, kv_tokens, requests)

    def mixed_iteration_time(self) -> Callable[[float, float, float], float] | None:
        """Return a function for the time of an iteration of an engine that prefills and decodes.

        The arguments are prefill tokens, decoding requests and their KV tokens. Measurements of
        decoding alone have precedence over the line.
        """
        forward = self.iteration_time
        if forward is None or self._kind != "aggregated":
            return None
        is_profile = self.source == "profile" and self._profile.decode is not None

        def seconds(prefill_tokens: float, requests: float, kv_tokens: float) -> float:
            """Return the time of an iteration."""
            found = forward.seconds(prefill_tokens, kv_tokens, requests)
            if not is_profile:
                return found
            # The profile has measured decoding exactly; the line only adds the prefill's share.
            alone = self.decode_s(requests, kv_tokens) or 0.0
            return alone + found - forward.seconds(0, kv_tokens, requests)

        return seconds

    def _add_profile(self, profile: MeasuredProfile) -> None:
        """Add the points of a profile as samples."""
        if profile.prefill is not None and self._kind != "decode":
            for tokens, seconds in profile.prefill.points:
                x = (tokens,) if self._kind == "prefill" else (tokens, 0.0)
                self._add_sample("profile", x, seconds)
        if profile.decode is not None and self._kind != "prefill":
            for each in profile.decode.to_samples():
                first = each.requests if self._kind == "decode" else 0.0
                self._add_sample("profile", (first, each.kv_tokens), each.seconds)

    def _add_sample(self, source: FittedSource, x: tuple[float, ...], seconds: float) -> None:
        """Add a sample and drop the fitted line."""
        if seconds > 0:
            self.samples[source].add_sample(LoadSample(x, seconds, self._now_s))
            self._lines.pop(source, None)

    def _sample_axes(self, one: ForwardPass) -> tuple[float, ...]:
        """Return the load of an iteration on the axes of the samples."""
        if self._kind == "prefill":
            return (one.prefill_tokens,)
        first = one.decode_requests if self._kind == "decode" else one.prefill_tokens
        return (first, one.decode_kv_tokens)

    def _update_averages(self, one: ForwardPass) -> None:
        """Update the averages."""
        if one.prefill_requests:
            self.isl.add_value(one.prefill_tokens / one.prefill_requests)
        elif self._kind == "prefill":
            self.isl.add_value(0.0)
        if one.decode_requests:
            self.context.add_value(one.decode_kv_tokens / one.decode_requests)
        self.prefill_tokens.add_value(one.prefill_tokens)

    def _fit_samples(self, samples: Sequence[LoadSample], fades: bool) -> FittedLine | None:
        """Fit a line; None with too few samples, or if the line falls with the load."""
        if len(samples) < self._observations_min:
            return None
        line = fit_robust_line(samples, self._now_s) if fades else fit_line(samples)
        slopes = list(line.coefficients)
        # Requests and KV tokens rise together, so the slope of requests may come out slightly
        # negative: the KV tokens then carry the whole cost.
        if self._kind == "decode" and slopes[0] < REQUESTS_SLOPE_MIN:
            slopes[0] = 0.0
        judged = slopes[1:] if self._kind == "decode" else slopes
        if min(judged) < -SLOPE_ROUNDING:
            return None
        return FittedLine(tuple(slopes), line.intercept)

    def _learnt_from(self, source: SampleSource) -> LinearIterationTime | None:
        """Return the time model of a source, or None."""
        if source == "selector":
            return self._timed.iteration_time
        line = self.fitted_line(source)
        return None if line is None else self._to_iteration_time(line)

    def _to_iteration_time(self, line: FittedLine) -> LinearIterationTime:
        """Convert a line to coefficients."""
        slopes = line.coefficients
        if self._kind == "prefill":
            return LinearIterationTime(line.intercept, slopes[0], 0.0, 0.0)
        if self._kind == "decode":
            return LinearIterationTime(line.intercept, 0.0, slopes[1], slopes[0])
        return LinearIterationTime(line.intercept, slopes[0], slopes[1], 0.0)
