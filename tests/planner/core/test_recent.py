"""What several windows say together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.inputs import Bins, Traffic
from select_service.planner.core.recent import HALF_LIFE_S, Recent


def window(*lengths: float, variation: float | None = 1.0) -> Traffic:
    bins = Bins(means=lengths, counts=(1.0,) * len(lengths)) if lengths else None
    return Traffic(
        duration_s=60.0,
        requests=float(len(lengths)),
        uncached_isl=bins,
        context=bins,
        arrival_variation=variation,
    )


def mean(bins: Bins | None) -> float:
    assert bins is not None
    return sum(m * c for m, c in zip(bins.means, bins.counts, strict=True)) / sum(bins.counts)


def test_a_window_counts_half_after_its_half_life() -> None:
    recent = Recent(HALF_LIFE_S)
    recent.with_window(window(1000.0, variation=4.0))
    found = recent.with_window(window(4000.0, variation=1.0))
    assert mean(found.uncached_isl) == pytest.approx((0.5 * 1000 + 4000) / 1.5)
    assert mean(found.context) == mean(found.uncached_isl)
    assert found.arrival_variation == pytest.approx((0.5 * 4 + 1) / 1.5)


def test_what_a_window_does_not_know_is_left_as_it_is() -> None:
    recent = Recent(60.0)
    assert recent.with_window(window(variation=None)).arrival_variation is None
    recent.with_window(window(500.0, 700.0, variation=3.0))
    found = recent.with_window(window(variation=None))
    assert found.uncached_isl is None
    assert found.arrival_variation == pytest.approx(3.0)


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=300))
def test_the_mean_is_kept_and_bins_are_bounded(lengths: list[float]) -> None:
    recent = Recent(60.0)
    for _ in range(3):
        found = recent.with_window(window(*lengths)).uncached_isl
    assert found is not None
    assert mean(found) == pytest.approx(sum(lengths) / len(lengths))
    assert len(found.means) <= 128
    assert list(found.means) == sorted(found.means)
