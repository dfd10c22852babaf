"""Tests of the actions for workers of a source, against a naive catalog."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.core.registry.discovery.reconciler import (
    GRACE_S,
    OPERATOR_OWNER,
    AddWorker,
    DrainWorker,
    Reconciler,
    RemoveWorker,
    UndrainWorker,
    UpdateWorker,
)
from select_service.schemas.workers import WorkerPatch
from tests.builders import a_patch, a_worker

DRAIN_S = 60.0


class Shelf:
    """Catalog of registrations, with a mark on workers with reservations."""

    def __init__(self):
        self.workers = {}
        self.booked = set()
        self.draining = set()

    def registration_of(self, worker_id):
        return self.workers.get(worker_id)

    def has_no_reservations(self, worker_id):
        return worker_id not in self.booked

    def patch(self, worker_id, patch):
        changes = {k: v for k, v in msgspec.structs.asdict(patch).items() if v is not None}
        self.workers[worker_id] = msgspec.structs.replace(self.workers[worker_id], **changes)

    def apply_changes(self, action):
        match action:
            case AddWorker(_, given):
                assert given.worker_id not in self.workers
                self.workers[given.worker_id] = given
            case UpdateWorker(_, worker_id, WorkerPatch() as change, _):
                self.patch(worker_id, change)
            case UpdateWorker(_, worker_id, change, _):
                self.workers[worker_id] = change
            case DrainWorker(_, worker_id):
                assert worker_id not in self.draining
                self.draining.add(worker_id)
            case UndrainWorker(_, worker_id):
                self.draining.remove(worker_id)
            case RemoveWorker(_, worker_id):
                del self.workers[worker_id]
                self.draining.discard(worker_id)


class Scene:
    def __init__(self, *sources):
        self.shelf = Shelf()
        self.following = Reconciler(sources or ("a",), self.shelf, DRAIN_S)
        self.now = 0.0

    def offer(self, source, *workers):
        self.following.set_desired(source, {each.worker_id: each for each in workers})
        return self.run()

    def run(self, after=0.0):
        """Run every pending action; return the names of the actions."""
        self.now += after
        self.following.queue_all()
        done = []
        while self.following.n_pending:
            action = self.following.next_action(self.now, 3)
            if action is not None:
                assert self.following.is_current(action)
                self.shelf.apply_changes(action)
                self.following.record_done(action, self.now)
                done.append(type(action).__name__)
                assert len(done) < 100
        return done

    def counts(self, source="a"):
        return self.following.counts_by_source(10)[source]


def test_workers_come_change_and_go():
    scene = Scene()
    assert scene.offer("a", a_worker(1), a_worker(2)) == ["AddWorker", "AddWorker"]
    assert scene.offer("a", a_worker(1), a_worker(2)) == []
    assert scene.offer("a", a_worker(1, block_size=8), a_worker(2)) == ["UpdateWorker"]
    assert scene.shelf.workers[1].block_size == 8
    assert scene.offer("a", a_worker(2)) == ["DrainWorker"]
    assert scene.run(after=GRACE_S) == ["RemoveWorker"]
    assert set(scene.shelf.workers) == {2}


def test_a_worker_leaves_when_it_is_empty_or_after_a_time():
    scene = Scene()
    scene.offer("a", a_worker(1), a_worker(2))
    scene.shelf.booked = {1, 2}
    assert scene.offer("a") == ["DrainWorker", "DrainWorker"]
    assert scene.run(after=DRAIN_S / 2) == []
    assert scene.counts().leaving == 2
    scene.shelf.booked = {2}
    assert scene.run() == ["RemoveWorker"]
    assert scene.run(after=DRAIN_S / 2) == ["RemoveWorker"]


def test_a_worker_that_is_listed_again_serves_again():
    scene = Scene()
    scene.offer("a", a_worker(1))
    scene.shelf.booked = {1}
    scene.offer("a")
    assert scene.offer("a", a_worker(1, block_size=8)) == ["UndrainWorker", "UpdateWorker"]
    assert scene.counts().leaving == 0


def test_only_fields_that_the_source_changed_are_patched():
    scene = Scene()
    scene.offer("a", a_worker(1))
    scene.shelf.patch(1, a_patch(taints=["sick"], block_size=32))
    assert scene.run() == []
    assert scene.counts().patched == [1]
    scene.offer("a", a_worker(1, block_size=8))
    assert scene.shelf.workers[1] == a_worker(1, block_size=8, taints=["sick"])
    scene.offer("a", a_worker(1, block_size=8, taints=["well"]))
    assert scene.shelf.workers[1].taints == ["well"]
    assert scene.counts().patched == []


@pytest.mark.parametrize(
    ("before", "after", "is_patch"),
    [
        ({}, {"metrics_endpoint": "http://m"}, True),
        ({"metrics_endpoint": "http://m"}, {}, False),
        ({"taints": ["a"]}, {}, True),
        ({}, {"model_name": "other"}, False),
        ({}, {"tenant_id": "t"}, False),
        ({"kv_events_endpoints": {0: "tcp://a:1"}}, {}, True),
    ],
)
def test_changes_beyond_a_patch_register_the_whole_record(before, after, is_patch):
    scene = Scene()
    scene.offer("a", a_worker(1, **before))
    scene.following.set_desired("a", {1: a_worker(1, **after)})
    action = scene.following.next_action(0.0, 1)
    assert isinstance(action.change, WorkerPatch) == is_patch
    scene.shelf.apply_changes(action)
    assert scene.shelf.workers[1] == a_worker(1, **after)


def test_workers_registered_by_hand_are_not_touched():
    scene = Scene()
    scene.shelf.workers[1] = a_worker(1)
    assert scene.offer("a", a_worker(1, block_size=8)) == []
    assert scene.counts().conflicts == {1: OPERATOR_OWNER}
    assert scene.following.owner_of(1) is None
    assert scene.offer("a") == []
    assert scene.counts().n_conflicts == 0
    scene.offer("a", a_worker(1, block_size=8))
    del scene.shelf.workers[1]
    assert scene.run() == ["AddWorker"]
    assert scene.counts().n_conflicts == 0


def test_a_worker_deleted_by_hand_stays_away_until_its_source_changes():
    scene = Scene()
    scene.offer("a", a_worker(1))
    del scene.shelf.workers[1]
    assert scene.run() == []
    assert (scene.counts().deleted, scene.counts().owned) == ([1], 0)
    assert scene.offer("a", a_worker(1, block_size=8)) == ["AddWorker"]
    del scene.shelf.workers[1]
    scene.offer("a")
    assert scene.offer("a", a_worker(1, block_size=8)) == ["AddWorker"]
    assert scene.counts().deleted == []


def test_an_empty_worker_listed_again_within_the_grace_has_lost_nothing():
    scene = Scene()
    scene.offer("a", a_worker(1))
    assert scene.offer("a") == ["DrainWorker"]
    assert scene.run(after=GRACE_S / 2) == []
    assert scene.offer("a", a_worker(1)) == ["UndrainWorker"]


def test_undecided_workers_of_a_source_stay_unchanged():
    scene = Scene()
    scene.offer("a", a_worker(1), a_worker(2))
    scene.following.set_desired("a", {}, frozenset({1, 3}))
    assert scene.run() == ["DrainWorker"]
    assert scene.shelf.draining == {2}
    assert scene.run(after=DRAIN_S) == ["RemoveWorker"]
    assert set(scene.shelf.workers) == {1}
    assert scene.offer("a", a_worker(3)) == ["AddWorker", "DrainWorker"]


def test_an_operator_may_take_a_deleted_worker_over():
    scene = Scene()
    scene.offer("a", a_worker(1))
    assert scene.following.owner_of(1) == "a"
    del scene.shelf.workers[1]
    assert scene.following.owner_of(1) is None
    scene.following.release_ownership(1)
    scene.shelf.workers[1] = a_worker(1, block_size=8)
    assert scene.run() == []
    assert scene.counts().conflicts == {1: OPERATOR_OWNER}


def test_the_first_of_two_sources_keeps_an_id_and_the_other_takes_it_over():
    scene = Scene("a", "b")
    scene.offer("b", a_worker(1))
    assert scene.offer("a", a_worker(1, block_size=8)) == []
    assert scene.counts("a").conflicts == {1: "b"}
    assert scene.offer("b") == ["UpdateWorker"]
    assert (scene.following.owner_of(1), scene.shelf.workers[1].block_size) == ("a", 8)
    assert scene.counts("a").n_conflicts == scene.counts("b").n_conflicts == 0


def test_rejected_actions_are_reported_and_retried_at_the_next_look():
    scene = Scene()
    scene.following.set_desired("a", {1: a_worker(1)})
    action = scene.following.next_action(0.0, 1)
    assert scene.following.record_refusal(action, "full")
    assert not scene.following.record_refusal(action, "full")
    assert (scene.following.n_pending, scene.counts().refused) == (0, {1: "full"})
    assert scene.run() == ["AddWorker"]
    assert scene.counts().n_refused == 0


def test_an_action_is_outdated_after_a_registration_by_hand():
    scene = Scene()
    scene.following.set_desired("a", {1: a_worker(1)})
    action = scene.following.next_action(0.0, 1)
    scene.shelf.workers[1] = a_worker(1, block_size=8)
    assert not scene.following.is_current(action)
    scene.following.requeue_action(action)
    assert scene.run() == []


def test_workers_of_before_a_restart_wait_for_the_first_reading():
    scene = Scene()
    for worker_id in (1, 2):
        scene.shelf.workers[worker_id] = a_worker(worker_id)
        scene.following.restore_ownership("a", a_worker(worker_id))
    assert scene.run() == []
    assert scene.offer("a", a_worker(1)) == ["DrainWorker"]
    assert scene.run(after=GRACE_S) == ["RemoveWorker"]


IDS = st.integers(1, 4)
BODIES = st.builds(
    lambda worker_id, block_size, fields: a_worker(worker_id, block_size=block_size, **fields),
    IDS,
    st.sampled_from([8, 16]),
    st.sampled_from([{}, {"metrics_endpoint": "http://m"}, {"taints": ["t"]}]),
)


class FollowingMatchesModel(RuleBasedStateMachine):
    """Comparison with a model of operators' changes and each source's later records."""

    def __init__(self):
        super().__init__()
        self.scene = Scene("a", "b")
        self.by_hand = {}
        self.said = {"a": {}, "b": {}}

    @property
    def shelf(self):
        return self.scene.shelf

    @rule(source=st.sampled_from("ab"), workers=st.lists(BODIES, max_size=4))
    def list_workers_of(self, source, workers):
        self.said[source] = {each.worker_id: each for each in workers}
        self.scene.following.set_desired(source, dict(self.said[source]))

    @rule(body=BODIES)
    def post(self, body):
        if self.scene.following.owner_of(body.worker_id) is None:
            self.scene.following.release_ownership(body.worker_id)
            self.shelf.workers[body.worker_id] = self.by_hand[body.worker_id] = body

    @rule(worker_id=IDS)
    def delete_worker(self, worker_id):
        self.shelf.workers.pop(worker_id, None)
        self.shelf.draining.discard(worker_id)
        self.by_hand.pop(worker_id, None)

    @rule(worker_id=IDS, block_size=st.sampled_from([8, 16, 32]))
    def patch(self, worker_id, block_size):
        if worker_id in self.shelf.workers:
            self.shelf.patch(worker_id, a_patch(block_size=block_size))
        if worker_id in self.by_hand:
            self.by_hand[worker_id] = self.shelf.workers[worker_id]

    @rule(worker_ids=st.sets(IDS))
    def book(self, worker_ids):
        self.shelf.booked = worker_ids

    @rule()
    def let_all_leave(self):
        self.settle(0.0)
        self.shelf.booked = set()
        self.settle(GRACE_S)
        assert self.shelf.draining == set()

    @rule(after=st.sampled_from([0.0, GRACE_S, DRAIN_S]))
    def settle(self, after):
        self.scene.run(after)
        assert self.scene.run() == []
        wanted = {**self.said["b"], **self.said["a"]}
        deleted = {i for name in "ab" for i in self.scene.counts(name).deleted}
        leaving = self.shelf.draining
        assert set(self.shelf.workers) == (set(self.by_hand) | set(wanted) | leaving) - deleted
        assert leaving.isdisjoint(wanted)
        for worker_id in set(wanted) - set(self.by_hand) - deleted:
            owner = self.scene.following.owner_of(worker_id)
            says, stands = self.said[owner][worker_id], self.shelf.workers[worker_id]
            is_patched = worker_id in self.scene.counts(owner).patched
            assert (stands != says) == is_patched
            assert msgspec.structs.replace(stands, block_size=1) == msgspec.structs.replace(
                says, block_size=1
            )  # operators patch only block sizes here
            assert worker_id not in deleted

    @invariant()
    def workers_of_operators_stay_unchanged(self):
        for worker_id, body in self.by_hand.items():
            assert self.shelf.workers[worker_id] == body
        self.scene.following.check_invariants()


TestFollowing = FollowingMatchesModel.TestCase
TestFollowing.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
