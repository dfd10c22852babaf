"""Tests of health joined with the fleet: weights, reservations, reports and operators' requests."""

import pytest

from select_service.base.errors import Conflict, NoEligibleRank, NotFound
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import Attempt
from select_service.core.health.fleet_health.health_service import HealthService
from select_service.core.health.health_effects import (
    MigrationRequested,
    ReleaseRequested,
    StateChanged,
)
from select_service.core.health.health_kinds import (
    AttemptResult,
    CheckKind,
    RankHealthState,
    RequestOutcome,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank
from select_service.core.load.reservation_move import MoveTarget
from select_service.schemas.health import OutcomeRequest
from tests.builders import a_patch, a_reservation, a_select, a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.core.admission.scenes import pinned

RULES = HealthRules(retries=0)


class EffectRecorder:
    """Follower that records effects."""

    def __init__(self):
        self.current_effects = []

    def on_effect(self, effect, now):
        self.current_effects.append(effect)

    def run_turn(self, now):
        """Ignore the turn: no recorded effect takes turns."""

    def run_every_second(self, now):
        """Ignore the second."""

    def of(self, kind):
        return [effect for effect in self.current_effects if isinstance(effect, kind)]


class Scene:
    """Selector with two workers, and health."""

    def __init__(self, *workers, rules=RULES):
        prompts = default_prompts()
        self.selector = a_selector(
            make_health=lambda fleet, ledger: HealthService(
                rules, lambda key: prompts, fleet, ledger, fleet.dirty
            )
        )
        self.health = self.selector.health
        self.noting = EffectRecorder()
        self.health.listeners.append(self.noting)
        self.now = 0.0
        for worker in workers or (a_worker(1), a_worker(2)):
            self.selector.register_worker(worker)
        self.settle()

    def settle(self, seconds=0.0):
        self.now += seconds
        self.selector.run_pending(self.now)
        self.selector.check_invariants()

    def weight(self, worker_id=1, dp_rank=0):
        table = self.selector.fleet.partitions[KEY].table
        return table.columns.weight[table.find_slot(Rank(worker_id, dp_rank))]

    def state(self, worker_id=1, dp_rank=0):
        return self.health.monitor.record_of(Rank(worker_id, dp_rank)).state

    def reported_failures(self):
        """Return the numbers of trusted and of other reports of failures."""
        counts = self.health.monitor.counters
        return counts.trusted_reports, counts.untrusted_reports

    def report(self, outcome, reservation_id=None, worker_id=1, is_trusted=False, times=1):
        given = OutcomeRequest(outcome=outcome, reservation_id=reservation_id, count=times)
        self.health.process_report(worker_id, given, is_trusted, self.now)
        self.settle()

    def reserve(self, *names, worker_id=1):
        for name in names:
            self.selector.reserve(a_reservation(name, worker_id), self.now)

    def refusal_details(self, fields):
        """Return the error details of a request without an eligible rank."""
        with pytest.raises(NoEligibleRank) as caught:
            self.selector.select(a_select(**fields), self.now)
        return caught.value.details

    def make_checks(self, came):
        """Give worker 1 this result in all due checks; other workers answer busy."""
        while (order := self.health.next_due_check(self.now)) is not None:
            mine = Attempt(came) if order.rank.worker_id == 1 else Attempt(AttemptResult.BUSY)
            assert self.health.process_attempt(order, mine, self.now) is None
        self.settle()


def test_a_rank_with_failing_checks_loses_its_weight_until_it_is_registered_again():
    scene = Scene()
    assert scene.weight() == 1.0
    weights = []
    for _ in range(60):
        scene.settle(1.0)
        scene.make_checks(AttemptResult.HTTP_5XX)
        weights.append(scene.weight())
    assert sorted(set(weights), reverse=True) == [1.0, 0.5, 0.0]
    assert (scene.state(), scene.weight(2)) == (RankHealthState.UNHEALTHY, 1.0)
    moved = [(e.previous_state, e.state) for e in scene.noting.of(StateChanged)]
    assert moved == [
        (RankHealthState.HEALTHY, RankHealthState.SUSPICIOUS),
        (RankHealthState.SUSPICIOUS, RankHealthState.UNHEALTHY),
    ]
    scene.selector.patch_worker(1, a_patch(taints=["a"]))
    scene.settle()
    assert (scene.state(), scene.weight()) == (RankHealthState.UNHEALTHY, 0.0)
    scene.selector.patch_worker(1, a_patch(endpoint="http://elsewhere:8000"))
    scene.settle()
    assert (scene.state(), scene.weight()) == (RankHealthState.HEALTHY, 1.0)
    assert scene.health.times.own[1]["canary"].counts[0] > 2


def test_a_worker_that_gets_other_rows_keeps_its_weight_there():
    scene = Scene(a_worker(1))
    scene.health.drain_worker(1, True, scene.now)
    scene.settle()
    before = scene.selector.fleet.partitions[KEY]
    scene.selector.patch_worker(1, a_patch(block_size=8))
    assert scene.refusal_details({})["states"] == {"draining": 1}, "at once"
    scene.settle()
    assert scene.selector.fleet.partitions[KEY] is not before
    assert (scene.state(), scene.weight()) == (RankHealthState.DRAINING, 0.0)


def test_a_worker_that_is_deleted_or_unfinished_has_no_health():
    scene = Scene()
    scene.selector.delete_worker(1, scene.now)
    scene.settle()
    with pytest.raises(KeyError):
        scene.state()
    with pytest.raises(Conflict, match="worker 1 is unschedulable"):
        scene.health.drain_worker(1, True, scene.now)
    with pytest.raises(NotFound):
        scene.health.drain_worker(7, True, scene.now)
    scene.selector.register_worker(a_worker(3, block_size=0))
    with pytest.raises(Conflict, match=r"worker 3 is incomplete and .* see GET /workers/3"):
        scene.health.check_worker(3, scene.now)


def test_a_drain_requests_moves_of_reservations_unless_they_are_to_stay():
    scene = Scene()
    scene.reserve("a", "b")
    scene.health.drain_worker(1, False, scene.now)
    scene.settle()
    assert (scene.weight(), scene.state()) == (0.0, RankHealthState.DRAINING)
    assert not scene.noting.of(MigrationRequested)
    scene.health.drain_worker(1, True, scene.now)
    scene.settle()
    assert scene.noting.of(MigrationRequested) == [MigrationRequested(Rank(1, 0), 2)]
    for _ in range(301):
        scene.now += 1.0
        scene.health.advance_timers(scene.now)
    scene.settle()
    assert ReleaseRequested(Rank(1, 0), 2) in scene.noting.current_effects
    scene.health.undrain_worker(1, scene.now)
    scene.settle()
    assert (scene.weight(), scene.state()) == (0.25, RankHealthState.HEALTHY)


def test_a_failed_check_moves_reservations_of_all_ranks_behind_the_endpoint():
    scene = Scene(a_worker(1, data_parallel_size=2), a_worker(2))
    asked = []
    while scene.state() is not RankHealthState.DRAINING:
        scene.settle(0.5)
        while (order := scene.health.next_due_check(scene.now)) is not None:
            asked.append(order.rank)
            if order.rank == Rank(1, 0) and not scene.selector.ledger.reservations.find_reservation(
                "b"
            ):
                scene.reserve("a")
                scene.selector.reserve(a_reservation("b", 1, dp_rank=1), scene.now)
            is_lost = order.rank.worker_id == 1
            attempt = Attempt(AttemptResult.CONNECT if is_lost else AttemptResult.BUSY)
            scene.health.process_attempt(order, attempt, scene.now)
        scene.settle()
    for dp_rank in (0, 1):
        assert scene.state(1, dp_rank) is RankHealthState.DRAINING
        assert MigrationRequested(Rank(1, dp_rank), 1) in scene.noting.current_effects


def test_reservations_booked_before_the_weight_of_a_lost_rank_applied_leave_too():
    scene = Scene()
    scene.health.process_report(1, OutcomeRequest(outcome="fatal"), True, scene.now)
    assert scene.state() is RankHealthState.UNHEALTHY
    scene.reserve("late")
    scene.settle()
    assert scene.noting.of(MigrationRequested) == [MigrationRequested(Rank(1, 0), 1)]


def test_a_spare_gets_no_requests_from_its_registration_on():
    scene = Scene(a_worker(1))
    scene.selector.register_worker(a_worker(2, spare=True))
    assert scene.refusal_details(pinned(2))["state"] == "spare"
    scene.settle()
    assert (scene.weight(1), scene.weight(2)) == (1.0, 0.0)


def test_a_spare_has_no_weight_until_a_rank_fails():
    scene = Scene(a_worker(1), a_worker(2, spare=True))
    assert (scene.weight(1), scene.weight(2)) == (1.0, 0.0)
    scene.report(RequestOutcome.FATAL, is_trusted=True)
    assert (scene.weight(1), scene.weight(2)) == (0.0, 1.0)


def test_the_error_shows_the_present_state():
    scene = Scene(a_worker(1), a_worker(2, spare=True))
    scene.health.drain_worker(1, False, scene.now)
    scene.settle()
    assert scene.refusal_details(pinned(2))["state"] == "spare"
    assert scene.refusal_details({})["states"] == {"draining": 1, "spare": 1}


def test_an_ejected_rank_with_reservations_is_shown_as_draining():
    scene = Scene()
    scene.reserve("a")
    scene.report(RequestOutcome.FATAL, "a")
    assert scene.refusal_details(pinned(1))["state"] == "draining"


def test_failures_count_with_reservations_that_are_or_were_on_the_rank():
    scene = Scene()
    scene.reserve("a", "b", "c")
    scene.selector.free_reservation("c", scene.now)
    for name in ("a", "b", "c"):
        scene.report(RequestOutcome.FAILURE, name)
    record = scene.health.monitor.record_of(Rank(1, 0))
    assert (record.state, record.cause) == (RankHealthState.SUSPICIOUS, CheckKind.PASSIVE)
    assert scene.reported_failures() == (3, 0)


def test_failures_without_evidence_cause_a_check_and_no_more():
    scene = Scene()
    scene.reserve("elsewhere", worker_id=2)
    scene.reserve("a")
    for name in (None, "unknown", "elsewhere", "elsewhere"):
        scene.report(RequestOutcome.FAILURE, name)
        scene.report(RequestOutcome.FATAL, name)
    scene.report(RequestOutcome.FAILURE, "a", times=3)
    scene.report(RequestOutcome.FAILURE, "a")
    assert scene.state() is RankHealthState.HEALTHY
    assert scene.health.next_due_check(scene.now).rank == Rank(1, 0)
    assert scene.reported_failures() == (1, 9)


def test_a_trusted_reporter_needs_no_evidence():
    scene = Scene()
    scene.report(RequestOutcome.FAILURE, is_trusted=True, times=3)
    assert scene.state() is RankHealthState.SUSPICIOUS
    scene.report(RequestOutcome.FATAL, is_trusted=True)
    assert (scene.state(), scene.weight()) == (RankHealthState.UNHEALTHY, 0.0)


def test_a_moved_reservation_is_evidence_about_its_former_rank():
    scene = Scene()
    scene.reserve("a", "b")
    slot = scene.selector.fleet.partitions[KEY].table.find_slot(Rank(2, 0))
    booking = scene.selector.ledger.reservations.get_reservation("a")
    scene.selector.ledger.move(booking, MoveTarget(Rank(2, 0), slot), scene.now)
    scene.report(RequestOutcome.FATAL, "a")
    assert (scene.state(1), scene.state(2)) == (RankHealthState.DRAINING, RankHealthState.HEALTHY)
    scene.report(RequestOutcome.FATAL, "b", worker_id=2)
    assert scene.state(2) is RankHealthState.HEALTHY


def test_evidence_of_an_ended_reservation_is_too_old_after_ten_minutes():
    scene = Scene()
    scene.reserve("a")
    scene.selector.free_reservation("a", scene.now)
    scene.now += 601.0
    scene.report(RequestOutcome.FATAL, "a")
    assert scene.state() is RankHealthState.HEALTHY


def test_reports_about_ranks_that_are_not_there_are_refused():
    scene = Scene()
    for rank in (Rank(1, 1), Rank(9, 0)):
        given = OutcomeRequest(outcome="failure", dp_rank=rank.dp_rank)
        with pytest.raises(NotFound):
            scene.health.process_report(rank.worker_id, given, False, scene.now)


def test_only_a_served_model_can_be_learnt_again():
    scene = Scene()
    scene.health.forget_references("m")
    with pytest.raises(NotFound, match="model `other` not found"):
        scene.health.forget_references("other")


def test_a_worker_without_an_http_endpoint_cannot_be_checked():
    scene = Scene(a_worker(1, endpoint="nats://a.b"))
    with pytest.raises(Conflict, match="worker 1 has no health checks"):
        scene.health.check_worker(1, scene.now)
    assert (scene.weight(), scene.state()) == (1.0, RankHealthState.HEALTHY)


def test_the_health_task_is_due_only_if_enabled():
    assert "health" in {task.name for task in Scene().selector.periodic_tasks()}
    assert "health" not in {task.name for task in a_selector().periodic_tasks()}


def test_effects_of_a_wide_worker_take_turns_in_order():
    scene = Scene(a_worker(1), a_worker(2, data_parallel_size=1000))
    scene.health.drain_worker(2, True, scene.now)
    turns = 0
    while scene.weight(2, 999) > 0.0:
        scene.settle()
        turns += 1
    assert turns > 1
    drained = [effect.rank.dp_rank for effect in scene.noting.of(StateChanged)]
    assert drained == list(range(1000))
    assert scene.health.check_invariants() is None


def test_workers_that_come_together_join_a_few_a_turn():
    scene = Scene()
    for worker_id in range(10, 20):
        scene.selector.register_worker(a_worker(worker_id, data_parallel_size=40))
    joined = []
    while len(joined) < 10:
        known = [n for n in range(10, 20) if scene.health.monitor.find_worker(n) is not None]
        assert len(known) - len(joined) <= 3
        joined = known
        scene.settle()
    scene.selector.register_worker(a_worker(30, data_parallel_size=40))
    scene.health.drain_worker(30, True, scene.now)
    scene.settle()
    assert scene.state(30, 39) is RankHealthState.DRAINING
