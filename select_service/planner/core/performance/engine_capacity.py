"""Capacity of an engine by the seconds of its iterations: latencies and the best batch.

All functions use a time model: a fitted line, a profile or given coefficients.
"""

from collections.abc import Callable, Iterable, Iterator
from math import ceil, floor
from typing import Literal, NamedTuple, Protocol

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.tick_input import EngineLimits, usable_hit_rate

EngineKind = Literal["prefill", "decode", "aggregated"]
"""Work of an engine."""
CANDIDATES_MAX = 128
BATCH_MAX = 4096
"""Limit of a batch if neither sequences nor KV tokens of the engine are known."""


class IterationTime(Protocol):
    """Time model of an iteration."""

    def seconds(self, prefill_tokens: float, kv_tokens: float, requests: float) -> float:
        """Return the time of an iteration, seconds.

        prefill_tokens:       tokens computed in the iteration
        kv_tokens, requests:  KV tokens and requests of its decoding
        """


class LinearIterationTime(NamedTuple):
    """Line with known coefficients, in seconds."""

    base: float
    per_prefill_token: float
    per_kv_token: float
    per_request: float

    def seconds(self, prefill_tokens: float, kv_tokens: float, requests: float) -> float:
        """Return the time of an iteration, at least a microsecond."""
        found = self.base + self.per_prefill_token * prefill_tokens
        # A fitted intercept may be slightly negative, and callers divide by the time.
        return max(1e-6, found + self.per_kv_token * kv_tokens + self.per_request * requests)


class EngineCapacity(NamedTuple):
    """Capacity at the best batch. eligible: whether the batch keeps the targets.

    If none does, the best.
    """

    rps: float
    batch: int
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    eligible: bool


def prompt_tokens(shape: MeanRequest) -> int:
    """Return the tokens of a prompt."""
    return max(1, ceil(shape.isl))


def answer_tokens(shape: MeanRequest) -> int:
    """Return the tokens of an answer."""
    return max(1, ceil(shape.osl))


def uncached_tokens(shape: MeanRequest) -> int:
    """Return the tokens of a prompt that are not cached."""
    return max(1, ceil(prompt_tokens(shape) * (1 - usable_hit_rate(shape.hit_rate))))


def request_kv_tokens(shape: MeanRequest) -> int:
    """Return the KV tokens of a request half way through its answer."""
    return prompt_tokens(shape) + answer_tokens(shape) // 2


def accepted_tokens(shape: MeanRequest) -> float:
    """Return the tokens generated in an iteration, at least 1."""
    return max(1.0, shape.accept_length)


def chunked_prefill_s(
    forward: IterationTime, tokens: float, chunk_max: int | None, kv: float = 0, requests: float = 0
) -> float:
    """Return the seconds of a prompt in full chunks and a rest.

    Each chunk is an iteration with the same decoding beside.
    """
    if chunk_max is None or tokens <= chunk_max:
        return forward.seconds(tokens, kv, requests)
    full, rest = divmod(tokens, chunk_max)
    found = full * forward.seconds(chunk_max, kv, requests)
    return found + (forward.seconds(rest, kv, requests) if rest else 0.0)


