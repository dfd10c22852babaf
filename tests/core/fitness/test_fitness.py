"""Health joined with the fleet: weights, reservations, reports and what operators ask for."""

import pytest

from select_service.bodies.health import OutcomeRequest
from select_service.core.fitness.fitness import Fitness
from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.checked import Attempt
from select_service.core.health.effects import MovesAsked, ReleaseAsked, StateChanged
from select_service.core.health.kinds import Came, Kind, Outcome, State
from select_service.core.health.rules import HealthRules
from select_service.core.identity import Rank
from select_service.core.load.moving import MoveTo
from select_service.errors import Conflict, NoEligibleRank, NotFound
from tests.builders import a_patch, a_reservation, a_select, a_selector, a_worker
from tests.core.admission.scenes import pinned
from tests.core.selector_scenes import KEY

RULES = HealthRules(retries=0)


class Noting:
    """Follows, and notes."""

    def __init__(self):
        self.effects = []

    def follow(self, effect, now):
        self.effects.append(effect)

    def settle(self, now):
        """Nothing was noted that takes turns."""

    def tick(self, now):
        """Nothing is due."""

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]


class Scene:
    """A selector with two workers, and health."""

    def __init__(self, *workers, rules=RULES):
        self.selector = a_selector()
        prompts = default_prompts()
        self.fitness = self.selector.fitness = Fitness(
            rules,
            lambda key: prompts,
            self.selector.fleet,
            self.selector.ledger,
            self.selector.touched,
        )
        self.noting = Noting()
        self.fitness.followers.append(self.noting)
        self.now = 0.0
        for worker in workers or (a_worker(1), a_worker(2)):
            self.selector.register(worker)
        self.settle()

    def settle(self, seconds=0.0):
        self.now += seconds
        self.selector.settle(self.now)
        self.selector.check_invariants()

    def weight(self, worker_id=1, dp_rank=0):
        table = self.selector.fleet.partitions[KEY].table
        return table.columns.weight[table.find(Rank(worker_id, dp_rank))]

    def state(self, worker_id=1, dp_rank=0):
        return self.fitness.monitor.record(Rank(worker_id, dp_rank)).state

    def report(self, outcome, reservation_id=None, worker_id=1, is_trusted=False, times=1):
        given = OutcomeRequest(outcome=outcome, reservation_id=reservation_id, count=times)
        self.fitness.reported(worker_id, given, is_trusted, self.now)
        self.settle()

    def reserve(self, *names, worker_id=1):
        for name in names:
            self.selector.reserve(a_reservation(name, worker_id), self.now)

    def refused(self, fields):
        """What a request is told that nobody may serve."""
        with pytest.raises(NoEligibleRank) as caught:
            self.selector.select(a_select(**fields), self.now)
        return caught.value.details

    def make_checks(self, came):
        """All that are due are answered so by the worker 1, the others are not judged."""
        while (order := self.fitness.due(self.now)) is not None:
            mine = Attempt(came) if order.rank.worker_id == 1 else Attempt(Came.BUSY)
            assert self.fitness.attempted(order, mine, self.now) is None
        self.settle()


def test_a_rank_whose_checks_fail_loses_its_weight_and_finds_it_again_when_it_is_registered():
    scene = Scene()
    assert scene.weight() == 1.0
    weights = []
    for _ in range(60):
        scene.settle(1.0)
        scene.make_checks(Came.HTTP_5XX)
        weights.append(scene.weight())
    assert sorted(set(weights), reverse=True) == [1.0, 0.5, 0.0]
    assert (scene.state(), scene.weight(2)) == (State.UNHEALTHY, 1.0)
    moved = [(e.was, e.state) for e in scene.noting.of(StateChanged)]
    assert moved == [
        (State.HEALTHY, State.SUSPICIOUS),
        (State.SUSPICIOUS, State.UNHEALTHY),
    ]
    scene.selector.patch(1, a_patch(taints=["a"]))
    scene.settle()
    assert (scene.state(), scene.weight()) == (State.UNHEALTHY, 0.0)
    scene.selector.patch(1, a_patch(endpoint="http://elsewhere:8000"))
    scene.settle()
    assert (scene.state(), scene.weight()) == (State.HEALTHY, 1.0)
    assert scene.fitness.times.own[1]["canary"].counts[0] > 2


def test_a_worker_that_gets_other_rows_keeps_its_weight_there():
    scene = Scene(a_worker(1))
    scene.fitness.drain(1, True, scene.now)
    scene.settle()
    before = scene.selector.fleet.partitions[KEY]
    scene.selector.patch(1, a_patch(block_size=8))
    assert scene.refused({})["states"] == {"draining": 1}, "at once"
    scene.settle()
    assert scene.selector.fleet.partitions[KEY] is not before
    assert (scene.state(), scene.weight()) == (State.DRAINING, 0.0)


