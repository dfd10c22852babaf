"""Tests of values combined from several windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.forecasting.length_distributions import (
    HALF_LIFE_S,
    RecentDistributions,
)
from select_service.planner.core.tick_input import LengthBins, TrafficWindow


def window(*lengths: float, variation: float | None = 1.0) -> TrafficWindow:
    bins = LengthBins(means=lengths, counts=(1.0,) * len(lengths)) if lengths else None
    return TrafficWindow(
        duration_s=60.0,
        requests=float(len(lengths)),
        uncached_isl=bins,
        context=bins,
        arrival_variation=variation,
    )


def mean(bins: LengthBins | None) -> float:
    assert bins is not None
    return sum(m * c for m, c in zip(bins.means, bins.counts, strict=True)) / sum(bins.counts)


def test_a_window_counts_half_after_its_half_life() -> None:
    recent = RecentDistributions(HALF_LIFE_S)
    recent.add_window(window(1000.0, variation=4.0))
    found = recent.add_window(window(4000.0, variation=1.0))
    assert mean(found.uncached_isl) == pytest.approx((0.5 * 1000 + 4000) / 1.5)
    assert mean(found.context) == mean(found.uncached_isl)
    assert found.arrival_variation == pytest.approx((0.5 * 4 + 1) / 1.5)


def test_unknown_values_of_a_window_change_nothing() -> None:
    recent = RecentDistributions(60.0)
    assert recent.add_window(window(variation=None)).arrival_variation is None
    recent.add_window(window(500.0, 700.0, variation=3.0))
    found = recent.add_window(window(variation=None))
    assert found.uncached_isl is None
    assert found.arrival_variation == pytest.approx(3.0)


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=300))
def test_the_mean_is_kept_and_bins_are_bounded(lengths: list[float]) -> None:
    recent = RecentDistributions(60.0)
    for _ in range(3):
        found = recent.add_window(window(*lengths)).uncached_isl
    assert found is not None
    assert mean(found) == pytest.approx(sum(lengths) / len(lengths))
    assert len(found.means) <= 128
    assert list(found.means) == sorted(found.means)
