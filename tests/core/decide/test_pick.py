"""pick: masks, ties, temperature."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.decide.pick import pick

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