def prefill_capacity(
    forward: IterationTime, shape: MeanRequest, limits: EngineLimits, slo: LatencyTargets
) -> EngineCapacity | None:
    """Return the capacity with several prompts an iteration, or one longer than an iteration."""
    if shape.isl <= 0:
        return None
    batch_max = _sequences_max(limits)
    chunk_max = limits.max_num_batched_tokens
    if chunk_max is not None:
        if chunk_max <= 0:
            return None
        # One prompt always runs, even if longer than an iteration: then in chunks.
        batch_max = max(1, min(batch_max, chunk_max // uncached_tokens(shape)))

    def capacity_at(batch: int) -> EngineCapacity:
        """Return the capacity at a given batch."""
        seconds = chunked_prefill_s(forward, batch * uncached_tokens(shape), chunk_max)
        ms = seconds * 1e3
        return EngineCapacity(batch / seconds, batch, ms, None, ms, _is_within(ms, slo.ttft_ms))

    return best_capacity(map(capacity_at, candidate_batches(batch_max)))


def decode_capacity(
    forward: IterationTime, shape: MeanRequest, limits: EngineLimits, slo: LatencyTargets
) -> EngineCapacity | None:
    """Return the capacity of requests that decode together."""
    if shape.isl <= 0 or shape.osl <= 0:
        return None

    def capacity_at(batch: int) -> EngineCapacity:
        """Return the capacity at a given batch."""
        itl_s = forward.seconds(0, batch * request_kv_tokens(shape), batch) / accepted_tokens(shape)
        rps, itl_ms = batch / (answer_tokens(shape) * itl_s), itl_s * 1e3
        return EngineCapacity(rps, batch, None, itl_ms, None, _is_within(itl_ms, slo.itl_ms))

    return best_capacity(map(capacity_at, candidate_batches(decode_batch_max(shape, limits))))


def aggregated_capacity(
    forward: IterationTime, shape: MeanRequest, limits: EngineLimits, slo: LatencyTargets
) -> EngineCapacity | None:
    """Return the capacity of decoding requests, with the prefill of their successors."""
    chunk_max = limits.max_num_batched_tokens
    if chunk_max is None or shape.isl <= 0 or shape.osl <= 0:
        return None
    # Each decoding request takes a token of the iteration, and prefill needs at least one.
    bound = min(decode_batch_max(shape, limits), chunk_max - 1)
    # The prefill of an iteration grows with the batch, so the fitting batches are a prefix
    # and the largest is found by bisection.
    batch_max = largest_count(
        0, bound, lambda batch: replaced_tokens(shape, batch) <= chunk_max - batch
    )
    return best_capacity(
        _aggregated_at_batch(forward, shape, chunk_max, slo, batch)
        for batch in candidate_batches(batch_max)
    )


def replaced_tokens(shape: MeanRequest, batch: int) -> int:
    """Return the prefill tokens of an iteration in which as many requests start as end."""
    return ceil(batch * accepted_tokens(shape) * uncached_tokens(shape) / answer_tokens(shape))


def _aggregated_at_batch(
    forward: IterationTime, shape: MeanRequest, chunk_max: int, slo: LatencyTargets, batch: int
) -> EngineCapacity:
    """Return the capacity at a given batch."""
    beside = replaced_tokens(shape, batch)
    kv = batch * request_kv_tokens(shape)
    itl_s = forward.seconds(beside, kv, batch) / accepted_tokens(shape)
    ttft_s = chunked_prefill_s(forward, beside + uncached_tokens(shape), chunk_max, kv, batch)
    ttft_ms, itl_ms = ttft_s * 1e3, itl_s * 1e3
    return EngineCapacity(
        batch / (answer_tokens(shape) * itl_s),
        batch,
        ttft_ms,
        itl_ms,
        ttft_ms + itl_ms * (answer_tokens(shape) - 1),
        _is_within(ttft_ms, slo.ttft_ms) and _is_within(itl_ms, slo.itl_ms),
    )


def best_capacity(found: Iterable[EngineCapacity]) -> EngineCapacity | None:
    """Return the best capacity: eligible first, then the higher rate; the first wins ties."""
    return max(found, key=lambda each: (each.eligible, each.rps), default=None)


def largest_count(low: int, high: int, is_allowed: Callable[[int], bool]) -> int:
    """Return the largest allowed count from `low` to `high`, which form a prefix; else `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if is_allowed(middle):
            low = middle
        else:
            high = middle - 1
    return low


def candidate_batches(batch_max: int) -> Iterator[int]:
    """Yield batches from 1 to batch_max, including both ends.

    At most `CANDIDATES_MAX` are yielded, evenly spread.
    """
    if batch_max <= CANDIDATES_MAX:
        yield from range(1, batch_max + 1)
        return
    for step in range(CANDIDATES_MAX):
        # Trying all batches of a large engine in every tick would cost more than the tick itself.
        yield 1 + step * (batch_max - 1) // (CANDIDATES_MAX - 1)


def decode_batch_max(shape: MeanRequest, limits: EngineLimits) -> int:
    """Return the batch allowed by sequences and KV tokens; 0 if not even one request fits."""
    bound = _sequences_max(limits)
    if limits.max_kv_tokens is None:
        return bound
    return min(bound, floor(limits.max_kv_tokens / request_kv_tokens(shape)))


def _sequences_max(limits: EngineLimits) -> int:
    """Return the limit of sequences."""
    return BATCH_MAX if limits.max_num_seqs is None else limits.max_num_seqs


def _is_within(ms: float, promised_ms: float) -> bool:
    """Return whether a latency keeps its target; rounding errors do not count as a miss."""
    return ms <= promised_ms + 1e-9
