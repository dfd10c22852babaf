"""Tests of the variation of arrivals, on streams with a known variation."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.base.arrival_variation import GROUP_MAX, SLOTS_MIN, arrival_variation

Counts = np.ndarray


def poisson(rng: np.random.Generator) -> Counts:
    return rng.poisson(5.0, 600)


def clusters(rng: np.random.Generator) -> Counts:
    """Return clusters of ten: the variance is that of a single cluster times a hundred."""
    return 10 * rng.poisson(0.5, 600)


def trains(rng: np.random.Generator) -> Counts:
    """Return a batch every three seconds, as in traces with rounded times."""
    counts = np.zeros(600, np.int64)
    counts[::3] = rng.poisson(15.0, 200)
    return counts


def growing(rng: np.random.Generator) -> Counts:
    return rng.poisson(np.linspace(1.0, 30.0, 600))


@pytest.mark.parametrize(
    ("stream", "low", "high"),
    [(poisson, 0.7, 1.4), (clusters, 7.0, 14.0), (trains, 0.7, 8.0), (growing, 0.7, 1.4)],
)
def test_known_streams(stream: Callable[[np.random.Generator], Counts], low: float, high: float):
    counts = stream(np.random.default_rng(3))
    found = arrival_variation(counts, np.ones(len(counts)))
    assert found is not None
    assert low <= found <= high


def test_batches_within_the_group_count_less_than_by_the_second() -> None:
    counts = trains(np.random.default_rng(3))
    by_second = np.diff(counts) ** 2 / 2
    found = arrival_variation(counts, np.ones(len(counts)))
    assert found is not None
    assert found < by_second.mean() / counts.mean() / 2


@given(st.lists(st.integers(0, 50), max_size=80), st.floats(0.2, 3.0))
def test_the_variation_is_never_negative_and_unknown_for_few_requests(
    counts: list[int], seconds: float
) -> None:
    found = arrival_variation(np.array(counts, np.int64), np.full(len(counts), seconds))
    if len(counts) < SLOTS_MIN or not any(counts):
        assert found is None
    else:
        assert found is not None
        assert found >= 0.0


@given(st.lists(st.integers(0, 50), min_size=SLOTS_MIN * GROUP_MAX, max_size=120))
def test_the_same_counts_in_slots_of_another_length_vary_alike(counts: list[int]) -> None:
    known = np.array(counts, np.int64)
    if known.any():
        one, half = (arrival_variation(known, np.full(len(counts), of)) for of in (1.0, 0.5))
        assert one == pytest.approx(half)
