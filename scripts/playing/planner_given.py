"""A performance model whose forward function is given: (base, a, b, c) seconds."""

from collections.abc import Sequence
from math import ceil, floor
from typing import NamedTuple

from select_service.planner.core.contracts import Shape, Slo
from select_service.planner.core.inputs import ForwardPass, Limits, Traffic

CANDIDATES_MAX = 128


class Carried(NamedTuple):
    """What one engine carries."""

    rps: float
    eligible: bool


class GivenModel:
    """f = base + a * prefill tokens + b * KV tokens + c * decode requests; none: never ready."""

    def __init__(self, kind: str, forward: Sequence[float] | None) -> None:
        self._kind = kind
        self._forward = forward
        self._lengths: list[float] = []
        self._contexts: list[float] = []
        self._prefills: list[float] = []
        self.source = None if forward is None else "given"

    @property
    def ready(self) -> bool:
        return self._forward is not None

    def _f(self, prefill: float, kv: float, requests: float) -> float:
        assert self._forward is not None
        base, a, b, c = self._forward
        return max(1e-6, base + a * prefill + b * kv + c * requests)

    def observe(self, passes: Sequence[ForwardPass], now_s: float) -> None:
        """Averages of the last 64."""
        for one in passes:
            if one.prefill_requests:
                self._push(self._lengths, one.prefill_tokens / one.prefill_requests)
            elif self._kind == "prefill":
                self._push(self._lengths, 0.0)
            if one.decode_requests:
                self._push(self._contexts, one.decode_kv_tokens / one.decode_requests)
            self._push(self._prefills, float(one.prefill_tokens))

    @staticmethod
    def _push(window: list[float], value: float) -> None:
        if value or window:
            window.append(value)
            del window[:-64]

    def observe_traffic(self, traffic: Traffic, now_s: float) -> None:
        """Given is given."""

    def _chunks(self, tokens: float, most: int, kv: float, requests: float) -> float:
        full, rest = divmod(tokens, most)
        seconds = full * self._f(most, kv, requests)
        return seconds + (self._f(rest, kv, requests) if rest else 0.0)

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
        if self._kind == "decode" or not limits.max_num_batched_tokens:
            return None
        queued = now.queued_prefill_tokens * queue_scale
        tokens = ceil((queued + _mean(self._lengths)) * (1.0 - hit_rate))
        kv = requests = 0
        if self._kind == "aggregated":
            kv, requests = now.decode_kv_tokens, now.decode_requests
            if queued_decode:
                kv, requests = (
                    kv + now.queued_decode_kv_tokens,
                    requests + now.queued_decode_requests,
                )
            kv, requests = ceil(kv * decode_scale), ceil(requests * decode_scale)
        return self._chunks(max(1, tokens), limits.max_num_batched_tokens, kv, requests)

    def itl_s(
        self, now: ForwardPass, *, decode_scale: float = 1.0, queued_prefill_as_kv: bool = False
    ) -> float | None:
        if self._kind == "prefill":
            return None
        kv = now.decode_kv_tokens + now.queued_decode_kv_tokens
        if queued_prefill_as_kv:
            kv += now.queued_prefill_tokens
        requests = now.decode_requests + now.queued_decode_requests
        prefill = _mean(self._prefills) if self._kind == "aggregated" else 0.0
        return self._f(
            ceil(prefill),
            ceil(kv * decode_scale + _mean(self._contexts)),
            ceil(requests * decode_scale + 1),
        )

    def capacity(self, shape: Shape, limits: Limits, slo: Slo) -> Carried | None:
        """Of prefill or decode alone."""
        isl, osl = ceil(shape.isl), ceil(shape.osl)
        best: Carried | None = None
        for batch in _candidates(self._batches(isl, osl, shape, limits)):
            one = self._at(batch, isl, osl, shape, limits, slo)
            if best is None or (one.eligible, one.rps) > (best.eligible, best.rps):
                best = one
        return best

    def _batches(self, isl: int, osl: int, shape: Shape, limits: Limits) -> int:
        if self._kind == "prefill":
            most = limits.max_num_batched_tokens or 1
            alone = max(1, ceil(isl * (1.0 - shape.hit_rate)))
            return max(1, min(limits.max_num_seqs or 1, most // alone))
        context = isl + floor(osl / 2)
        return min(limits.max_num_seqs or 1, (limits.max_kv_tokens or 0) // context)

    def _at(
        self, batch: int, isl: int, osl: int, shape: Shape, limits: Limits, slo: Slo
    ) -> Carried:
        if self._kind == "prefill":
            alone = max(1, ceil(isl * (1.0 - shape.hit_rate)))
            seconds = self._chunks(batch * alone, limits.max_num_batched_tokens or 1, 0, 0)
            return Carried(batch / seconds, seconds * 1000.0 <= slo.ttft_ms)
        itl = self._f(0, batch * (isl + floor(osl / 2)), batch) / shape.accept_length
        return Carried(batch / (osl * itl), itl * 1000.0 <= slo.itl_ms)

    def prefill_s(self, tokens: float, limits: Limits) -> float | None:
        if self._forward is None:
            return None
        return self._chunks(max(1.0, tokens), limits.max_num_batched_tokens or 8192, 0, 0)

    def decode_s(self, requests: float, kv_tokens: float) -> float | None:
        return None if self._forward is None else self._f(0, kv_tokens, requests)


def _candidates(most: int) -> list[int]:
    if most <= CANDIDATES_MAX:
        return list(range(1, most + 1))
    step = (most - 1) / (CANDIDATES_MAX - 1)
    return sorted({round(1 + at * step) for at in range(CANDIDATES_MAX)})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class LastValue:
    """The constant predictor: what was, will be."""

    def __init__(self) -> None:
        self._isl = self._osl = self._requests = 0.0
        self._hit: float | None = None
        self._accept = 1.0

    def add(self, traffic: Traffic) -> None:
        self._requests = traffic.requests or 0.0
        if self._requests:
            self._isl = traffic.isl if traffic.isl is not None else self._isl
            self._osl = traffic.osl if traffic.osl is not None else self._osl
        self._hit = self._hit if traffic.kv_hit_rate is None else traffic.kv_hit_rate
        if traffic.accept_length is not None:
            self._accept = traffic.accept_length

    def predict(self, lead_s: float) -> "Constant":
        return Constant(
            self._requests, self._isl, self._osl, self._hit, self._accept, self._requests
        )


class Constant(NamedTuple):
    """A forecast."""

    requests: float
    isl: float
    osl: float
    kv_hit_rate: float | None
    accept_length: float
    demand_requests: float
    predictor: str = "constant"
    error: float | None = None
