"""Tests of engines that prefill and decode: simulated engines meet the targets of sizing."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.forecast_contracts import LatencyTargets
from select_service.planner.core.proposers.shared_engine_sizing import (
    SharedEngine,
    SharedLoad,
    SharedSize,
    SharedSizing,
)
from select_service.planner.core.tick_input import LengthBins, Role
from select_service.planner.replay.simulated_engine import SimulatedRequest
from select_service.planner.replay.simulated_fleet import SimulatedFleet
from select_service.planner.replay.simulated_observation import make_length_bins, measure_variation
from tests.builders.simulated_engines import (
    SPEED,
    bimodal,
    fleet_of,
    generate_requests,
    heavy_tailed,
    normal,
)

D = Role.DECODE
TARGETS = LatencyTargets(ttft_ms=3000.0, itl_ms=80.0)
WANTED = 0.95
WITHIN = 0.05
SECONDS, WARM_S = 2400.0, 400.0


def iteration_s(prefill_tokens: float, requests: float, kv_tokens: float) -> float:
    found = SPEED.base_s + SPEED.per_prefill_token_s * prefill_tokens
    return found + SPEED.per_kv_token_s * kv_tokens + SPEED.per_request_s * requests


def an_engine(**changed: Any) -> SharedEngine:
    return SharedEngine(iteration_s, 512.0, 500_000.0, 256, 1.0)._replace(**changed)


KINDS = {"normal": normal, "bimodal": bimodal, "heavy": heavy_tailed}


def requests_of(kind: str, rate: float) -> list[SimulatedRequest]:
    return list(
        generate_requests(
            lambda _: rate, until_s=SECONDS, rate_max=rate, lengths=KINDS[kind], seed=5
        )
    )


def load_of(requests: list[SimulatedRequest], rate: float) -> SharedLoad:
    """Return the load, with the contexts of running requests: long answers run longer."""
    lengths = make_length_bins([float(each.uncached) for each in requests])
    assert lengths is not None
    tokens = sum(each.osl for each in requests)
    context = sum(each.osl * (each.isl + each.osl / 2) for each in requests) / tokens
    return SharedLoad(rate, lengths, tokens / len(requests), context, context * context, 1.0)


def served_share(requests: list[SimulatedRequest], replicas: int) -> float:
    """Return the share of requests that `replicas` constant simulated engines serve in time."""
    fleet = SimulatedFleet(fleet_of("agg"), {D: replicas}, 0.0)
    copies = [
        SimulatedRequest(each.arrived_s, each.isl, each.osl, each.uncached) for each in requests
    ]
    for each in copies:
        fleet.add_request(each, each.arrived_s)
    fleet.advance_to(SECONDS + 3600.0)
    own = [each for each in copies if each.arrived_s > WARM_S]
    return sum(map(_is_kept, own)) / len(own)


def _is_kept(request: SimulatedRequest) -> bool:
    if request.ttft_s is None or request.ttft_s * 1e3 > TARGETS.ttft_ms:
        return False
    return request.itl_s is None or request.itl_s * 1e3 <= TARGETS.itl_ms


CASES = [
    ("normal", 3.5),
    ("normal", 7.0),
    ("bimodal", 5.0),
    ("bimodal", 8.0),
    ("heavy", 6.0),
    ("heavy", 10.0),
]


@pytest.mark.parametrize(("kind", "rate"), CASES)
def test_the_smallest_size_meets_the_target_and_one_less_does_not(kind: str, rate: float) -> None:
    requests = requests_of(kind, rate)
    size = SharedSizing(load_of(requests, rate), an_engine(), TARGETS).size_replicas(WANTED)
    found = served_share(requests, size.replicas)
    assert abs(found - size.attainment) <= WITHIN, (size, found)
    assert found >= WANTED - WITHIN
    assert served_share(requests, size.replicas - 1) < WANTED


def in_batches(kind: str, rate: float, batch: int) -> list[SimulatedRequest]:
    rng, now, found = Random(5), 0.0, []
    while (now := now + rng.expovariate(rate / batch)) < SECONDS:
        found += [
            SimulatedRequest(now, isl, osl, uncached)
            for isl, uncached, osl in (KINDS[kind](rng) for _ in range(batch))
        ]
    return found


@pytest.mark.parametrize(("kind", "rate"), [("normal", 7.0), ("bimodal", 8.0), ("heavy", 10.0)])
def test_batches_meet_many_replicas_and_each_of_them_few_of_a_batch(kind: str, rate: float) -> None:
    """A variation of 4 over all replicas is small for each: one more replica at most."""
    requests = in_batches(kind, rate, 4)
    times = [each.arrived_s for each in requests]
    varied = measure_variation(times, 0.0, SECONDS)
    assert varied == pytest.approx(4.0, rel=0.2)
    load = load_of(requests, len(requests) / SECONDS)._replace(arrival_variation=varied)
    size = SharedSizing(load, an_engine(), TARGETS).size_replicas(WANTED)
    assert served_share(requests, size.replicas) >= WANTED - WITHIN
    assert served_share(requests, size.replicas - 2) < WANTED


def equal(rate: float, **changed: Any) -> SharedLoad:
    load = SharedLoad(
        rate, LengthBins(means=(2000.0,), counts=(1.0,)), 300.0, 2150.0, 2150.0**2, 1.0
    )
    return load._replace(**changed)


def size(
    load: SharedLoad, engine: SharedEngine | None = None, wanted: float = WANTED, **targets: float
) -> SharedSize:
    return SharedSizing(load, engine or an_engine(), TARGETS._replace(**targets)).size_replicas(
        wanted
    )


@given(st.floats(0.1, 60.0), st.floats(0.6, 0.99))
def test_a_sufficient_size_suffices_and_is_rounded_up(rate: float, wanted: float) -> None:
    found = size(equal(rate), wanted=wanted)
    assert found.attainment >= wanted - 1e-9
    assert found.replicas - 1 <= found.exact <= found.replicas
    if found.replicas > 1:
        before = SharedSizing(equal(rate), an_engine(), TARGETS)
        assert before.attainment(found.replicas - 1, rate) < wanted


def test_longer_answers_need_more_replicas_for_the_same_prompts() -> None:
    """Decoding and prefill slow each other down."""
    counts = [size(equal(20.0, osl=osl)).replicas for osl in (50.0, 300.0, 1000.0, 2000.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_looser_target_of_one_part_alone_needs_no_more() -> None:
    by_itl = [size(equal(20.0), itl_ms=itl).replicas for itl in (30.0, 50.0, 80.0, 200.0)]
    by_ttft = [size(equal(20.0), ttft_ms=ttft).replicas for ttft in (600.0, 1e3, 3e3, 2e4)]
    for counts in (by_itl, by_ttft):
        assert all(before >= after for before, after in pairwise(counts))
        assert counts[0] > counts[-1]


def test_the_cache_and_the_sequences_of_an_engine_are_limits() -> None:
    free = size(equal(20.0)).replicas
    assert size(equal(20.0), an_engine(kv_tokens=15_000.0)).replicas > free
    assert size(equal(20.0), an_engine(seqs=4)).replicas > free


def test_speculated_tokens_make_answers_shorter() -> None:
    long = equal(20.0, osl=1500.0)
    assert size(long, an_engine(accepted=3.0)).replicas < size(long).replicas


def test_unreachable_requests_are_reported_and_others_are_sized() -> None:
    lengths = LengthBins(means=(400.0, 40_000.0), counts=(0.85, 0.15))
    long = equal(5.0, lengths=lengths, mean_kv=7000.0, square_kv=7000.0**2)
    found = size(long)
    assert found.reachable == pytest.approx(0.85)
    assert found.attainment >= 0.95 * 0.85
    slow = size(equal(5.0), itl_ms=1.0)
    assert slow.reachable == 0.0
    assert 0 < slow.replicas < 100
    assert slow.attainment >= 0.95


def test_nothing_suffices_for_a_prompt_that_decoding_leaves_no_room_for() -> None:
    crowded = SharedSizing(equal(20.0), an_engine(chunk=8.0), TARGETS)
    assert crowded.find_fixed_point(5.0) is None
    assert crowded.attainment(4, 20.0) == 0.0
