"""Tests of the monitor's inputs: registrations, reports of callers, and operators' requests."""

import pytest

from select_service.core.health.answers.reference_answers import ReferenceSource
from select_service.core.health.checks.check_state import CheckedWorker
from select_service.core.health.health_effects import (
    DrainFinished,
    MigrationRequested,
    RankReset,
    StateChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState, RequestOutcome
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import Rank
from tests.builders.fleet_scene import KEY, FleetScene


def test_workers_can_share_an_endpoint():
    scene = FleetScene(4)
    for worker_id in (0, 1):
        scene.monitor.register_worker(CheckedWorker(worker_id, KEY, range(1), "http://both"), 0.0)
    scene.run(100)
    scene.break_ranks("connect", Rank(0, 0), Rank(1, 0))
    scene.run(40)
    first, second = scene.out_at.values()
    assert first == second
    assert scene.monitor.counters.failures == {(0, CheckKind.CONNECT): 3, (1, CheckKind.CONNECT): 3}
    assert (
        scene.monitor.counters.transitions[RankHealthState.SUSPICIOUS, RankHealthState.UNHEALTHY]
        == 2
    )
    scene.monitor.remove_worker(0)
    assert scene.monitor.counters.failures == {(1, CheckKind.CONNECT): 3}


def test_a_new_registration_resets_the_state_even_during_a_check():
    scene = FleetScene(3)
    scene.run(60)
    sick = Rank(0, 0)
    scene.break_ranks("hang", sick)
    while (
        len(scene.monitor._checking._running) == 0 or scene.state(sick) is RankHealthState.HEALTHY
    ):
        scene.step()
    scene.join(0)
    scene._take()
    assert RankReset(sick) in scene.current_effects
    scene.run(60)
    assert scene.state(sick) is RankHealthState.HEALTHY
    assert scene.monitor.record_of(sick).failures == 0
    assert sick not in scene.out_at


def test_a_leaving_worker_is_forgotten_and_its_check_ends_without_effect():
    scene = FleetScene(2)
    scene.run(31)
    while not scene.in_flight:
        scene.step()
    for worker_id in (0, 1):
        scene.monitor.remove_worker(worker_id)
    scene.engines.clear()
    scene.run(10)
    assert scene.in_flight == 0
    assert not list(scene.monitor.iterate_partitions())
    scene.monitor.remove_worker(0)


def test_a_worker_without_an_endpoint_is_healthy_and_never_checked():
    scene = FleetScene(2)
    scene.monitor.register_worker(CheckedWorker(9, KEY, range(1), None), scene.now)
    scene.run(60)
    rank = Rank(9, 0)
    assert not scene.monitor.is_checked(rank)
    assert scene.monitor.next_check_at(rank) is None
    assert scene.monitor.record_of(rank).state is RankHealthState.HEALTHY


def report(scene, rank, outcome, believed=True, times=1):
    scene.monitor.process_report(OutcomeReport(rank, outcome, times=times), believed, scene.now)
    scene._take()


def test_reports_make_a_check_and_then_a_failure():
    scene = FleetScene(3)
    scene.run(62)
    rank = Rank(0, 0)
    asked = len(scene.engines[rank].asked)
    report(scene, rank, RequestOutcome.FAILURE)
    scene.run(0.2)
    assert len(scene.engines[rank].asked) == asked + 1
    report(scene, rank, RequestOutcome.FAILURE, times=9)
    assert scene.state(rank) is RankHealthState.SUSPICIOUS
    assert scene.monitor.record_of(rank).cause is CheckKind.PASSIVE
    assert scene.monitor.counters.failures == {(0, CheckKind.PASSIVE): 1}
    assert scene.monitor.next_check_at(rank) == pytest.approx(scene.now + 2.0)


def test_an_untrusted_report_only_triggers_a_check():
    scene = FleetScene(3)
    scene.run(62)
    rank = Rank(0, 0)
    asked = len(scene.engines[rank].asked)
    for _ in range(100):
        report(scene, rank, RequestOutcome.FATAL, believed=False)
        scene.step()
    assert scene.state(rank) is RankHealthState.HEALTHY
    assert len(scene.engines[rank].asked) - asked <= 2


def test_a_fatal_report_ejects_a_rank_at_once_and_moves_its_reservations():
    scene = FleetScene(3)
    scene.run(5)
    rank = Rank(0, 0)
    scene.booked[rank] = 23
    report(scene, rank, RequestOutcome.FATAL)
    assert MigrationRequested(rank, 23) in scene.current_effects
    scene.booked[rank] = 0
    scene.run(2)
    assert scene.current_effects[-1] == DrainFinished(rank)


def test_an_operator_drains_without_checks_and_ends_it():
    scene = FleetScene(3)
    scene.run(60)
    rank = Rank(0, 0)
    scene.monitor.drain_ranks(0, scene.now)
    asked = len(scene.engines[rank].asked)
    scene.run(700)
    assert scene.state(rank) is RankHealthState.DRAINING
    assert len(scene.engines[rank].asked) == asked
    scene.monitor.undrain_ranks(0, scene.now)
    scene.run(40)
    assert scene.state(rank) is RankHealthState.HEALTHY
    assert len(scene.engines[rank].asked) > asked


def test_an_operator_can_have_a_worker_checked_now():
    scene = FleetScene(3)
    scene.run(62)
    asked = len(scene.engines[Rank(0, 0)].asked)
    scene.monitor.check_worker(0, scene.now)
    scene.run(0.2)
    assert len(scene.engines[Rank(0, 0)].asked) == asked + 1


def test_references_are_learnt_kept_and_forgotten():
    scene = FleetScene(4)
    scene.run(100)
    stored = list(scene.monitor.references.iterate_stored())
    assert len(stored) == 3
    other = FleetScene(4, seed=1)
    for reference in stored:
        other.monitor.references.restore_reference(reference)
        assert other.monitor.references.source_of(reference.key) is ReferenceSource.AGREEMENT
    other.break_ranks("wrong", *other.ranks[:2])
    other.run(100)
    assert other.out_at.keys() == set(other.ranks[:2]), "without votes to win"
    other.monitor.forget_references("model")
    assert not list(other.monitor.references.iterate_stored())


def test_effects_request_a_turn():
    scene = FleetScene(2)
    scene.run(60)
    woken = scene.wakes
    scene.monitor.drain_ranks(0, scene.now)
    assert scene.wakes == max(woken, 1)
    assert any(isinstance(e, StateChanged) for e in scene.monitor.take_effects())
    assert scene.monitor.take_effects() == []
