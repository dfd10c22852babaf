"""Tests of ranks without checks: no bad state is kept that only a check could end.

Ranks drained by an operator are not checked until the operator ends the drain.
"""

import pytest

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import Attempt, CheckedWorker
from select_service.core.health.health_kinds import AttemptResult, RankHealthState, RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import PartitionKey, Rank

ASKED, UNASKED = PartitionKey("asked", "default"), PartitionKey("unasked", "default")
CHECKED, UNCHECKED = Rank(1, 0), Rank(2, 0)


@pytest.fixture
def monitor():
    """Return a monitor of two workers behind one endpoint; the second's model lacks prompts."""
    monitor = HealthMonitor(
        HealthRules(retries=0),
        lambda key: default_prompts() if key == ASKED else (),
        lambda rank: 0,
        DirtyPartitions(lambda: None),
    )
    for worker_id, key in ((1, ASKED), (2, UNASKED)):
        monitor.register_worker(CheckedWorker(worker_id, key, range(1), "http://both"), 0.0)
    return monitor


def run(monitor, begin, seconds):
    """Let all connections fail for some seconds."""
    for now in map(float, range(begin, begin + seconds)):
        monitor.advance_timers(now)
        while (order := monitor.next_due_check(now)) is not None:
            monitor.process_attempt(order, Attempt(AttemptResult.CONNECT), now)
    monitor.check_invariants()


def states(monitor):
    return [monitor.record_of(rank).state for rank in (CHECKED, UNCHECKED)]


def test_failed_connections_concern_checked_ranks_alone(monitor):
    run(monitor, 0, 60)
    assert states(monitor) == [RankHealthState.UNHEALTHY, RankHealthState.HEALTHY]
    assert {worker_id for worker_id, _ in monitor.counters.failures} == {1}


def test_reported_failures_do_not_count_but_fatal_reports_do(monitor):
    for rank in (CHECKED, UNCHECKED):
        monitor.process_report(OutcomeReport(rank, RequestOutcome.FAILURE, times=3), True, 1.0)
    assert states(monitor) == [RankHealthState.SUSPICIOUS, RankHealthState.HEALTHY]
    monitor.process_report(OutcomeReport(UNCHECKED, RequestOutcome.FATAL), True, 2.0)
    assert states(monitor)[1] is RankHealthState.UNHEALTHY
    run(monitor, 3, 1300)
    assert states(monitor)[1] is RankHealthState.DEAD
    monitor.register_worker(CheckedWorker(2, UNASKED, range(1), "http://both"), 1400.0)
    assert states(monitor)[1] is RankHealthState.HEALTHY


def test_a_probe_that_ends_after_its_rank_was_drained_by_an_operator_is_the_last(monitor):
    run(monitor, 0, 60)
    monitor.advance_timers(130.0)
    order = monitor.next_due_check(130.0)
    assert order is not None
    assert order.is_probe
    monitor.drain_ranks(1, 130.5)
    monitor.process_attempt(order, Attempt(AttemptResult.BUSY), 131.0)
    assert monitor.next_check_at(CHECKED) is None
