"""Tests of sizing against a simulated queue."""

from itertools import product

import numpy as np
import pytest

from select_service.planner.core.proposers.queue_sizing import (
    DecodeCapability,
    DecodeLoad,
    first_two_moments,
    make_prefill_queue,
    size_decode,
    size_prefill,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import LengthBins
from tests.planner.core.queue_simulation import Kind, attained, bins_of, lengths_of, service_s

WITHIN = 0.05
KINDS = [
    Kind(lengths, rate, variation, slo_s, (0.9, 0.95, 0.99)[at % 3])
    for at, (lengths, rate, variation, slo_s) in enumerate(
        product(("equal", "heavy", "bimodal"), (2.0, 12.0), (1.0, 3.0), (0.5, 1.5))
    )
]
FEW = [
    Kind("equal", 12.0, 1.0, 0.5, 0.95),
    Kind("heavy", 12.0, 1.0, 1.5, 0.9),
    Kind("heavy", 8.0, 3.0, 1.5, 0.95),
    Kind("bimodal", 12.0, 1.0, 1.5, 0.95),
    Kind("bimodal", 8.0, 3.0, 0.5, 0.9),
]


def check(kind: Kind, requests: int, seed: int) -> None:
    """Check both the number of replicas and the promised attainment."""
    rng = np.random.default_rng(seed + 1)
    lengths = bins_of(lengths_of(kind.lengths, 20_000, rng))
    queue = make_prefill_queue(
        lengths, list(map(service_s, lengths.means)), kind.rate, kind.arrival_variation
    )
    size = size_prefill(queue, kind.slo_s, kind.wanted)
    found = attained(kind, size.replicas, requests, seed)
    assert abs(found - size.attainment) <= WITHIN, (kind, size, found)
    if size.reason is not Reason.SLO_OUT_OF_REACH:
        assert found >= kind.wanted - WITHIN, (kind, size, found)


@pytest.mark.parametrize("kind", FEW, ids=str)
def test_the_promise_is_kept(kind: Kind) -> None:
    check(kind, 12_000, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_promise_is_kept_in_all_kinds(kind: Kind, seed: int) -> None:
    check(kind, 100_000, seed)


def test_the_mean_alone_would_have_broken_it() -> None:
    kind = Kind("bimodal", 8.0, 3.0, 0.5, 0.9)
    lengths = bins_of(lengths_of("bimodal", 20_000, np.random.default_rng(1)))
    queue = make_prefill_queue(
        lengths, list(map(service_s, lengths.means)), kind.rate, kind.arrival_variation
    )
    by_mean = int(np.ceil(queue.busy_replicas))
    assert size_prefill(queue, kind.slo_s, kind.wanted).replicas > by_mean
    assert attained(kind, by_mean, 12_000, 7) < kind.wanted - 0.1


def itl_s(requests: float, kv_tokens: float) -> float:
    return 0.006 + 1e-4 * requests + 3e-8 * kv_tokens


@pytest.mark.parametrize("rate", [3.0, 20.0, 80.0])
@pytest.mark.parametrize("spread", ["equal", "bimodal", "heavy"])
def test_batches_and_the_cache_hold_the_running_requests(rate: float, spread: str) -> None:
    """The oracle draws random moments: Poisson requests, each with its own context."""
    rng = np.random.default_rng(11)
    contexts = lengths_of(spread, 20_000, rng)
    bins: LengthBins = bins_of(contexts)
    load = DecodeLoad(rate, 300.0, *first_two_moments(bins))
    engine = DecodeCapability(itl_s, 120_000.0, 64)
    size = size_decode(load, engine, 0.03)
    moments_seen = 2_000
    live = rng.poisson(rate * 300.0 * size.itl_s, moments_seen)
    tokens = [rng.choice(contexts, n).sum() for n in live]
    assert np.mean(live > size.replicas * size.batch) <= 0.05 + WITHIN
    assert np.mean(np.array(tokens) > size.replicas * engine.kv_tokens) <= 0.05 + WITHIN
