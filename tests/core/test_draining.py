"""Tests of workers drained by operators and sources, with and without health checks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.base.errors import Conflict, NoEligibleRank, NotFound, SelectError
from select_service.core.identity import Rank
from select_service.schemas.persisted_state import PersistedDrain
from tests.builders import a_patch, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.core.health.fleet_health.test_fitness import Scene

WIDE = a_worker(1, data_parallel_size=3)


def a_fleet(*workers):
    selector = a_selector()
    for worker in workers or (a_worker(1), a_worker(2)):
        selector.register_worker(worker)
    return selector


def choose_worker(selector):
    decision = selector.select(a_select(), 0.0)
    return decision.selection.worker_id


def refusal_text(selector):
    with pytest.raises(NoEligibleRank) as raised:
        selector.select(a_select(), 0.0)
    return str(raised.value)


def test_a_draining_worker_gets_no_requests_and_empties():
    selector = a_fleet(WIDE, a_worker(2))
    selector.select_and_reserve(
        a_select_and_reserve(pinned_worker={"worker_id": 1, "dp_rank": 0}), 0.0
    )
    selector.draining.drain_worker(1, "operator", True, 0.0)
    view = selector.draining.drain_view(1)
    assert (view.state, view.asked_by, view.reservations) == ("draining", ["operator"], 1)
    assert {choose_worker(selector) for _ in range(20)} == {2}
    (booking,) = selector.ledger.reservations
    selector.free_reservation(booking.reservation_id, 0.0)
    assert selector.draining.drain_view(1).state == "drained"
    selector.check_invariants()


def test_the_error_names_the_drain_if_all_workers_drain():
    selector = a_fleet(a_worker(1), a_worker(2))
    for worker_id in (1, 2, 2):
        selector.draining.drain_worker(worker_id, "operator", True, 0.0)
    assert "none of the ranks that fit is in rotation (2 draining)" in refusal_text(selector)
    selector.draining.undrain_worker(2, "operator", 0.0)
    assert choose_worker(selector) == 2
    selector.draining.undrain_worker(2, "operator", 0.0)
    selector.check_invariants()


def test_a_source_s_drain_and_an_operator_s_end_each_by_themselves():
    selector = a_fleet(a_worker(1))
    draining = selector.draining
    draining.drain_worker(1, "source", True, 0.0)
    assert "1 leaving" in refusal_text(selector)
    assert draining.persisted_drain(1) is None
    draining.drain_worker(1, "operator", False, 0.0)
    draining.undrain_worker(1, "source", 0.0)
    assert draining.persisted_drain(1) == PersistedDrain(migrate=False)
    assert "1 draining" in refusal_text(selector)
    draining.undrain_worker(1, "operator", 0.0)
    assert choose_worker(selector) == 1
    assert len(draining) == 0


@pytest.mark.parametrize("last", ["operator", "planner"])
def test_an_operator_s_drain_and_the_planner_s_end_each_by_themselves(last):
    first = "planner" if last == "operator" else "operator"
    selector = a_fleet(a_worker(1))
    draining = selector.draining
    draining.drain_worker(1, first, True, 0.0)
    draining.drain_worker(1, last, False, 0.0)
    draining.undrain_worker(1, first, 0.0)
    assert draining.drain_view(1).asked_by == [last]
    assert draining.persisted_drain(1) == PersistedDrain(migrate=False, asked_by=[last])
    draining.undrain_worker(1, first, 0.0)
    assert "1 draining" in refusal_text(selector)
    draining.undrain_worker(1, last, 0.0)
    assert choose_worker(selector) == 1
    selector.check_invariants()


def test_ranks_added_by_a_patch_drain_and_a_registration_ends_the_drain():
    selector = a_fleet(a_worker(1), a_worker(2))
    selector.draining.drain_worker(1, "operator", True, 0.0)
    selector.patch_worker(1, a_patch(data_parallel_size=4))
    selector.check_invariants()
    assert selector.fleet.partitions[KEY].table.n_closed == 4
    selector.register_worker(a_worker(1))
    assert selector.draining.drain_view(1) is None
    assert selector.fleet.partitions[KEY].table.n_closed == 0


def test_a_temporarily_incomplete_worker_continues_to_drain():
    selector = a_fleet(a_worker(1), a_worker(2))
    selector.draining.drain_worker(1, "operator", True, 0.0)
    selector.patch_worker(1, a_patch(block_size=64))
    assert not selector.get_worker(1).is_schedulable
    with pytest.raises(Conflict, match="receives no requests"):
        selector.draining.drain_worker(1, "operator", True, 0.0)
    selector.patch_worker(1, a_patch(block_size=selector.get_worker(2).registration.block_size))
    assert selector.get_worker(1).is_schedulable
    assert {choose_worker(selector) for _ in range(20)} == {2}


def test_a_deleted_worker_does_not_drain_and_an_unknown_one_is_not_found():
    selector = a_fleet()
    selector.draining.drain_worker(1, "operator", True, 0.0)
    selector.delete_worker(1, 0.0)
    assert selector.draining.drain_view(1) is None
    selector.patch_worker(1, a_patch(taints=["x"]))
    assert selector.draining.drain_view(1) is None
    for verb in (lambda: selector.draining.undrain_worker(9, "operator", 0.0),):
        with pytest.raises(NotFound):
            verb()


def test_with_checks_the_monitor_drains():
    scene = Scene()
    scene.selector.draining.drain_worker(1, "operator", True, scene.now)
    scene.settle()
    assert scene.state(1).label == "draining"
    assert scene.weight(1) == 0.0
    scene.selector.draining.undrain_worker(1, "operator", scene.now)
    scene.settle()
    assert scene.state(1).is_serving


def test_with_checks_the_monitor_drains_until_the_last_request_for_it_ends():
    scene = Scene()
    draining = scene.selector.draining
    draining.drain_worker(1, "planner", False, scene.now)
    draining.drain_worker(1, "operator", True, scene.now)
    draining.undrain_worker(1, "planner", scene.now)
    scene.settle()
    assert (scene.state(1).label, scene.weight(1)) == ("draining", 0.0)
    draining.undrain_worker(1, "operator", scene.now)
    scene.settle()
    assert scene.state(1).is_serving


def test_with_checks_new_ranks_of_a_draining_worker_never_get_requests():
    scene = Scene(a_worker(1), a_worker(2))
    scene.selector.draining.drain_worker(1, "operator", False, scene.now)
    scene.settle()
    scene.selector.patch_worker(1, a_patch(data_parallel_size=200))
    table = scene.selector.fleet.partitions[KEY].table
    for _ in range(20):
        assert table.n_closed == 200
        scene.settle()
    for dp_rank in (0, 1, 199):
        assert scene.state(1, dp_rank).label == "draining"


def test_with_checks_a_registration_ends_the_drain():
    scene = Scene()
    scene.selector.draining.drain_worker(1, "operator", True, scene.now)
    scene.settle()
    scene.selector.register_worker(a_worker(1))
    scene.settle()
    assert scene.selector.draining.drain_view(1) is None
    assert scene.weight(1) == 1.0


class DrainsMatchAModel(RuleBasedStateMachine):
    """Workers come, change, go and drain; a model decides which workers serve."""

    def __init__(self):
        super().__init__()
        self.selector = a_selector()
        self.there, self.callers = {}, {}

    @rule(worker_id=st.integers(1, 3), ranks=st.integers(1, 3))
    def register(self, worker_id, ranks):
        self.selector.register_worker(a_worker(worker_id, data_parallel_size=ranks))
        self.there[worker_id], self.callers[worker_id] = ranks, set()

    @rule(worker_id=st.integers(1, 3), ranks=st.integers(1, 3))
    def patch(self, worker_id, ranks):
        try:
            self.selector.patch_worker(worker_id, a_patch(data_parallel_size=ranks))
        except NotFound:
            assert worker_id not in self.callers
            return
        if worker_id not in self.there:
            self.callers[worker_id] = set()
        self.there[worker_id] = ranks

    @rule(worker_id=st.integers(1, 3))
    def delete_worker(self, worker_id):
        if worker_id in self.there:
            self.selector.delete_worker(worker_id, 0.0)
            del self.there[worker_id]
            self.callers[worker_id] = set()

    @rule(
        worker_id=st.integers(1, 3),
        asker=st.sampled_from(["operator", "planner", "source"]),
        on=st.booleans(),
    )
    def drain(self, worker_id, asker, on):
        draining = self.selector.draining
        try:
            if on:
                draining.drain_worker(worker_id, asker, True, 0.0)
            else:
                draining.undrain_worker(worker_id, asker, 0.0)
        except SelectError:
            assert worker_id not in self.there
            return
        (self.callers[worker_id].add if on else self.callers[worker_id].discard)(asker)

    @invariant()
    def open_slots_agree_with_the_model(self):
        self.selector.check_invariants()
        draining = {worker_id for worker_id, askers in self.callers.items() if askers}
        assert {n for n in self.there if n in self.selector.draining} == draining
        partition = self.selector.fleet.partitions.get(KEY)
        for worker_id, ranks in self.there.items():
            for dp_rank in range(ranks):
                slot = partition.table.find_slot(Rank(worker_id, dp_rank))
                assert partition.table.open_slots[slot] == (worker_id not in draining)


TestDrainsMatchAModel = DrainsMatchAModel.TestCase
TestDrainsMatchAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
