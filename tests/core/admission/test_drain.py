"""Tests of the drain rate of load, and of the Retry-After seconds of rejected clients."""

import warnings
from math import exp

import pytest

from select_service.core.admission.drain_rate import (
    RETRY_AFTER_S_MAX,
    RETRY_AFTER_UNKNOWN_S,
    DrainRate,
    retry_after_seconds,
)
from select_service.core.load.new_reservation import DrainedTotals
from tests.core.admission.scenes import Scene, one_class


def test_a_steady_flow_becomes_the_rate():
    rate = DrainRate(DrainedTotals(0, 0), 0.0)
    for second in range(1, 121):
        rate.observe_totals(DrainedTotals(100 * second, 7 * second), float(second))
    assert rate.tokens_per_s == pytest.approx(100.0, rel=1e-4)
    assert rate.blocks_per_s == pytest.approx(7.0, rel=1e-4)


def test_the_rate_fades_when_nothing_drains():
    rate = DrainRate(DrainedTotals(0, 0), 0.0)
    rate.observe_totals(DrainedTotals(1000, 0), 10.0)
    first = rate.tokens_per_s
    assert first == pytest.approx(100.0 * (1 - exp(-1.0)))
    rate.observe_totals(DrainedTotals(1000, 0), 20.0)
    assert rate.tokens_per_s == pytest.approx(first * exp(-1.0))


def test_two_looks_at_one_instant_change_nothing():
    rate = DrainRate(DrainedTotals(0, 0), 5.0)
    rate.observe_totals(DrainedTotals(50, 5), 5.0)
    assert (rate.tokens_per_s, rate.blocks_per_s) == (0.0, 0.0)
    rate.observe_totals(DrainedTotals(50, 5), 6.0)
    assert rate.tokens_per_s > 0.0


def test_sums_that_begin_again_never_make_the_rate_negative():
    rate = DrainRate(DrainedTotals(0, 0), 0.0)
    rate.observe_totals(DrainedTotals(1000, 100), 1.0)
    rate.observe_totals(DrainedTotals(10, 1), 2.0)
    assert rate.tokens_per_s > 0.0
    assert rate.blocks_per_s > 0.0


@pytest.mark.parametrize(
    ("work", "per_second", "seconds"),
    [
        (0.0, 0.0, 1),
        (-5.0, 10.0, 1),
        (1.0, 100.0, 1),
        (100.0, 10.0, 10),
        (101.0, 10.0, 11),
        (1e9, 1.0, RETRY_AFTER_S_MAX),
        (1.0, 0.0, RETRY_AFTER_UNKNOWN_S),
        (1.0, 5e-324, RETRY_AFTER_UNKNOWN_S),
    ],
)
def test_the_estimate_is_whole_seconds_within_its_bounds(work, per_second, seconds):
    assert retry_after_seconds(work, per_second) == seconds


def drained_scene(**options):
    """Return a scene: its worker has just shed 1000 prefill tokens and 250 blocks in 10 seconds."""
    scene = Scene(**options)
    scene.tick(0.0)
    scene.fill(1, 1000, name="gone")
    scene.free("gone")
    scene.tick(10.0)
    return scene, 100.0 * (1 - exp(-1.0))


def test_retry_after_is_the_drain_time_of_the_excess():
    scene, rate = drained_scene(prefill=100)
    scene.fill(1, 600)
    assert scene.ask("a").retry_after_s == -(-500 // rate)


def test_the_least_busy_candidate_counts():
    scene, rate = drained_scene(prefill=100, workers=2)
    scene.fill(1, 3000)
    scene.fill(2, 300)
    assert scene.ask("a").retry_after_s == -(-200 // (rate / 2))


def test_blocks_that_are_too_many_count_like_tokens():
    scene, rate = drained_scene(decode=0.5, total_kv_blocks=100)
    scene.fill(1, 4 * 150)
    blocks_per_s = rate / 4
    assert scene.ask("a").retry_after_s == -(-100 // blocks_per_s)


def test_no_estimate_stumbles_over_a_capacity_that_is_not_known():
    scene = Scene(decode=0.0, prefill=0)
    scene.fill(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scene.ask("a").retry_after_s == RETRY_AFTER_UNKNOWN_S


def test_retry_after_of_a_full_queue_is_the_drain_time_of_the_queue():
    rules = one_class(timeout_s=1.0)
    scene, rate = drained_scene(queue=rules)
    scene.fill(1, 8)
    scene.ask("a", 400)
    scene.ask("b", 400, timeout_ms=0)
    assert scene.outcomes["b"].retry_after_s == -(-400 // rate)
