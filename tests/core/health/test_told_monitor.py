"""What the monitor is told: who is there, what callers report, what operators want."""

import pytest

from select_service.core.health.checked import CheckedWorker
from select_service.core.health.effects import Drained, MovesAsked, Reset, StateChanged
from select_service.core.health.kinds import Kind, Outcome, State
from select_service.core.health.outcomes import OutcomeReport
from select_service.core.health.reference_book import Source
from select_service.core.identity import Rank
from tests.core.health.fleet_scene import KEY, FleetScene


def test_workers_can_share_an_endpoint():
    scene = FleetScene(4)
    for worker_id in (0, 1):
        scene.monitor.joined(CheckedWorker(worker_id, KEY, range(1), "http://both"), 0.0)
    scene.run(100)
    scene.break_ranks("connect", Rank(0, 0), Rank(1, 0))
    scene.run(40)
    first, second = scene.out_at.values()
    assert first == second
    assert scene.monitor.counts.failures == {(0, Kind.CONNECT): 3, (1, Kind.CONNECT): 3}
    assert scene.monitor.counts.transitions[State.SUSPICIOUS, State.UNHEALTHY] == 2
    scene.monitor.left(0)
    assert scene.monitor.counts.failures == {(1, Kind.CONNECT): 3}


def test_who_registers_again_begins_anew_also_while_a_check_is_under_way():
    scene = FleetScene(3)
    scene.run(60)
    sick = Rank(0, 0)
    scene.break_ranks("hang", sick)
    while len(scene.monitor._checking._running) == 0 or scene.state(sick) is State.HEALTHY:
        scene.step()
    scene.join(0)
    scene._take()
    assert Reset(sick) in scene.effects
    scene.run(60)
    assert scene.state(sick) is State.HEALTHY
    assert scene.monitor.record(sick).failures == 0
    assert sick not in scene.out_at


def test_who_leaves_is_forgotten_and_its_check_ends_nowhere():
    scene = FleetScene(2)
    scene.run(31)
    while not scene.in_flight:
        scene.step()
    for worker_id in (0, 1):
        scene.monitor.left(worker_id)
    scene.engines.clear()
    scene.run(10)
    assert scene.in_flight == 0
    assert not list(scene.monitor.partitions())
    scene.monitor.left(0)


def test_a_worker_without_an_endpoint_is_healthy_and_never_asked():
    scene = FleetScene(2)
    scene.monitor.joined(CheckedWorker(9, KEY, range(1), None), scene.now)
    scene.run(60)
    rank = Rank(9, 0)
    assert not scene.monitor.is_checked(rank)
    assert scene.monitor.next_check_at(rank) is None
    assert scene.monitor.record(rank).state is State.HEALTHY


def report(scene, rank, outcome, believed=True, times=1):
    scene.monitor.reported(OutcomeReport(rank, outcome, times=times), believed, scene.now)
    scene._take()


def test_reports_make_a_check_and_then_a_failure():
    scene = FleetScene(3)
    scene.run(62)
    rank = Rank(0, 0)
    asked = len(scene.engines[rank].asked)
    report(scene, rank, Outcome.FAILURE)
    scene.run(0.2)
    assert len(scene.engines[rank].asked) == asked + 1
    report(scene, rank, Outcome.FAILURE, times=9)
    assert scene.state(rank) is State.SUSPICIOUS
    assert scene.monitor.record(rank).cause is Kind.PASSIVE
    assert scene.monitor.counts.failures == {(0, Kind.PASSIVE): 1}
    assert scene.monitor.next_check_at(rank) == pytest.approx(scene.now + 2.0)


def test_a_report_that_is_not_believed_makes_a_check_and_no_more():
    scene = FleetScene(3)
    scene.run(62)
    rank = Rank(0, 0)
    asked = len(scene.engines[rank].asked)
    for _ in range(100):
        report(scene, rank, Outcome.FATAL, believed=False)
        scene.step()
    assert scene.state(rank) is State.HEALTHY
    assert len(scene.engines[rank].asked) - asked <= 2


def test_a_fatal_report_takes_a_rank_out_at_once_and_moves_what_is_on_it():
    scene = FleetScene(3)
    scene.run(5)
    rank = Rank(0, 0)
    scene.booked[rank] = 23
    report(scene, rank, Outcome.FATAL)
    assert MovesAsked(rank, 23) in scene.effects
    scene.booked[rank] = 0
    scene.run(2)
    assert scene.effects[-1] == Drained(rank)


def test_an_operator_drains_without_checks_and_ends_it():
    scene = FleetScene(3)
    scene.run(60)
    rank = Rank(0, 0)
    scene.monitor.drain(0, scene.now)
    asked = len(scene.engines[rank].asked)
    scene.run(700)
    assert scene.state(rank) is State.DRAINING
    assert len(scene.engines[rank].asked) == asked
    scene.monitor.undrain(0, scene.now)
    scene.run(40)
    assert scene.state(rank) is State.HEALTHY
    assert len(scene.engines[rank].asked) > asked


def test_an_operator_can_have_a_worker_checked_now():
    scene = FleetScene(3)
    scene.run(62)
    asked = len(scene.engines[Rank(0, 0)].asked)
    scene.monitor.check(0, scene.now)
    scene.run(0.2)
    assert len(scene.engines[Rank(0, 0)].asked) == asked + 1


def test_references_are_learnt_kept_and_forgotten():
    scene = FleetScene(4)
    scene.run(100)
    stored = list(scene.monitor.book.stored())
    assert len(stored) == 3
    other = FleetScene(4, seed=1)
    for reference in stored:
        other.monitor.book.restore(reference)
        assert other.monitor.book.source(reference.key) is Source.AGREEMENT
    other.break_ranks("wrong", *other.ranks[:2])
    other.run(100)
    assert other.out_at.keys() == set(other.ranks[:2]), "without votes to win"
    other.monitor.learn("model")
    assert not list(other.monitor.book.stored())


def test_effects_wake_somebody():
    scene = FleetScene(2)
    scene.run(60)
    woken = scene.wakes
    scene.monitor.drain(0, scene.now)
    assert scene.wakes == max(woken, 1)
    assert any(isinstance(e, StateChanged) for e in scene.monitor.take_effects())
    assert scene.monitor.take_effects() == []
