"""How late the loop is, in made up time."""

import pytest

from select_service.edge.health.lateness import LATE_S, STEP_S, TIMER_S, Lateness


def looked(*lates_s):
    """(a Lateness that has looked so late each time, the time)"""
    lateness, now = Lateness(0.0), 0.0
    for late_s in lates_s:
        now += STEP_S + late_s
        lateness.look(now)
    return lateness, now


def test_timers_of_an_idle_host_are_not_late():
    lateness, now = looked()
    begun = lateness.moment(now)
    for _ in range(50):
        now += STEP_S + TIMER_S
        lateness.look(now)
    assert lateness.turn_s(begun, now) == pytest.approx(0.0, abs=1e-9)
    assert lateness.lost_s(now) == 0.0


def test_the_mean_is_that_of_the_turns_since_then():
    lateness, now = looked(0.5, 0.05)
    begun = lateness.moment(now)
    for late_s in (0.01, 0.03):
        now += STEP_S + TIMER_S + late_s
        lateness.look(now)
    assert lateness.turn_s(begun, now) == pytest.approx(0.02)


def test_a_turn_that_has_not_come_yet_counts():
    lateness, now = looked()
    begun = lateness.moment(now)
    assert lateness.turn_s(begun, now + STEP_S / 2) == 0.0
    assert lateness.turn_s(begun, now + STEP_S + TIMER_S + 0.04) == pytest.approx(0.04)


def test_what_stood_still_is_lost():
    lateness, now = looked(2 * LATE_S)
    assert lateness.lost_s(now) == pytest.approx(2 * LATE_S)
    late_at = now + STEP_S + 3 * LATE_S
    assert lateness.is_late(late_at)
    assert lateness.lost_s(late_at) == pytest.approx(5 * LATE_S)