def test_a_worker_that_is_deleted_or_unfinished_has_no_health():
    scene = Scene()
    scene.selector.delete(1, scene.now)
    scene.settle()
    with pytest.raises(KeyError):
        scene.state()
    with pytest.raises(Conflict, match="worker 1 is unschedulable"):
        scene.fitness.drain(1, True, scene.now)
    with pytest.raises(NotFound):
        scene.fitness.drain(7, True, scene.now)
    scene.selector.register(a_worker(3, block_size=0))
    with pytest.raises(Conflict, match=r"worker 3 is incomplete: .* GET /workers/3 says why"):
        scene.fitness.check(3, scene.now)


def test_a_drain_asks_for_moves_of_what_is_booked_unless_it_is_to_stay():
    scene = Scene()
    scene.reserve("a", "b")
    scene.fitness.drain(1, False, scene.now)
    scene.settle()
    assert (scene.weight(), scene.state()) == (0.0, State.DRAINING)
    assert not scene.noting.of(MovesAsked)
    scene.fitness.drain(1, True, scene.now)
    scene.settle()
    assert scene.noting.of(MovesAsked) == [MovesAsked(Rank(1, 0), 2)]
    for _ in range(301):
        scene.now += 1.0
        scene.fitness.tick(scene.now)
    scene.settle()
    assert ReleaseAsked(Rank(1, 0), 2) in scene.noting.effects
    scene.fitness.undrain(1, scene.now)
    scene.settle()
    assert (scene.weight(), scene.state()) == (0.25, State.HEALTHY)


def test_what_is_booked_on_ranks_behind_a_lost_endpoint_leaves_whichever_of_them_was_asked():
    scene = Scene(a_worker(1, data_parallel_size=2), a_worker(2))
    asked = []
    while scene.state() is not State.DRAINING:
        scene.settle(0.5)
        while (order := scene.fitness.due(scene.now)) is not None:
            asked.append(order.rank)
            if order.rank == Rank(1, 0) and not scene.selector.held.find("b"):
                scene.reserve("a")
                scene.selector.reserve(a_reservation("b", 1, dp_rank=1), scene.now)
            is_lost = order.rank.worker_id == 1
            attempt = Attempt(Came.CONNECT if is_lost else Came.BUSY)
            scene.fitness.attempted(order, attempt, scene.now)
        scene.settle()
    for dp_rank in (0, 1):
        assert scene.state(1, dp_rank) is State.DRAINING
        assert MovesAsked(Rank(1, dp_rank), 1) in scene.noting.effects


def test_what_was_booked_before_the_weight_of_a_lost_rank_was_in_force_leaves_too():
    scene = Scene()
    scene.fitness.reported(1, OutcomeRequest(outcome="fatal"), True, scene.now)
    assert scene.state() is State.UNHEALTHY
    scene.reserve("late")
    scene.settle()
    assert scene.noting.of(MovesAsked) == [MovesAsked(Rank(1, 0), 1)]


def test_a_spare_gets_nothing_from_the_moment_on_that_it_is_registered():
    scene = Scene(a_worker(1))
    scene.selector.register(a_worker(2, spare=True))
    assert scene.refused(pinned(2))["state"] == "spare"
    scene.settle()
    assert (scene.weight(1), scene.weight(2)) == (1.0, 0.0)


def test_a_spare_has_no_weight_until_a_rank_fails():
    scene = Scene(a_worker(1), a_worker(2, spare=True))
    assert (scene.weight(1), scene.weight(2)) == (1.0, 0.0)
    scene.report(Outcome.FATAL, is_trusted=True)
    assert (scene.weight(1), scene.weight(2)) == (0.0, 1.0)


def test_who_is_refused_is_told_the_state_of_now():
    scene = Scene(a_worker(1), a_worker(2, spare=True))
    scene.fitness.drain(1, False, scene.now)
    scene.settle()
    assert scene.refused(pinned(2))["state"] == "spare"
    assert scene.refused({})["states"] == {"draining": 1, "spare": 1}


def test_a_rank_that_drains_after_it_was_taken_out_is_shown_so():
    scene = Scene()
    scene.reserve("a")
    scene.report(Outcome.FATAL, "a")
    assert scene.refused(pinned(1))["state"] == "draining"


# --- reports


