"""Tests of degradation levels, the times before a change, and the remaining capacity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health.capacity_estimate import (
    CapacityEstimate,
    RankCapacity,
    RequestMeanValues,
    ServiceObjective,
    estimate_capacity,
    recommended_spares,
    serving_share,
)
from select_service.core.health.degradation.degradation_levels import (
    DegradationLevel,
    DegradationRules,
    LoadShedding,
    level_of,
)
from select_service.core.health.migration.learnt_rates import WINDOW_S, LearntRate, RequestMeans
from tests.models.level_model import naive_levels

RATIOS = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.31, 0.5, 0.55, 0.7, 0.75, 0.8, 1.0, 1.04, 1.05])
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 5.0, 7.0, 30.0]), RATIOS), max_size=40)


@given(STEPS, st.sampled_from([(5.0, 30.0, 0.05), (0.0, 0.0, 0.0), (1.0, 7.0, 0.1)]))
def test_levels_change_after_their_time(steps, rules):
    degradation, now, found, looks = DegradationLevel(DegradationRules(*rules)), 0.0, [], []
    for wait, ratio in steps:
        now += wait
        before = degradation.level
        assert degradation.update_level(ratio, now) == (degradation.level != before)
        found.append(degradation.level)
        looks.append((now, ratio))
    assert found == list(naive_levels(looks, *rules))


def test_without_times_and_margin_the_level_follows_the_ratio():
    degradation = DegradationLevel(DegradationRules(0.0, 0.0, 0.0))
    for ratio in (1.0, 0.1, 2.0, 0.6, 0.0, 0.8):
        degradation.update_level(ratio, 0.0)
        assert degradation.level == level_of(ratio)


def test_a_level_sets_all_its_effects():
    degradation = DegradationLevel()
    assert degradation.current_effects.shed is LoadShedding.NONE
    degradation.update_level(0.0, 0.0)
    assert degradation.current_effects.refuses_new
    degradation.update_level(0.8, 1.0)
    degradation.update_level(0.8, 31.0)
    degradation.update_level(0.8, 61.0)
    assert degradation.level == 2
    degradation.update_level(0.8, 91.0)
    assert (degradation.current_effects.shed, degradation.current_effects.batch_multiplier) == (
        LoadShedding.NONE,
        0.75,
    )


def test_unknown_values_are_left_out():
    rank = RankCapacity(1.0, None, 16, 5000.0, None)
    slo = ServiceObjective(500, 30, 10)
    assert estimate_capacity([rank], slo, RequestMeanValues(1000, 100, 0.5)) == CapacityEstimate(
        0, 10, 0, 10, 1
    )
    assert estimate_capacity([], slo, RequestMeanValues()) == CapacityEstimate(0, 0, 0, 0, 0)
    assert (
        estimate_capacity([rank], ServiceObjective(0, 0, 0), RequestMeanValues(0, 0, 0)).ratio == 0
    )


def test_without_objectives_the_weights_decide():
    assert serving_share([1.0, 0.5, 0.0, 0.5], 4) == 0.5
    assert serving_share([], 0) == 0.0


@pytest.mark.parametrize(("workers", "spares"), [(0, 0), (19, 0), (20, 1), (21, 2), (128, 7)])
def test_spares_are_wanted_from_some_workers_on(workers, spares):
    assert recommended_spares(workers) == spares


def test_a_rate_follows_its_samples():
    rate = LearntRate()
    assert rate.value is None
    rate.add_sample(1000, 0.0)
    rate.add_sample(0, 1.0)
    assert rate.value is None
    rate.add_sample(1000, 0.5)
    rate.add_sample(3000, 1.0)
    assert rate.value == pytest.approx(2100.0)


def test_means_cover_the_last_ten_minutes():
    means = RequestMeans()
    assert means.compute_means(0.0) == RequestMeanValues()
    means.add_request(1000, 0, 0.0)
    means.add_ended_request(50, 1.0)
    means.add_request(3000, 1500, 300.0)
    assert means.compute_means(301.0) == RequestMeanValues(2000.0, 50.0, 0.375)
    assert means.compute_means(WINDOW_S + 1) == RequestMeanValues(3000.0, 50.0, 0.5)
    assert means.compute_means(3 * WINDOW_S) == RequestMeanValues(
        3000.0, 50.0, 0.5
    )  # no newer samples
