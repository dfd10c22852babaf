"""What one engine can do, given the seconds of its iterations: latencies and the best batch.

All of it asks a `Forward`, whatever that is: a fitted line, a profile, given coefficients.
"""

from collections.abc import Iterator
from math import ceil, floor
from typing import Literal, NamedTuple, Protocol

from select_service.planner.core.contracts import Shape, Slo
from select_service.planner.core.inputs import (
    Limits,
    hit_rate_used,
)

Kind = Literal["prefill", "decode", "aggregated"]
"""What an engine does."""
CANDIDATES_MAX = 128
BATCH_MAX = 4096
"""Where neither sequences nor KV tokens of the engine are known."""


class Forward(Protocol):
    """The time of one iteration."""

    def seconds(self, prefill_tokens: float, kv_tokens: float, requests: float) -> float:
        """prefill_tokens: computed in it;  kv_tokens, requests: of its decoding"""


class Given(NamedTuple):
    """A line with known coefficients, in seconds."""

    base: float
    per_prefill_token: float
    per_kv_token: float
    per_request: float

    def seconds(self, prefill_tokens: float, kv_tokens: float, requests: float) -> float:
        """Never below a microsecond."""
        found = self.base + self.per_prefill_token * prefill_tokens
        return max(1e-6, found + self.per_kv_token * kv_tokens + self.per_request * requests)


class Capacity(NamedTuple):
    """eligible: the batch keeps what was promised; otherwise it is the best that does not"""

    rps: float
    batch: int
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    eligible: bool


def prompt(shape: Shape) -> int:
    """Tokens of a prompt."""
    return max(1, ceil(shape.isl))


def output(shape: Shape) -> int:
    """Tokens of an answer."""
    return max(1, ceil(shape.osl))


def computed(shape: Shape) -> int:
    """Tokens of a prompt that are not cached."""
    return max(1, ceil(prompt(shape) * (1 - hit_rate_used(shape.hit_rate))))


def context(shape: Shape) -> int:
    """KV tokens of a request, half way through its answer."""
    return prompt(shape) + output(shape) // 2


def accepted(shape: Shape) -> float:
    """At least one token an iteration."""
    return max(1.0, shape.accept_length)


def chunked_s(
    forward: Forward, tokens: float, chunk_max: int | None, kv: float = 0, requests: float = 0
) -> float:
    """A prompt in full chunks and a rest, each an iteration with the same decoding beside it."""
    if chunk_max is None or tokens <= chunk_max:
        return forward.seconds(tokens, kv, requests)
    full, rest = divmod(tokens, chunk_max)
    found = full * forward.seconds(chunk_max, kv, requests)
    return found + (forward.seconds(rest, kv, requests) if rest else 0.0)


def prefill_capacity(forward: Forward, shape: Shape, limits: Limits, slo: Slo) -> Capacity | None:
    """Prompts together in one iteration; one alone where it is longer than an iteration."""
    if shape.isl <= 0:
        return None
    batch_max = _sequences_max(limits)
    chunk_max = limits.max_num_batched_tokens
    if chunk_max is not None:
        if chunk_max <= 0:
            return None
        batch_max = max(1, min(batch_max, chunk_max // computed(shape)))
    best: Capacity | None = None
    for batch in candidates(batch_max):
        seconds = chunked_s(forward, batch * computed(shape), chunk_max)
        ms = seconds * 1e3
        found = Capacity(batch / seconds, batch, ms, None, ms, _within(ms, slo.ttft_ms))
        best = better(best, found)
    return best


def decode_capacity(forward: Forward, shape: Shape, limits: Limits, slo: Slo) -> Capacity | None:
    """Requests that decode together."""
    if shape.isl <= 0 or shape.osl <= 0:
        return None
    best: Capacity | None = None
    for batch in candidates(decode_batch_max(shape, limits)):
        itl_s = forward.seconds(0, batch * context(shape), batch) / accepted(shape)
        rps = batch / (output(shape) * itl_s)
        found = Capacity(rps, batch, None, itl_s * 1e3, None, _within(itl_s * 1e3, slo.itl_ms))
        best = better(best, found)
    return best


def aggregated_capacity(
    forward: Forward, shape: Shape, limits: Limits, slo: Slo
) -> Capacity | None:
    """Requests that decode together, with the prefill of those that replace them beside."""
    chunk_max = limits.max_num_batched_tokens
    if chunk_max is None or shape.isl <= 0 or shape.osl <= 0:
        return None
    bound = min(decode_batch_max(shape, limits), chunk_max - 1)
    # the prefill of an iteration grows with the batch: those that fit come first
    low, high = 0, max(0, bound)
    while low < high:
        middle = (low + high + 1) // 2
        if replaced_tokens(shape, middle) <= chunk_max - middle:
            low = middle
        else:
            high = middle - 1
    best: Capacity | None = None
    for batch in candidates(low):
        best = better(best, _aggregated(forward, shape, chunk_max, slo, batch))
    return best


def replaced_tokens(shape: Shape, batch: int) -> int:
    """Prefill tokens of an iteration in which as many requests start as end."""
    return ceil(batch * accepted(shape) * computed(shape) / output(shape))


def _aggregated(forward: Forward, shape: Shape, chunk_max: int, slo: Slo, batch: int) -> Capacity:
    beside = replaced_tokens(shape, batch)
    kv = batch * context(shape)
    itl_s = forward.seconds(beside, kv, batch) / accepted(shape)
    ttft_s = chunked_s(forward, beside + computed(shape), chunk_max, kv, batch)
    ttft_ms, itl_ms = ttft_s * 1e3, itl_s * 1e3
    return Capacity(
        batch / (output(shape) * itl_s),
        batch,
        ttft_ms,
        itl_ms,
        ttft_ms + itl_ms * (output(shape) - 1),
        _within(ttft_ms, slo.ttft_ms) and _within(itl_ms, slo.itl_ms),
    )


def better(best: Capacity | None, found: Capacity) -> Capacity:
    """What keeps the promise before what does not, then the higher rate; the first wins."""
    if best is None or (found.eligible, found.rps) > (best.eligible, best.rps):
        return found
    return best


def candidates(batch_max: int) -> Iterator[int]:
    """1 to batch_max; at most `CANDIDATES_MAX` of them, evenly spread, both ends among them."""
    if batch_max <= CANDIDATES_MAX:
        yield from range(1, batch_max + 1)
        return
    for step in range(CANDIDATES_MAX):
        yield 1 + step * (batch_max - 1) // (CANDIDATES_MAX - 1)


def decode_batch_max(shape: Shape, limits: Limits) -> int:
    """What sequences and KV tokens allow; 0: not even one request fits."""
    bound = _sequences_max(limits)
    if limits.max_kv_tokens is None:
        return bound
    return min(bound, floor(limits.max_kv_tokens / context(shape)))


def _sequences_max(limits: Limits) -> int:
    return BATCH_MAX if limits.max_num_seqs is None else limits.max_num_seqs


def _within(ms: float, promised_ms: float) -> bool:
    """Rounding is no miss."""
    return ms <= promised_ms + 1e-9
