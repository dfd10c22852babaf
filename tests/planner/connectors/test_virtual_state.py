"""Tests of numbered decisions: case by case, and against a twin that keeps the whole history."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from select_service.planner.connectors.virtual_state import (
    ADOPT_AFTER_S,
    REPLACED_MAX,
    AcknowledgementEffect,
    CountsEffect,
    UnknownDecisionNumber,
    VirtualState,
)
from select_service.planner.core.tick_input import Role
from tests.planner.invariants import check_virtual_state
from tests.vectors.planner_virtual import play

P, D = Role.PREFILL, Role.DECODE
wishes = st.dictionaries(st.sampled_from([P, D]), st.integers(0, 4), max_size=2)


class NaiveDecisions:
    """Twin with all decisions as a list, and all acknowledgements as a set."""

    def __init__(self) -> None:
        self.decided: list[dict[Role, int]] = []
        self.acknowledged: set[int] = set()
        self.differing = 0

    @property
    def is_open(self) -> bool:
        return bool(self.decided) and len(self.decided) - 1 not in self.acknowledged

    def set_target(self, wanted: dict[Role, int]) -> None:
        now = self.decided[-1] if self.decided else {}
        if now | wanted == now:
            self.differing = 0
            return
        self.differing += 1
        if not self.is_open or self.differing == 2:
            self.decided.append(now | wanted)
            self.differing = 0


class VirtualMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.twin, self.now = VirtualState(), NaiveDecisions(), 0.0

    @rule(wanted=wishes)
    def set_target(self, wanted: dict[Role, int]) -> None:
        before = self.state
        self.state, change = self.state.with_counts(wanted, self.now)
        self.twin.set_target(wanted)
        if change == CountsEffect.SUPERSEDED:
            assert before.is_open
            assert self.state.decision.superseded
        assert (change == CountsEffect.KEPT) == (self.state.kept_counts is not None)

    @precondition(lambda self: self.twin.decided)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        newest = len(self.twin.decided) - 1
        number = data.draw(st.integers(0, newest))
        self.state, completion = self.state.with_acknowledgement(number, self.now, {})
        self.twin.acknowledged.add(number)
        expected = (
            AcknowledgementEffect.COMPLETED
            if number == newest
            else AcknowledgementEffect.SUPERSEDED
        )
        assert completion == expected

    @rule(number=st.sampled_from([-1, 1 << 40]))
    def acknowledge_unknown_decision(self, number: int) -> None:
        with pytest.raises(UnknownDecisionNumber):
            self.state.with_acknowledgement(number, self.now, {})

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def is_as_its_twin(self) -> None:
        check_virtual_state(self.state)
        assert self.state.decision.decision_id == len(self.twin.decided) - 1
        assert self.state.is_open == self.twin.is_open
        newest = self.twin.decided[-1] if self.twin.decided else {}
        for role in Role:
            assert self.state.expected_count(role) == newest.get(role)


TestVirtualMachine = VirtualMachine.TestCase


def state_after(*wishes: dict[Role, int]) -> VirtualState:
    state = VirtualState()
    for wanted in wishes:
        state, _ = state.with_counts(wanted, 0.0)
    return state


def test_a_client_that_never_acknowledges_gets_the_latest_workers_to_replace() -> None:
    state = VirtualState()
    for worker_id in range(2 * REPLACED_MAX + 2):
        state, _ = state.with_counts({D: 3}, float(worker_id), lost=(worker_id // 2,))
    last = 2 * REPLACED_MAX // 2
    assert state.decision.replace == tuple(range(last + 1 - REPLACED_MAX, last + 1))


def test_a_newer_target_replaces_an_open_decision_at_its_second_tick() -> None:
    state = state_after({P: 1, D: 2})
    state, change = state.with_counts({D: 5}, 5.0)
    assert (change, state.kept_counts, state.decision.num_decode) == (CountsEffect.KEPT, {D: 5}, 2)
    state, change = state.with_counts({D: 6}, 10.0)
    assert change == CountsEffect.SUPERSEDED
    assert (state.decision.decision_id, state.decision.num_prefill) == (1, 1)
    assert (state.decision.num_decode, state.decision.superseded) == (6, True)


def test_a_target_equal_to_the_open_decision_drops_another_target() -> None:
    state = state_after({D: 2}, {D: 5}, {D: 2})
    state, change = state.with_counts({D: 5}, 5.0)
    assert change == CountsEffect.KEPT


def test_a_late_acknowledgement_of_an_older_decision_sets_nothing_back() -> None:
    state = state_after({D: 2}, {D: 5}, {D: 5})
    state, _ = state.with_acknowledgement(1, 0.0, {})
    state, completion = state.with_acknowledgement(0, 1.0, {D: 2})
    assert (completion, state.is_open, state.reported) == (
        AcknowledgementEffect.SUPERSEDED,
        False,
        {},
    )
    _, change = state.with_counts({D: 3}, 2.0)
    assert change == CountsEffect.DECIDED


def test_foreign_additions_are_adopted_and_can_be_removed() -> None:
    state, _ = state_after({D: 2}).with_acknowledgement(0, 0.0, {})
    assert state.with_observation({D: 4}, ADOPT_AFTER_S - 1).expected_count(D) == 2
    state = state.with_observation({D: 4}, ADOPT_AFTER_S)
    assert state.expected_count(D) == 4
    state, change = state.with_counts({D: 2}, 100.0)
    assert (change, state.decision.decision_id, state.expected_count(D)) == (
        CountsEffect.DECIDED,
        1,
        2,
    )


def test_fewer_replicas_than_decided_are_not_adopted() -> None:
    state, _ = state_after({D: 4}).with_acknowledgement(0, 0.0, {})
    assert state.with_observation({D: 1}, 1000.0).expected_count(D) == 4


RECORDED = (
    ("initial", [-1, -1, -1], True, 0.0),
    ("update(3,1)", [3, 1, 0], False, 0.0),
    ("update(4,None) while unacknowledged", [3, 1, 0], False, 0.0),
    ("client.complete", [3, 1, 0], True, 0.0),
    ("update(4,None)", [4, 1, 1], False, 0.0),
    ("client.complete(old first decision)", [4, 1, 1], False, 0.0),
    ("update(None,2)", [4, 1, 1], False, 0.0),
    ("wait_for_completion (nobody acknowledges)", [4, 1, 1], False, 4.0),
    ("update(None,2) after the time-out", [4, 2, 2], False, 0.0),
)


def test_the_document_profile_does_as_the_reference_was_recorded() -> None:
    steps = [
        {"do": do, "state": state, "ready": ready, "took_s": took_s}
        for do, state, ready, took_s in RECORDED
    ]
    restarted = {"state": [4, 2, 2], "ready": False}
    case = {"setup": {"max_wait_secs": 4}, "steps": steps, "restarted_coordinator": restarted}
    assert list(play(case)) == []
    steps[2]["state"] = [4, 1, 1]
    assert [found.where for found in play(case)] == ["steps[2].state[0]", "steps[2].state[2]"]
