"""Tests of health over many ranks: every step is short, and no event is lost between two steps."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health import health_monitor
from select_service.core.health.checks import result_dispatcher
from select_service.core.health.checks.check_state import RankSet
from select_service.core.health.health_effects import StateChanged
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank
from tests.builders.fleet_scene import FleetScene

HANGING_BOUND_S = 30 + 3 * 128 * 5 / 32 + 10
"""An interval, then the time for the hanging checks of 5 s, 32 at once, and a margin, seconds."""

QUICK_BOUND_S = 30 + 2 * (2 + 3 * 0.05 + 2 * 0.5)
"""An interval and two confirmations, as if each rank were alone, seconds."""


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_ranks_in_no_order_are_a_set_with_numbers(changes):
    ranks, model = RankSet(), set()
    for joins, number in changes:
        rank = Rank(number, 0)
        if joins and rank not in model:
            ranks.add_rank(rank)
            model.add(rank)
        elif not joins and rank in model:
            ranks.remove_rank(rank)
            model.remove(rank)
        assert len(ranks) == len(model)
        assert {ranks[at] for at in range(len(ranks))} == model


def test_half_of_a_fleet_hangs_and_each_is_out_in_time():
    scene = FleetScene(256, seed=1)
    scene.run(6 * 30)
    hanging = [Rank(n, 0) for n in range(0, 256, 2)]
    scene.break_ranks("hang", *hanging)
    broken_at = scene.now
    scene.run(HANGING_BOUND_S)
    assert scene.out_at.keys() == set(hanging)
    assert max(scene.out_at.values()) - broken_at <= HANGING_BOUND_S
    others = {scene.state(rank) for rank in scene.ranks if rank not in scene.out_at}
    assert others == {RankHealthState.HEALTHY}


def test_half_of_a_large_fleet_fails_at_once_and_pauses_delay_no_check():
    scene = FleetScene(1000, seed=1)
    scene.run(2 * 30)
    failing = [Rank(n, 0) for n in range(0, 1000, 2)]
    scene.break_ranks("500", *failing)
    broken_at = scene.now
    scene.run(QUICK_BOUND_S)
    assert scene.out_at.keys() == set(failing)
    assert max(scene.out_at.values()) - broken_at <= QUICK_BOUND_S


def test_a_quarter_of_a_fleet_hangs_and_the_others_are_checked_all_the_time():
    scene = FleetScene(256, seed=2)
    scene.run(6 * 30)
    scene.break_ranks("hang", *(Rank(n, 0) for n in range(0, 256, 4)))
    scene.run(90)
    assert len(scene.out_at) == 64
    others = [rank for rank in scene.ranks if rank not in scene.out_at]
    seen = [scene.monitor.check_state_of(rank).last_check.at for rank in others]
    assert min(seen) > scene.now - 2 * 30 - 1


def test_at_most_half_is_ejected_when_all_hang():
    scene = FleetScene(256, seed=3)
    scene.run(6 * 30)
    scene.break_ranks("hang", *scene.ranks)
    scene.run(120)
    assert len(scene.out_at) <= 128


def test_a_failed_connection_is_applied_to_some_ranks_a_turn(monkeypatch):
    monkeypatch.setattr(result_dispatcher, "RANKS_PER_STEP", 8)
    scene = FleetScene(100, dp=100, rules=HealthRules(retries=0))
    scene.break_ranks("connect", *scene.ranks)
    while not scene.monitor.counters.checks[CheckKind.CONNECT]:
        scene.step()
    assert scene.states()[RankHealthState.SUSPICIOUS] == 8
    scene.wakes = 0
    turns = 1
    while scene.monitor.continue_work(scene.now):
        turns += 1
    assert turns == 12
    assert scene.states() == {RankHealthState.SUSPICIOUS: 100}
    assert scene.monitor.counters.failures[0, CheckKind.CONNECT] == 100


def test_a_failed_connection_skips_ranks_that_left(monkeypatch):
    monkeypatch.setattr(result_dispatcher, "RANKS_PER_STEP", 8)
    scene = FleetScene(20, dp=20, rules=HealthRules(retries=0))
    scene.break_ranks("connect", *scene.ranks)
    while not scene.monitor.counters.checks[CheckKind.CONNECT]:
        scene.step()
    scene.monitor.remove_worker(0)
    while scene.monitor.continue_work(scene.now):
        pass
    scene.monitor.check_invariants()


def test_time_passes_for_some_ranks_a_turn(monkeypatch):
    monkeypatch.setattr(health_monitor, "RANKS_PER_STEP", 4)
    scene = FleetScene(10)
    for worker_id in range(10):
        scene.monitor.drain_ranks(worker_id, scene.now)
    turns = 1
    while scene.monitor.advance_timers(scene.now + 300.0):
        turns += 1
    assert turns == 3
    scene.monitor.remove_worker(3)
    for worker_id in range(10):
        scene.monitor.undrain_ranks(worker_id, scene.now + 300.0)
    assert scene.monitor.advance_timers(scene.now + 301.0)
    scene.monitor.remove_worker(9)
    while scene.monitor.advance_timers(scene.now + 331.0):
        pass
    while scene.monitor.advance_timers(scene.now + 332.0):
        pass
    left = [rank for rank in scene.ranks if rank.worker_id not in (3, 9)]
    assert {scene.monitor.record_of(rank).published_weight for rank in left} == {1.0}
    drained = [e for e in scene.monitor.take_effects() if isinstance(e, StateChanged)]
    assert len(drained) == 19
    scene.monitor.check_invariants()
