"""The performance model of one role: what it has learnt from whom, and what proposers ask of it."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from select_service.planner.core.contracts import Shape, Slo
from select_service.planner.core.inputs import ForwardPass, Limits, Traffic, hit_rate_used
from select_service.planner.core.perf.capacity import (
    Capacity,
    Forward,
    Given,
    Kind,
    aggregated_capacity,
    chunked_s,
    decode_capacity,
    prefill_capacity,
)
from select_service.planner.core.perf.linear import Line, fit, fit_robust
from select_service.planner.core.perf.profile import Profile
from select_service.planner.core.perf.samples import Average, Sample, Samples
from select_service.planner.core.perf.timed import Timed
from select_service.planner.core.settings import Settings

Fitted = Literal["fpm", "profile"]
"""Sources whose samples are iterations."""
Source = Literal["fpm", "selector", "profile"]
SOURCES: tuple[Source, ...] = ("fpm", "selector", "profile")
"""The first that is ready is used."""
SLOPE_ROUNDING = 1e-12
REQUESTS_SLOPE_MIN = -1e-6
CAPACITIES = {
    "prefill": prefill_capacity,
    "decode": decode_capacity,
    "aggregated": aggregated_capacity,
}


class EngineModel:
    """What one engine takes for an iteration: lines through samples, one for each source.

    Seconds; None: cannot be said (yet).
    """

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        given: Forward | None = None,
        profile: Profile | None = None,
    ) -> None:
        """given: iterations are known already, only averages are learnt.

        profile: counts until something has been learnt.
        """
        self._kind = kind
        self._known = given
        self._observations_min = settings.load_min_observations
        self._robust = settings.robust
        axes = 1 if kind == "prefill" else 2
        size, buckets = settings.max_num_fpm_samples, settings.fpm_sample_bucket_size
        self._samples: dict[Fitted, Samples] = {
            "fpm": Samples(axes, size, buckets),
            "profile": Samples(axes, size, buckets),
        }
        self._timed = Timed(kind, settings)
        self._lines: dict[Fitted, Line | None] = {}
        self._now_s = 0.0
        self._profile = profile or Profile()
        self._begin_with(self._profile)
        self.isl = Average(size)
        self.context = Average(size)
        self.prefill_tokens = Average(size)

    @property
    def ready(self) -> bool:
        """Whether an iteration can be told."""
        return self.forward is not None

    @property
    def source(self) -> str | None:
        """Of what is used; what is given counts as `fpm`."""
        if self._known is not None:
            return "fpm"
        return next((each for each in SOURCES if self._learnt(each) is not None), None)

    @property
    def forward(self) -> Forward | None:
        """None: not enough samples, or a line that falls with the load."""
        if self._known is not None:
            return self._known
        for source in SOURCES:
            learnt = self._learnt(source)
            if learnt is not None:
                return learnt
        return None

    def line(self, source: Fitted) -> Line | None:
        """Fitted when asked after new samples."""
        if source not in self._lines:
            fades = self._robust and source != "profile"
            self._lines[source] = self._fit(list(self._samples[source]), fades)
        return self._lines[source]

    def samples(self, source: Fitted) -> int:
        """How many are kept."""
        return len(self._samples[source])

    def largest(self, source: Fitted) -> tuple[float, ...]:
        """The largest load of each axis that was ever seen."""
        return self._samples[source].high

    def observe(self, passes: Sequence[ForwardPass], now_s: float) -> None:
        """Idle iterations move averages only."""
        self._now_s = now_s
        for one in passes:
            self._average(one)
            if one.wall_s > 0:
                self._add("fpm", self._x(one), one.wall_s)

    def observe_traffic(self, traffic: Traffic, now_s: float) -> None:
        """Prompts and output blocks that the selector has timed."""
        self._now_s = now_s
        if traffic.isl is not None and self.source != "fpm":
            self.isl.add(traffic.isl)
            self.context.add(traffic.isl + (traffic.osl or 0.0) / 2)
        self._timed.observe(traffic, now_s)

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
        forward, chunk_max = self.forward, limits.max_num_batched_tokens
        if forward is None or self._kind == "decode" or (chunk_max is not None and chunk_max <= 0):
            return None
        waiting = now.queued_prefill_tokens * queue_scale + self.isl.value
        tokens = max(1, ceil(waiting * (1 - hit_rate_used(hit_rate))))
        if self._kind == "prefill":
            return chunked_s(forward, tokens, chunk_max)
        kv = now.decode_kv_tokens + queued_decode * now.queued_decode_kv_tokens
        requests = now.decode_requests + queued_decode * now.queued_decode_requests
        scaled = (ceil(kv * decode_scale), ceil(requests * decode_scale))
        return chunked_s(forward, tokens, chunk_max, *scaled)

    def itl_s(
        self, now: ForwardPass, *, decode_scale: float = 1.0, queued_prefill_as_kv: bool = False
    ) -> float | None:
        """One iteration with everything scheduled and queued, and one request more."""
        forward = self.forward
        if forward is None or self._kind == "prefill":
            return None
        kv = now.decode_kv_tokens + now.queued_decode_kv_tokens
        requests = now.decode_requests + now.queued_decode_requests
        if queued_prefill_as_kv:
            kv += now.queued_prefill_tokens
            requests += now.queued_prefill_requests
        beside = 0 if self._kind == "decode" else ceil(self.prefill_tokens.value)
        all_kv = ceil(kv * decode_scale + self.context.value)
        return forward.seconds(beside, all_kv, ceil(requests * decode_scale + 1))

    def capacity(self, shape: Shape, limits: Limits, slo: Slo) -> Capacity | None:
        """What one engine carries that is always busy."""
        forward = self.forward
        return None if forward is None else CAPACITIES[self._kind](forward, shape, limits, slo)

    def prefill_s(self, tokens: float, limits: Limits) -> float | None:
        """A prompt of so many uncached tokens alone, in chunks."""
        forward = self.forward
        if forward is None or self._kind == "decode":
            return None
        if self._profile.prefill is not None and self.source == "profile":
            return self._profile.prefill.seconds(tokens)
        return chunked_s(forward, tokens, limits.max_num_batched_tokens or None)

    def decode_s(self, requests: float, kv_tokens: float) -> float | None:
        """One iteration that only decodes."""
        forward = self.forward
        if forward is None or self._kind == "prefill":
            return None
        surface = self._profile.decode
        if surface is not None and requests > 0 and self.source == "profile":
            return surface.seconds(kv_tokens / surface.max_kv_tokens, kv_tokens / requests)
        return forward.seconds(0, kv_tokens, requests)

    def mixed(self) -> Callable[[float, float, float], float] | None:
        """Seconds of an iteration of an engine that does both, by prefill tokens, requests that
        decode and their KV tokens. What was measured of decoding alone counts before the line."""
        forward = self.forward
        if forward is None or self._kind != "aggregated":
            return None
        is_profile = self.source == "profile" and self._profile.decode is not None

        def seconds(prefill_tokens: float, requests: float, kv_tokens: float) -> float:
            found = forward.seconds(prefill_tokens, kv_tokens, requests)
            if not is_profile:
                return found
            alone = self.decode_s(requests, kv_tokens) or 0.0
            return alone + found - forward.seconds(0, kv_tokens, requests)

        return seconds

    def _begin_with(self, profile: Profile) -> None:
        """Its points as if they had been seen."""
        if profile.prefill is not None and self._kind != "decode":
            for tokens, seconds in profile.prefill.points:
                x = (tokens,) if self._kind == "prefill" else (tokens, 0.0)
                self._add("profile", x, seconds)
        if profile.decode is not None and self._kind != "prefill":
            for each in profile.decode.samples():
                first = each.requests if self._kind == "decode" else 0.0
                self._add("profile", (first, each.kv_tokens), each.seconds)

    def _add(self, source: Fitted, x: tuple[float, ...], seconds: float) -> None:
        if seconds > 0:
            self._samples[source].add(Sample(x, seconds, self._now_s))
            self._lines.pop(source, None)

    def _x(self, one: ForwardPass) -> tuple[float, ...]:
        if self._kind == "prefill":
            return (one.prefill_tokens,)
        first = one.decode_requests if self._kind == "decode" else one.prefill_tokens
        return (first, one.decode_kv_tokens)

    def _average(self, one: ForwardPass) -> None:
        if one.prefill_requests:
            self.isl.add(one.prefill_tokens / one.prefill_requests)
        elif self._kind == "prefill":
            self.isl.add(0.0)
        if one.decode_requests:
            self.context.add(one.decode_kv_tokens / one.decode_requests)
        self.prefill_tokens.add(one.prefill_tokens)

    def _fit(self, samples: Sequence[Sample], fades: bool) -> Line | None:
        if len(samples) < self._observations_min:
            return None
        line = fit_robust(samples, self._now_s) if fades else fit(samples)
        slopes = list(line.coefficients)
        if self._kind == "decode" and slopes[0] < REQUESTS_SLOPE_MIN:
            slopes[0] = 0.0
        judged = slopes[1:] if self._kind == "decode" else slopes
        if min(judged) < -SLOPE_ROUNDING:
            return None
        return Line(tuple(slopes), line.intercept)

    def _learnt(self, source: Source) -> Given | None:
        if source == "selector":
            return self._timed.forward
        line = self.line(source)
        return None if line is None else self._given(line)

    def _given(self, line: Line) -> Given:
        slopes = line.coefficients
        if self._kind == "prefill":
            return Given(line.intercept, slopes[0], 0.0, 0.0)
        if self._kind == "decode":
            return Given(line.intercept, 0.0, slopes[1], slopes[0])
        return Given(line.intercept, slopes[0], slopes[1], 0.0)
