"""Tests of pick: masks, ties, temperature."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from select_service.core.placement.pick_kernels import pick_slot as pick_kernel


@njit("int64(float64[::1], boolean[::1], float64, float64)")
def pick(costs, eligible, temperature, draw):
    return pick_kernel(costs, eligible, temperature, draw)


DRAWS = st.floats(0, 1, exclude_max=True)


@given(
    costs=st.lists(st.floats(0, 1e12), min_size=1, max_size=80),
    mask=st.integers(0, 2**80),
    temperature=st.sampled_from([0.0, 1e-9, 0.5, 10.0, 1e300]),
    draw=DRAWS,
)
def test_pick_never_returns_a_masked_slot(costs, mask, temperature, draw):
    eligible = np.array([bool(mask >> i & 1) for i in range(len(costs))])
    slot = pick(np.array(costs), eligible, temperature, draw)
    if not eligible.any():
        assert slot == -1
    else:
        assert eligible[slot]
        if temperature == 0.0:
            assert costs[slot] == min(c for c, e in zip(costs, eligible, strict=True) if e)


@given(
    costs=st.lists(st.sampled_from([-0.0, 0.0, 1.0, 2.0, np.inf]), min_size=1, max_size=70),
    mask=st.integers(0, 2**70),
    draw=DRAWS,
)
def test_the_draw_chooses_among_the_cheapest_in_order(costs, mask, draw):
    eligible = [bool(mask >> i & 1) for i in range(len(costs))]
    lowest = min((c for c, e in zip(costs, eligible, strict=True) if e), default=None)
    ties = [i for i, c in enumerate(costs) if eligible[i] and c == lowest]
    expected = ties[int(draw * len(ties))] if ties else -1
    assert pick(np.array(costs), np.array(eligible), 0.0, draw) == expected


def test_ties_are_uniform():
    costs, eligible = np.array([1.0, 5.0, 1.0, 1.0]), np.array([True, True, True, False])
    picked = Counter(pick(costs, eligible, 0.0, draw / 1000) for draw in range(1000))
    assert picked == {0: 500, 2: 500}


def test_temperature_one_follows_the_range_normalised_softmax():
    costs, eligible = np.array([0.0, 2.0, 4.0]), np.ones(3, np.bool_)
    weights = np.exp(-np.array([0.0, 0.5, 1.0]))
    expected = weights / weights.sum()
    draws = 20_000
    picked = Counter(pick(costs, eligible, 1.0, draw / draws) for draw in range(draws))
    for slot in range(3):
        assert abs(picked[slot] / draws - expected[slot]) < 1e-3


def test_equal_costs_are_uniform_at_any_temperature():
    costs, eligible = np.full(4, 7.0), np.ones(4, np.bool_)
    picked = Counter(pick(costs, eligible, 0.3, draw / 400) for draw in range(400))
    assert picked == {0: 100, 1: 100, 2: 100, 3: 100}


ANY_COSTS = st.one_of(st.floats(0, 1e308), st.just(np.inf), st.sampled_from([0.0, 1.7e308]))


@given(
    costs=st.lists(ANY_COSTS, min_size=1, max_size=8),
    temperature=st.sampled_from([0.0, 1e-300, 0.5, 1e300]),
    draw=DRAWS,
)
def test_an_infinite_cost_is_taken_only_when_there_is_no_other(costs, temperature, draw):
    slot = pick(np.array(costs), np.ones(len(costs), np.bool_), temperature, draw)
    assert 0 <= slot < len(costs)
    assert costs[slot] < np.inf or min(costs) == np.inf


def test_huge_costs_follow_the_softmax_of_their_range():
    costs, eligible = np.array([0.0, 0.85e308, 1.7e308, np.inf]), np.ones(4, np.bool_)
    weights = np.exp(-np.array([0.0, 0.5, 1.0]) / 2.0)
    draws = 20_000
    picked = Counter(pick(costs, eligible, 2.0, draw / draws) for draw in range(draws))
    for slot, expected in enumerate(weights / weights.sum()):
        assert abs(picked[slot] / draws - expected) < 1e-3
    assert not picked[3]


def test_infinite_costs_alone_are_uniform():
    costs, eligible = np.full(4, np.inf), np.array([True, True, False, True])
    for temperature in (0.0, 1.0):
        picked = Counter(pick(costs, eligible, temperature, draw / 300) for draw in range(300))
        assert picked == {0: 100, 1: 100, 3: 100}
