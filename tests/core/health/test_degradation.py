"""Levels, what they need to change, and what is left to carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health.capacity import (
    Capacity,
    LoadMeans,
    RankCapacity,
    Slo,
    capacity,
    ratio_of_weights,
    spares_wanted,
)
from select_service.core.health.degradation import (
    Degradation,
    DegradationRules,
    Shed,
    level_of,
)
from select_service.core.health.learnt import WINDOW_S, LearntRate, RequestMeans
from tests.models.level_model import naive_levels

RATIOS = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.31, 0.5, 0.55, 0.7, 0.75, 0.8, 1.0, 1.04, 1.05])
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 5.0, 7.0, 30.0]), RATIOS), max_size=40)


@given(STEPS, st.sampled_from([(5.0, 30.0, 0.05), (0.0, 0.0, 0.0), (1.0, 7.0, 0.1)]))
def test_levels_change_after_their_time(steps, rules):
    degradation, now, found, looks = Degradation(DegradationRules(*rules)), 0.0, [], []
    for wait, ratio in steps:
        now += wait
        before = degradation.level
        assert degradation.update(ratio, now) == (degradation.level != before)
        found.append(degradation.level)
        looks.append((now, ratio))
    assert found == list(naive_levels(looks, *rules))


def test_without_times_and_margin_the_level_is_that_of_the_ratio():
    degradation = Degradation(DegradationRules(0.0, 0.0, 0.0))
    for ratio in (1.0, 0.1, 2.0, 0.6, 0.0, 0.8):
        degradation.update(ratio, 0.0)
        assert degradation.level == level_of(ratio)


def test_a_level_sets_all_its_effects():
    degradation = Degradation()
    assert degradation.effects.shed is Shed.NONE
    degradation.update(0.0, 0.0)
    assert degradation.effects.refuses_new
    degradation.update(0.8, 1.0)
    degradation.update(0.8, 31.0)
    degradation.update(0.8, 61.0)
    assert degradation.level == 2
    degradation.update(0.8, 91.0)
    assert (degradation.effects.shed, degradation.effects.batch_multiplier) == (Shed.NONE, 0.75)


def test_what_is_unknown_is_left_out():
    rank = RankCapacity(1.0, None, 16, 5000.0, None)
    slo = Slo(500, 30, 10)
    assert capacity([rank], slo, LoadMeans(1000, 100, 0.5)) == Capacity(0, 10, 0, 10, 1)
    assert capacity([], slo, LoadMeans()) == Capacity(0, 0, 0, 0, 0)
    assert capacity([rank], Slo(0, 0, 0), LoadMeans(0, 0, 0)).ratio == 0


def test_without_promises_it_is_the_weights():
    assert ratio_of_weights([1.0, 0.5, 0.0, 0.5], 4) == 0.5
    assert ratio_of_weights([], 0) == 0.0


@pytest.mark.parametrize(("workers", "spares"), [(0, 0), (19, 0), (20, 1), (21, 2), (128, 7)])
def test_spares_are_wanted_from_some_workers_on(workers, spares):
    assert spares_wanted(workers) == spares


def test_a_rate_follows_its_samples():
    rate = LearntRate()
    assert (rate.value, rate.or_default) == (None, 5000.0)
    rate.learn(1000, 0.0)
    rate.learn(0, 1.0)
    assert rate.value is None
    rate.learn(1000, 0.5)
    rate.learn(3000, 1.0)
    assert rate.or_default == pytest.approx(2100.0)


def test_means_are_those_of_the_last_ten_minutes():
    means = RequestMeans()
    assert means.means(0.0) == LoadMeans()
    means.booked(1000, 0, 0.0)
    means.ended(50, 1.0)
    means.booked(3000, 1500, 300.0)
    assert means.means(301.0) == LoadMeans(2000.0, 50.0, 0.375)
    assert means.means(WINDOW_S + 1) == LoadMeans(3000.0, 50.0, 0.5)
    assert means.means(3 * WINDOW_S) == LoadMeans(3000.0, 50.0, 0.5)  # nothing newer came
