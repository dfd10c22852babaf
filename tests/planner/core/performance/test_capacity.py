"""Tests of the best batch against a search over all batches."""

from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.engine_capacity import (
    CANDIDATES_MAX,
    LinearIterationTime,
    aggregated_capacity,
    candidate_batches,
    decode_capacity,
    prefill_capacity,
)
from select_service.planner.core.tick_input import EngineLimits

FORWARDS = st.builds(
    LinearIterationTime,
    st.floats(1e-4, 0.05),
    st.floats(0, 1e-4),
    st.floats(0, 1e-7),
    st.floats(0, 1e-3),
)
SHAPES = st.builds(
    MeanRequest, st.floats(1, 9000), st.floats(1, 900), st.floats(0, 1), st.floats(1, 4)
)
SLOS = st.builds(LatencyTargets, st.floats(1, 2000), st.floats(1, 100))
LIMITS = st.builds(
    EngineLimits,
    max_num_batched_tokens=st.integers(1, 9000),
    max_num_seqs=st.integers(1, CANDIDATES_MAX),
    max_kv_tokens=st.integers(1, 500_000),
)


def seconds_of(
    forward: LinearIterationTime, tokens: int, chunk: int, kv: int, requests: int
) -> float:
    """Return the seconds of a prefill, computed by chunks."""
    total = 0.0
    while True:
        total += forward.seconds(min(tokens, chunk), kv, requests)
        tokens -= chunk
        if tokens <= 0:
            return total


def best_of(found: list[tuple[bool, float, int]]) -> tuple[bool, float] | None:
    """Return (kept, rate) of the first best batch."""
    return max(found)[:2] if found else None


def lengths(shape: MeanRequest) -> tuple[int, int, int]:
    """Return (computed tokens, context, output tokens) of a request."""
    isl, osl = max(1, ceil(shape.isl)), max(1, ceil(shape.osl))
    hit = min(0.95, max(0.0, shape.hit_rate))
    return max(1, ceil(isl * (1 - hit))), isl + osl // 2, osl


@given(FORWARDS, SHAPES, LIMITS, SLOS)
def test_prefill(forward, shape, limits, slo):
    chunk, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
    assert chunk is not None
    assert seqs is not None
    own, _, _ = lengths(shape)
    tried = []
    for batch in range(1, max(1, min(seqs, chunk // own)) + 1):
        seconds = seconds_of(forward, batch * own, chunk, 0, 0)
        tried.append((seconds * 1e3 <= slo.ttft_ms + 1e-9, batch / seconds, -batch))
    _agrees(prefill_capacity(forward, shape, limits, slo), tried)


@given(FORWARDS, SHAPES, LIMITS, SLOS)
def test_decode(forward, shape, limits, slo):
    assert limits.max_kv_tokens is not None
    assert limits.max_num_seqs is not None
    _, context, osl = lengths(shape)
    tried = []
    for batch in range(1, min(limits.max_num_seqs, floor(limits.max_kv_tokens / context)) + 1):
        itl_s = forward.seconds(0, batch * context, batch) / shape.accept_length
        tried.append((itl_s * 1e3 <= slo.itl_ms + 1e-9, batch / (osl * itl_s), -batch))
    _agrees(decode_capacity(forward, shape, limits, slo), tried)


@given(FORWARDS, SHAPES, LIMITS, SLOS)
def test_both_at_once(forward, shape, limits, slo):
    chunk, seqs, kv_max = (limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_kv_tokens)
    assert chunk is not None
    assert seqs is not None
    assert kv_max is not None
    own, context, osl = lengths(shape)
    tried = []
    for batch in range(1, min(seqs, floor(kv_max / context), chunk - 1) + 1):
        beside = ceil(batch * shape.accept_length * own / osl)
        if beside > chunk - batch:
            continue
        kv = batch * context
        itl_s = forward.seconds(beside, kv, batch) / shape.accept_length
        ttft_s = seconds_of(forward, beside + own, chunk, kv, batch)
        is_kept = ttft_s * 1e3 <= slo.ttft_ms + 1e-9 and itl_s * 1e3 <= slo.itl_ms + 1e-9
        tried.append((is_kept, batch / (osl * itl_s), -batch))
    _agrees(aggregated_capacity(forward, shape, limits, slo), tried)


def _agrees(found: object, tried: list[tuple[bool, float, int]]) -> None:
    best = best_of(tried)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert (found.eligible, found.rps) == (best[0], pytest.approx(best[1], rel=1e-9))  # type: ignore[attr-defined]


@given(st.integers(0, 20_000))
def test_some_batches_are_tried_from_one_to_all(most):
    tried = list(candidate_batches(most))
    assert tried == sorted(set(tried))
    assert len(tried) == min(most, CANDIDATES_MAX)
    if most:
        assert (tried[0], tried[-1]) == (1, most)
