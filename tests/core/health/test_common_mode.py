"""Tests of common slowness against a model that reads all results."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import Attempt, CheckedWorker
from select_service.core.health.checks.common_mode import CommonModeDetector
from select_service.core.health.health_kinds import AttemptResult, RankHealthState
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import PartitionKey, Rank

KEY = PartitionKey("model", "default")
WINDOW_S = 30.0
RESULTS = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.sampled_from([0.0, 1.0, 5.0, 20.0, 31.0])),
    max_size=60,
)


@given(RESULTS)
def test_more_than_half_of_the_latest_results_and_at_least_three(results):
    mode, last, now = CommonModeDetector(WINDOW_S), {}, 0.0
    for number, is_slow, wait in results:
        now += wait
        rank = Rank(number, 0)
        last[rank] = (now, is_slow)
        last = {r: (at, slow) for r, (at, slow) in last.items() if now - at <= WINDOW_S}
        slow = {r for r, (_, s) in last.items() if s}
        expected = is_slow and len(slow) >= 3 and 2 * len(slow) > len(last)
        assert mode.add_result(rank, is_slow, now) == expected
        assert set(mode.slow_ranks()) == slow
        mode.check_invariants()


def test_ranks_that_left_are_not_counted():
    mode = CommonModeDetector(WINDOW_S)
    for number in range(3):
        mode.add_result(Rank(number, 0), True, 0.0)
    mode.drop_rank(Rank(0, 0))
    mode.drop_rank(Rank(9, 9))
    assert not mode.add_result(Rank(1, 0), True, 1.0)
    mode.check_invariants()


def test_an_old_suspicion_is_forgiven_when_all_are_slow():
    rules = HealthRules(interval_s=5.0, retries=0)
    monitor = HealthMonitor(
        rules, lambda key: default_prompts(), lambda rank: 0, DirtyPartitions(lambda: None)
    )
    early, *others = (Rank(worker_id, 0) for worker_id in range(5))
    for worker_id in range(5):
        worker = CheckedWorker(worker_id, KEY, range(1), f"http://{worker_id}")
        monitor.register_worker(worker, 0.0)

    def run(begin, end, came):
        for now in range(begin, end):
            while (order := monitor.next_due_check(now)) is not None:
                monitor.process_attempt(
                    order, Attempt(came.get(order.rank, AttemptResult.MISCONFIGURED)), now
                )

    run(0, 5, {early: AttemptResult.TIMEOUT})
    assert monitor.record_of(early).state is RankHealthState.SUSPICIOUS
    run(5, 30, {early: AttemptResult.BUSY})
    run(30, 40, dict.fromkeys(others, AttemptResult.TIMEOUT) | {early: AttemptResult.BUSY})
    run(40, 50, dict.fromkeys([early, *others], AttemptResult.TIMEOUT))
    assert monitor.counters.common_mode > 0
    assert {monitor.record_of(rank).state for rank in (early, *others)} == {RankHealthState.HEALTHY}
