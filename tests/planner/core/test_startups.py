"""Tests of measured start-up times, and of starts that never finish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.replicas.startups import STARTUP_WEIGHT, StartUpTracker
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import RoleReplicas
from tests.planner.core.deployments import replicas
from tests.planner.invariants import check_startups


def learnt_startup_s(readings: list[tuple[float, RoleReplicas]], first_s: float = 120.0) -> float:
    startups = StartUpTracker(DeploymentSettings(startup_s=first_s))
    for now_s, each in readings:
        startups.observe_role(now_s, each)
        check_startups(startups)
    return startups.startup_s


def test_each_replica_takes_its_own_time_also_while_others_are_begun() -> None:
    """Some replica is always starting on a ramp, which is no start-up of an hour."""
    readings = [(0.0, replicas(2))]
    for at in range(1, 40):
        begun, done = min(at, 36), max(0, at - 2)
        readings.append((100.0 * at, replicas(2 + done, max(0, begun - done))))
    assert learnt_startup_s(readings, first_s=200.0) == pytest.approx(200.0)


def test_the_oldest_starts_are_ready_first() -> None:
    readings = [
        (0.0, replicas(1)),
        (10.0, replicas(1, 1)),
        (50.0, replicas(1, 3)),
        (90.0, replicas(2, 2)),
    ]
    first = 120.0 + STARTUP_WEIGHT * (80.0 - 120.0)
    assert learnt_startup_s(readings) == pytest.approx(first)
    both = [*readings, (110.0, replicas(4))]
    assert learnt_startup_s(both) == pytest.approx(first + STARTUP_WEIGHT * (60.0 - first))


def test_cancelled_and_earlier_starts_are_not_measured() -> None:
    assert (
        learnt_startup_s([(0.0, replicas(1)), (10.0, replicas(1, 2)), (20.0, replicas(1))]) == 120.0
    )
    assert learnt_startup_s([(0.0, replicas(1, 1)), (1.0, replicas(2))]) == 120.0
    oldest = [(0.0, replicas(1)), (10.0, replicas(1, 1)), (90.0, replicas(1, 2))]
    back = [*oldest, (95.0, replicas(1, 1)), (110.0, replicas(2))]
    assert learnt_startup_s(back) == pytest.approx(120.0 + STARTUP_WEIGHT * (100.0 - 120.0))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_no_start_up_is_longer_than_the_observation(steps: list[tuple[int, int]]) -> None:
    readings = [(10.0 * at, replicas(*counts)) for at, counts in enumerate(steps)]
    assert 0.0 < learnt_startup_s(readings, first_s=1.0) <= max(1.0, 10.0 * len(steps))
