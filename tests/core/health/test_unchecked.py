"""Ranks that are never checked: nothing is held against them that only a check could take back.

And those that an operator drained, who are not checked until he says so.
"""

import pytest

from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.checked import Attempt, CheckedWorker
from select_service.core.health.kinds import Came, Outcome, State
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.outcomes import OutcomeReport
from select_service.core.health.rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.touched import Touched

ASKED, UNASKED = PartitionKey("asked", "default"), PartitionKey("unasked", "default")
CHECKED, UNCHECKED = Rank(1, 0), Rank(2, 0)


@pytest.fixture
def monitor():
    """Two workers of two models behind one endpoint; the model of the second has no prompts."""
    monitor = HealthMonitor(
        HealthRules(retries=0),
        lambda key: default_prompts() if key == ASKED else (),
        lambda rank: 0,
        Touched(lambda: None),
    )
    for worker_id, key in ((1, ASKED), (2, UNASKED)):
        monitor.joined(CheckedWorker(worker_id, key, range(1), "http://both"), 0.0)
    return monitor


def run(monitor, begin, seconds):
    """No connection to anybody."""
    for now in map(float, range(begin, begin + seconds)):
        monitor.tick(now)
        while (order := monitor.due(now)) is not None:
            monitor.attempted(order, Attempt(Came.CONNECT), now)
    monitor.check_invariants()


def states(monitor):
    return [monitor.record(rank).state for rank in (CHECKED, UNCHECKED)]


def test_failed_connections_are_those_of_ranks_that_are_checked(monitor):
    run(monitor, 0, 60)
    assert states(monitor) == [State.UNHEALTHY, State.HEALTHY]
    assert {worker_id for worker_id, _ in monitor.counts.failures} == {1}


def test_reported_failures_are_not_held_against_them_and_what_is_fatal_is(monitor):
    for rank in (CHECKED, UNCHECKED):
        monitor.reported(OutcomeReport(rank, Outcome.FAILURE, times=3), True, 1.0)
    assert states(monitor) == [State.SUSPICIOUS, State.HEALTHY]
    monitor.reported(OutcomeReport(UNCHECKED, Outcome.FATAL), True, 2.0)
    assert states(monitor)[1] is State.UNHEALTHY
    run(monitor, 3, 1300)
    assert states(monitor)[1] is State.DEAD
    monitor.joined(CheckedWorker(2, UNASKED, range(1), "http://both"), 1400.0)
    assert states(monitor)[1] is State.HEALTHY


def test_a_probe_that_ends_after_its_rank_was_drained_by_an_operator_is_the_last(monitor):
    run(monitor, 0, 60)
    monitor.tick(130.0)
    order = monitor.due(130.0)
    assert order is not None
    assert order.is_probe
    monitor.drain(1, 130.5)
    monitor.attempted(order, Attempt(Came.BUSY), 131.0)
    assert monitor.next_check_at(CHECKED) is None
