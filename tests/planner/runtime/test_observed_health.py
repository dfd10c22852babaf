"""Tests of lost workers, derived from several selectors' reports about ranks."""

from select_service.planner.core.tick_input import LostWorker, Role, RoleHealth
from tests.planner.runtime.test_selector_source import answer, combine_answers, rank

D = Role.DECODE
GOOD = {"state": "healthy", "weight": 1.0}


def out(worker_id, out_s=10.0, state="unhealthy", cause="timeout", **fields):
    return rank(worker_id, state=state, weight=0.0, cause=cause, out_s=out_s, **fields)


def test_without_health_checks_the_health_is_unknown():
    assert combine_answers(answer(ranks=[rank(1)])).health is None
    assert combine_answers().health is None


def test_a_worker_that_health_has_taken_out_is_lost():
    found = combine_answers(
        answer(ranks=[rank(1, **GOOD), out(2), out(3, 700.0, "dead", "connect")])
    )
    assert found.health[D] == RoleHealth(
        serving=1,
        lost=(
            LostWorker(worker_id=2, out_s=10.0, state="unhealthy", cause="timeout"),
            LostWorker(worker_id=3, out_s=700.0, state="dead", cause="connect"),
        ),
    )
    assert found.health[Role.PREFILL] == RoleHealth(serving=0)


def test_drains_by_operators_and_planners_are_no_loss():
    ranks = [out(1, state="draining", cause="operator"), out(2, state="draining", cause="timeout")]
    health = combine_answers(answer(ranks=ranks)).health[D]
    assert [worker.worker_id for worker in health.lost] == [2]


def test_selectors_without_causes_report_no_drain_as_a_loss():
    ranks = [rank(1, state="draining", weight=0.0), rank(2, state="dead", weight=0.0)]
    health = combine_answers(answer(ranks=ranks)).health[D]
    assert [(worker.worker_id, worker.out_s) for worker in health.lost] == [(2, 0.0)]


def test_a_worker_with_a_serving_rank_serves():
    ranks = [rank(1, **GOOD), out(1) | {"dp_rank": 1}]
    assert combine_answers(answer(ranks=ranks)).health[D] == RoleHealth(serving=1)


def test_a_worker_is_out_since_its_last_ejection_by_a_selector():
    both = combine_answers(answer(ranks=[out(1, 700.0)]), answer(ranks=[out(1, 30.0)]))
    assert both.health[D].lost[0].out_s == 30.0
    one = combine_answers(answer(ranks=[out(1, 700.0)]), answer(ranks=[rank(1, **GOOD)]))
    assert (one.health[D].serving, one.health[D].lost[0].out_s) == (0, 0.0)


def test_idle_spares_are_counted_apart():
    spare = rank(2, state="healthy", weight=0.0, spare=True)
    found = combine_answers(answer(ranks=[rank(1, **GOOD), spare, out(3, spare=True)]))
    health = found.health[D]
    assert (health.serving, health.spares, len(health.lost)) == (1, 1, 1)
    assert found.workers[D] == 1


def test_the_highest_degradation_level_counts():
    levels = [answer(health={"degradation_level": level}) for level in (1, 3)]
    assert combine_answers(*levels, answer()).degradation_level == 3
