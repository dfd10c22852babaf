"""Tests of the lag of the event loop, in simulated time."""

import pytest

from select_service.adapters.health.loop_lag import MEASURE_INTERVAL_S, STALLED_S, TIMER_S, LoopLag


def measured_lag(*lates_s):
    """Return (a LoopLag measured with these delays, the present time)."""
    lateness, now = LoopLag(0.0), 0.0
    for late_s in lates_s:
        now += MEASURE_INTERVAL_S + late_s
        lateness.measure(now)
    return lateness, now


def test_timers_of_an_idle_host_are_not_late():
    lateness, now = measured_lag()
    begun = lateness.totals_at(now)
    for _ in range(50):
        now += MEASURE_INTERVAL_S + TIMER_S
        lateness.measure(now)
    assert lateness.mean_delay(begun, now) == pytest.approx(0.0, abs=1e-9)
    assert lateness.lost_seconds(now) == 0.0


def test_the_mean_covers_the_turns_since_the_start():
    lateness, now = measured_lag(0.5, 0.05)
    begun = lateness.totals_at(now)
    for late_s in (0.01, 0.03):
        now += MEASURE_INTERVAL_S + TIMER_S + late_s
        lateness.measure(now)
    assert lateness.mean_delay(begun, now) == pytest.approx(0.02)


def test_an_overdue_turn_counts():
    lateness, now = measured_lag()
    begun = lateness.totals_at(now)
    assert lateness.mean_delay(begun, now + MEASURE_INTERVAL_S / 2) == 0.0
    assert lateness.mean_delay(begun, now + MEASURE_INTERVAL_S + TIMER_S + 0.04) == pytest.approx(
        0.04
    )


def test_stalls_count_as_lost_time():
    lateness, now = measured_lag(2 * STALLED_S)
    assert lateness.lost_seconds(now) == pytest.approx(2 * STALLED_S)
    late_at = now + MEASURE_INTERVAL_S + 3 * STALLED_S
    assert lateness.is_stalled(late_at)
    assert lateness.lost_seconds(late_at) == pytest.approx(5 * STALLED_S)