def test_failures_count_with_reservations_that_are_or_were_on_the_rank():
    scene = Scene()
    scene.reserve("a", "b", "c")
    scene.selector.free("c", scene.now)
    for name in ("a", "b", "c"):
        scene.report(Outcome.FAILURE, name)
    record = scene.fitness.monitor.record(Rank(1, 0))
    assert (record.state, record.cause) == (State.SUSPICIOUS, Kind.PASSIVE)
    assert scene.fitness.reports.counts == (3, 0)


def test_failures_without_evidence_cause_a_check_and_no_more():
    scene = Scene()
    scene.reserve("elsewhere", worker_id=2)
    scene.reserve("a")
    for name in (None, "unknown", "elsewhere", "elsewhere"):
        scene.report(Outcome.FAILURE, name)
        scene.report(Outcome.FATAL, name)
    scene.report(Outcome.FAILURE, "a", times=3)
    scene.report(Outcome.FAILURE, "a")
    assert scene.state() is State.HEALTHY
    assert scene.fitness.due(scene.now).rank == Rank(1, 0)
    assert scene.fitness.reports.counts == (1, 9)


def test_who_is_trusted_needs_no_evidence():
    scene = Scene()
    scene.report(Outcome.FAILURE, is_trusted=True, times=3)
    assert scene.state() is State.SUSPICIOUS
    scene.report(Outcome.FATAL, is_trusted=True)
    assert (scene.state(), scene.weight()) == (State.UNHEALTHY, 0.0)


def test_a_reservation_that_has_moved_is_evidence_about_the_rank_that_it_left():
    scene = Scene()
    scene.reserve("a", "b")
    slot = scene.selector.fleet.partitions[KEY].table.find(Rank(2, 0))
    booking = scene.selector.held.get("a")
    scene.selector.ledger.move(booking, MoveTo(Rank(2, 0), slot), scene.now)
    scene.report(Outcome.FATAL, "a")
    assert (scene.state(1), scene.state(2)) == (State.DRAINING, State.HEALTHY)
    scene.report(Outcome.FATAL, "b", worker_id=2)
    assert scene.state(2) is State.HEALTHY


def test_evidence_of_an_ended_reservation_is_too_old_after_ten_minutes():
    scene = Scene()
    scene.reserve("a")
    scene.selector.free("a", scene.now)
    scene.now += 601.0
    scene.report(Outcome.FATAL, "a")
    assert scene.state() is State.HEALTHY


def test_reports_about_ranks_that_are_not_there_are_refused():
    scene = Scene()
    for rank in (Rank(1, 1), Rank(9, 0)):
        given = OutcomeRequest(outcome="failure", dp_rank=rank.dp_rank)
        with pytest.raises(NotFound):
            scene.fitness.reported(rank.worker_id, given, False, scene.now)


def test_only_a_model_that_is_served_can_be_learnt_anew():
    scene = Scene()
    scene.fitness.learn("m")
    with pytest.raises(NotFound, match="model `other` not found"):
        scene.fitness.learn("other")


def test_a_worker_whose_endpoint_is_not_for_http_cannot_be_checked():
    scene = Scene(a_worker(1, endpoint="nats://a.b"))
    with pytest.raises(Conflict, match="worker 1 is not checked"):
        scene.fitness.check(1, scene.now)
    assert (scene.weight(), scene.state()) == (1.0, State.HEALTHY)


def test_health_is_a_task_that_is_due_only_where_it_is_on():
    assert "health" in {task.name for task in Scene().selector.upkeep()}
    assert "health" not in {task.name for task in a_selector().upkeep()}


def test_what_follows_from_a_wide_worker_takes_turns_in_its_order():
    scene = Scene(a_worker(1), a_worker(2, data_parallel_size=1000))
    scene.fitness.drain(2, True, scene.now)
    turns = 0
    while scene.weight(2, 999) > 0.0:
        scene.settle()
        turns += 1
    assert turns > 1
    drained = [effect.rank.dp_rank for effect in scene.noting.of(StateChanged)]
    assert drained == list(range(1000))
    assert scene.fitness.check_invariants() is None


def test_workers_that_come_together_join_a_few_a_turn():
    scene = Scene()
    for worker_id in range(10, 20):
        scene.selector.register(a_worker(worker_id, data_parallel_size=40))
    joined = []
    while len(joined) < 10:
        known = [n for n in range(10, 20) if scene.fitness.monitor.worker(n) is not None]
        assert len(known) - len(joined) <= 3
        joined = known
        scene.settle()
    scene.selector.register(a_worker(30, data_parallel_size=40))
    scene.fitness.drain(30, True, scene.now)
    scene.settle()
    assert scene.state(30, 39) is State.DRAINING
