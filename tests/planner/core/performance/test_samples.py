"""Tests of buckets against a twin of dictionaries that is rebuilt for every sample."""

from itertools import pairwise
from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.performance.bucketed_samples import (
    BucketedSamples,
    LoadSample,
    RunningAverage,
)
from select_service.planner.core.performance.line_fit import HALF_LIFE_S, fit_line, fit_robust_line
from tests.planner.invariants import check_samples

VALUES = st.integers(0, 40).map(float)


def cell_of(x: tuple[float, ...], seen: list[LoadSample], cells: int) -> tuple[int, ...]:
    found = []
    for axis, value in enumerate(x):
        low = min(each.x[axis] for each in seen)
        high = max(each.x[axis] for each in seen)
        at = int((value - low) / (high - low) * cells) if high > low else 0
        found.append(min(at, cells - 1))
    return tuple(found)


def naive(samples: list[LoadSample], most: int, buckets: int, axes: int) -> list[list[LoadSample]]:
    """Return the buckets, rebuilt whenever the range grows.

    The oldest sample of the fullest bucket is dropped; among equal buckets, of the bucket with
    the earliest first sample.
    """
    cells = buckets if axes == 1 else isqrt(buckets)
    kept: dict[tuple[int, ...], list[LoadSample]] = {}
    seen: list[LoadSample] = []
    for sample in samples:
        before = [each for bucket in kept.values() for each in bucket]
        grown = seen and any(
            not min(each.x[axis] for each in seen)
            <= sample.x[axis]
            <= max(each.x[axis] for each in seen)
            for axis in range(axes)
        )
        seen.append(sample)
        if grown:
            kept = {}
            for each in before:
                kept.setdefault(cell_of(each.x, seen, cells), []).append(each)
        kept.setdefault(cell_of(sample.x, seen, cells), []).append(sample)
        if sum(map(len, kept.values())) > most:
            largest = max(map(len, kept.values()))
            next(bucket for bucket in kept.values() if len(bucket) == largest).pop(0)
    return list(kept.values())


@given(
    st.sampled_from([(1, 4), (1, 16), (2, 4), (2, 16)]),
    st.integers(1, 12),
    st.lists(st.tuples(VALUES, VALUES), max_size=60),
)
def test_buckets_agree_with_dicts(form, most, values):
    axes, buckets = form
    added = [LoadSample(pair[:axes], float(at)) for at, pair in enumerate(values)]
    samples = BucketedSamples(axes, most, buckets)
    for sample in added:
        samples.add_sample(sample)
        check_samples(samples)
    expected = [each for bucket in naive(added, most, buckets, axes) for each in bucket]
    assert list(samples) == expected
    assert len(samples) == min(most, len(added))
    if added:
        assert samples.largest_seen == tuple(
            max(each.x[axis] for each in added) for axis in range(axes)
        )


@given(st.lists(st.sampled_from([0.0, 0.0, 1.0, 5.0]), max_size=40), st.integers(1, 10))
def test_an_average_is_that_of_the_last_values_after_leading_zeros(values, window):
    average = RunningAverage(window)
    for value in values:
        average.add_value(value)
    counted = values
    while counted and counted[0] == 0.0:
        counted = counted[1:]
    last = counted[-window:]
    assert average.mean_value == pytest.approx(sum(last) / len(last) if last else 0.0)


def test_a_sample_weighs_half_after_the_half_life():
    """An engine had two speeds at the same two loads: the line is the weighted mean of both."""
    old = [LoadSample((x,), 0.3 + 1e-4 * x, 0.0) for x in (0.0, 1000.0)]
    new = [LoadSample((x,), 0.0 + 1e-4 * x, HALF_LIFE_S) for x in (0.0, 1000.0)]
    found = fit_robust_line([*old, *new, *new], HALF_LIFE_S)
    assert found.coefficients[0] == pytest.approx(1e-4)
    # weights 1/2 : 2, then less for the old samples, which are off the line
    assert 0.0 <= found.intercept <= 0.3 / 5
    plain = fit_line([*old, *new, *new])
    assert plain.intercept == pytest.approx(0.1)


def test_the_longer_ago_the_less_it_bends_the_line():
    """Old and new samples are equally many and no outliers: Huber's weights do not matter."""
    intercepts = []
    for age in (0.0, 1.0, 2.0, 4.0, 8.0):
        now = age * HALF_LIFE_S
        old = [LoadSample((float(x),), 0.2, 0.0) for x in range(10)]
        new = [LoadSample((float(x),), 0.1, now) for x in range(10)]
        intercepts.append(fit_robust_line([*old, *new], now).intercept)
    assert intercepts[0] == pytest.approx(0.15)
    assert all(after < before for before, after in pairwise(intercepts))
    assert intercepts[-1] == pytest.approx(0.1, abs=0.001)


def test_an_outage_makes_no_sample_weigh_nothing():
    line = [LoadSample((float(x),), 0.1 + x * 1e-3, 0.0) for x in range(10)]
    found = fit_robust_line(line, 1e6)
    assert found.coefficients[0] == pytest.approx(1e-3)
    assert found.intercept == pytest.approx(0.1)
