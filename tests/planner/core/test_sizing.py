"""Tests of the replicas that meet a latency target: known cases, and general properties."""

from math import ceil, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.proposers.queue_sizing import (
    REPLICAS_MAX,
    DecodeCapability,
    DecodeLoad,
    MissCorrection,
    PrefillQueue,
    erlang_c,
    first_two_moments,
    make_prefill_queue,
    size_decode,
    size_prefill,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import LengthBins


def a_queue(
    lengths: dict[float, float], rate: float, arrival_variation: float = 1.0
) -> PrefillQueue:
    """Return a queue with service times of 10 ms and 60 us a token."""
    bins = LengthBins(means=tuple(lengths), counts=tuple(lengths.values()))
    return make_prefill_queue(
        bins, [0.01 + 6e-5 * tokens for tokens in bins.means], rate, arrival_variation
    )


def naive_erlang_c(servers: int, offered: float) -> float:
    """Return Erlang's C by the sums of the textbook."""
    terms = [1.0]
    for busy in range(1, servers + 1):
        terms.append(terms[-1] * offered / busy)
    last = terms[-1] * servers / (servers - offered)
    return last / (sum(terms[:-1]) + last)


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_waiting_is_as_in_the_textbook(servers, part):
    assert isclose(erlang_c(servers, servers * part), naive_erlang_c(servers, servers * part))


def test_with_too_few_servers_all_requests_wait():
    assert erlang_c(3, 3.0) == 1.0
    assert erlang_c(3, 7.0) == 1.0


@pytest.mark.parametrize(
    ("lengths", "rate", "slo_s", "wanted", "replicas", "attainment"),
    [
        ({2000: 1}, 30.0, 1.5, 0.9, 5, 1.0),
        ({2000: 1}, 30.0, 0.5, 0.99, 5, 0.999014933),
        ({2000: 1}, 8.0, 1.5, 0.9, 2, 0.9999999994),
        ({2000: 1}, 0.5, 0.3, 0.99, 1, 0.994364969),
    ],
)
def test_known_sizes(lengths, rate, slo_s, wanted, replicas, attainment):
    size = size_prefill(a_queue(lengths, rate), slo_s, wanted)
    assert (size.replicas, size.reason) == (replicas, Reason.SCALE)
    assert size.attainment == pytest.approx(attainment)


def test_a_few_long_prompts_need_more_than_their_mean():
    queue = a_queue({400: 0.95, 16000: 0.05}, 11.0, 3.0)
    by_mean = ceil(queue.busy_replicas)
    assert size_prefill(queue, 1.0, 0.95).replicas > by_mean


def test_too_long_prompts_are_reported_and_sized_for_utilisation():
    queue = a_queue({400: 0.9, 16000: 0.1}, 30.0)
    size = size_prefill(queue, 0.3, 0.95)
    assert size.reason is Reason.SLO_OUT_OF_REACH
    assert size.replicas == ceil(queue.busy_replicas / 0.85)
    assert size.attainment < 0.9


def test_no_requests_need_no_replicas():
    assert size_prefill(a_queue({400: 1}, 0.0), 0.3, 0.95).replicas == 0


@given(
    st.dictionaries(st.floats(1, 20000), st.floats(0.1, 50), min_size=1, max_size=5),
    st.floats(0.1, 100),
    st.floats(1, 5),
    st.floats(0.05, 5),
    st.floats(0.5, 0.99),
)
def test_more_demand_or_a_tighter_target_never_needs_fewer(lengths, rate, variation, slo_s, wanted):
    size = size_prefill(a_queue(lengths, rate, variation), slo_s, wanted)
    assert 1 <= size.replicas <= REPLICAS_MAX
    if size.reason is Reason.SCALE:
        assert size.attainment >= wanted - 1e-9
        more = size_prefill(a_queue(lengths, 1.5 * rate, variation), slo_s, wanted)
        looser = size_prefill(a_queue(lengths, rate, variation), 1.5 * slo_s, wanted)
        assert more.replicas >= size.replicas >= looser.replicas


def an_engine(kv_tokens: float, accept: float = 1.0) -> DecodeCapability:
    def itl_s(live: float, kv: float) -> float:
        return (0.006 + 1e-4 * live + 3e-8 * kv) / accept

    return DecodeCapability(itl_s, kv_tokens, 256)


@pytest.mark.parametrize(
    ("rate", "osl", "kv", "accept", "slo_s", "expected"),
    [
        (20.0, 300.0, 60000, 1.0, 0.05, (3, 27, 0.010401)),
        (3.0, 50.0, 60000, 1.8, 0.01, (1, 27, 0.005778333333)),
        (0.5, 50.0, 400000, 1.0, 0.03, (1, 147, 0.029961)),
    ],
)
def test_known_decode_sizes(rate, osl, kv, accept, slo_s, expected):
    load = DecodeLoad(rate, osl, 2100.0, 2100.0**2)
    size = size_decode(load, an_engine(kv, accept), slo_s)
    assert (size.replicas, size.batch) == expected[:2]
    assert size.itl_s == pytest.approx(expected[2])


def test_contexts_that_vary_need_more_cache():
    even = DecodeLoad(20.0, 300.0, *first_two_moments(LengthBins(means=(2000.0,), counts=(1.0,))))
    mixed = DecodeLoad(
        20.0, 300.0, *first_two_moments(LengthBins(means=(500.0, 15500.0), counts=(9.0, 1.0)))
    )
    assert mixed.mean_kv == even.mean_kv
    engine = an_engine(30000)
    assert size_decode(mixed, engine, 0.05).replicas > size_decode(even, engine, 0.05).replicas


def test_a_pace_missed_by_a_single_request_is_reported():
    size = size_decode(DecodeLoad(1.0, 100.0, 2000.0, 4e6), an_engine(60000), 0.005)
    assert (size.batch, size.reason) == (1, Reason.SLO_OUT_OF_REACH)


def test_more_misses_than_predicted_count_and_bounds_hold():
    correction = MissCorrection()
    assert correction.miss_ratio == 1.0
    correction.observe_window(0.1, 0.05)
    assert correction.miss_ratio == pytest.approx(1 + 0.2 * (0.11 / 0.06 - 1))
    for _ in range(50):
        correction.observe_window(1.0, 0.0)
        assert correction.LEAST <= correction.miss_ratio <= correction.MOST
    assert correction.miss_ratio == pytest.approx(3.0, abs=0.001)
    for _ in range(50):
        correction.observe_window(0.0, 0.5)
    assert correction.miss_ratio == pytest.approx(0.5, abs=0.001)


def test_a_disturbance_of_the_host_is_soon_forgotten() -> None:
    """Three windows are late for every request, then windows are as predicted."""
    correction, ratios = MissCorrection(), []
    for missed in (1.0, 1.0, 1.0, 0.05, 0.05, 0.05, 0.05):
        correction.observe_window(missed, 0.05)
        ratios.append(correction.miss_ratio)
    assert ratios[0] == pytest.approx(1.4)
    assert max(ratios) < 2.0
    assert ratios[-1] < 1.1
