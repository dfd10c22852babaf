"""How late the loop is, in made up time."""

import pytest

from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S, STALLED_S, TIMER_S, LoopLag


def looked(*lates_s):
    """(a Lateness that has looked so late each time, the time)"""
    lateness, now = LoopLag(0.0), 0.0
    for late_s in lates_s:
        now += MEASURE_INTERVAL_S + late_s
        lateness.measure(now)
    return lateness, now


def test_timers_of_an_idle_host_are_not_late():
    lateness, now = looked()
    begun = lateness.totals_at(now)
    for _ in range(50):
        now += MEASURE_INTERVAL_S + TIMER_S
        lateness.measure(now)
    assert lateness.mean_delay(begun, now) == pytest.approx(0.0, abs=1e-9)
    assert lateness.lost_seconds(now) == 0.0


def test_the_mean_is_that_of_the_turns_since_then():
    lateness, now = looked(0.5, 0.05)
    begun = lateness.totals_at(now)
    for late_s in (0.01, 0.03):
        now += MEASURE_INTERVAL_S + TIMER_S + late_s
        lateness.measure(now)
    assert lateness.mean_delay(begun, now) == pytest.approx(0.02)


def test_a_turn_that_has_not_come_yet_counts():
    lateness, now = looked()
    begun = lateness.totals_at(now)
    assert lateness.mean_delay(begun, now + MEASURE_INTERVAL_S / 2) == 0.0
    assert lateness.mean_delay(begun, now + MEASURE_INTERVAL_S + TIMER_S + 0.04) == pytest.approx(
        0.04
    )


def test_what_stood_still_is_lost():
    lateness, now = looked(2 * STALLED_S)
    assert lateness.lost_seconds(now) == pytest.approx(2 * STALLED_S)
    late_at = now + MEASURE_INTERVAL_S + 3 * STALLED_S
    assert lateness.is_stalled(late_at)
    assert lateness.lost_seconds(late_at) == pytest.approx(5 * STALLED_S)
