"""Tests of the stabiliser: up at once, down after a whole window; known steps, and a naive twin."""

from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.stabiliser import (
    Stabiliser,
    StabiliserInput,
    StabiliserSettings,
    StabiliserStep,
)
from tests.planner.invariants import check_stabiliser


def standing(current: int, pending: int = 0) -> StabiliserInput:
    return StabiliserInput(current, pending, 1, 12)


def test_up_goes_at_once_and_not_for_little() -> None:
    stabiliser = Stabiliser(StabiliserSettings())
    assert stabiliser.next_step(0.0, standing(3), 3.3) == StabiliserStep(
        None, Reason.WITHIN_TOLERANCE
    )
    assert stabiliser.next_step(10.0, standing(3), 4.01) == StabiliserStep(5, Reason.UP)
    assert stabiliser.next_step(20.0, standing(3, 2), 4.4) == StabiliserStep(None, Reason.PENDING)


def test_steps_up_are_bounded_and_spaced() -> None:
    stabiliser = Stabiliser(StabiliserSettings(up_cooldown=30.0, max_up=2))
    assert stabiliser.next_step(0.0, standing(5), 9.1) == StabiliserStep(7, Reason.UP)
    assert stabiliser.next_step(10.0, standing(5, 2), 9.2) == StabiliserStep(
        None, Reason.UP_COOLDOWN
    )
    assert stabiliser.next_step(30.0, standing(5, 2), 9.0) == StabiliserStep(9, Reason.UP)


def test_down_needs_a_whole_window_and_goes_by_one() -> None:
    stabiliser = Stabiliser(StabiliserSettings())
    steps = {at: stabiliser.next_step(at, standing(4), 1.0) for at in map(float, range(0, 310, 10))}
    assert {step.reason for at, step in steps.items() if at < 300} == {Reason.FIRST_WINDOW}
    assert steps[300.0] == StabiliserStep(3, Reason.DOWN)
    assert stabiliser.next_step(310.0, standing(3), 1.0) == StabiliserStep(
        None, Reason.DOWN_COOLDOWN
    )
    assert stabiliser.next_step(360.0, standing(3), 1.0) == StabiliserStep(2, Reason.DOWN)


def test_the_highest_target_holds_for_a_window() -> None:
    stabiliser = Stabiliser(StabiliserSettings())
    for at in range(0, 400, 10):
        stabiliser.next_step(float(at), standing(3), 2.5 if at == 200 else 0.5)
    assert stabiliser.next_step(490.0, standing(3), 0.5).reason is Reason.HOLD
    assert stabiliser.next_step(500.0, standing(3), 0.5) == StabiliserStep(2, Reason.DOWN)


def test_counts_outside_of_the_bounds_return_at_once() -> None:
    stabiliser = Stabiliser(StabiliserSettings())
    assert stabiliser.next_step(0.0, StabiliserInput(0, 0, 2, 5), 0.0) == StabiliserStep(
        2, Reason.UP
    )
    assert stabiliser.next_step(1.0, StabiliserInput(7, 0, 2, 5), 9.0) == StabiliserStep(
        5, Reason.DOWN
    )


class NaiveStabiliser:
    """Twin that keeps all values."""

    def __init__(self, of: StabiliserSettings) -> None:
        self.of = of
        self.wishes: list[tuple[float, float]] = []
        self.ups: list[float] = []
        self.changes: list[float] = []

    def step(self, now: float, at: StabiliserInput, wanted: float) -> StabiliserStep:
        wanted = min(wanted, at.high)
        self.wishes.append((now, wanted))
        peak = max(wish for when, wish in self.wishes if when > now - self.of.down_window)
        have = at.current + at.pending
        if have < at.low or have > at.high:
            self.changes.append(now)
            if have < at.low:
                self.ups.append(now)
                return StabiliserStep(at.low, Reason.UP)
            return StabiliserStep(at.high, Reason.DOWN)
        if wanted > have:
            if wanted <= have * (1 + self.of.tolerance):
                return StabiliserStep(None, Reason.WITHIN_TOLERANCE)
            if any(now - up < self.of.up_cooldown for up in self.ups):
                return StabiliserStep(None, Reason.UP_COOLDOWN)
            self.ups.append(now)
            self.changes.append(now)
            return StabiliserStep(
                min(ceil(wanted - 1e-9), have + self.of.max_up, at.high), Reason.UP
            )
        if at.pending:
            return StabiliserStep(None, Reason.PENDING)
        if have == at.low or peak > have - 1:
            return StabiliserStep(None, Reason.HOLD)
        if now - self.wishes[0][0] < self.of.down_window:
            return StabiliserStep(None, Reason.FIRST_WINDOW)
        if peak > (have - 1) * (1 - self.of.tolerance):
            return StabiliserStep(None, Reason.WITHIN_TOLERANCE)
        if any(now - change < self.of.down_cooldown for change in self.changes):
            return StabiliserStep(None, Reason.DOWN_COOLDOWN)
        self.changes.append(now)
        return StabiliserStep(have - 1, Reason.DOWN)


class StabiliserMachine(RuleBasedStateMachine):
    """Stabiliser and twin take the same steps; starting replicas become ready some steps later."""

    @initialize(up_cooldown=st.sampled_from([0.0, 30.0]), max_up=st.integers(1, 8))
    def begin(self, up_cooldown: float, max_up: int) -> None:
        of = StabiliserSettings(up_cooldown=up_cooldown, max_up=max_up, down_window=60.0)
        self.stabiliser, self.naive = Stabiliser(of), NaiveStabiliser(of)
        self.now, self.current, self.pending = 0.0, 3, 0

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 61.0]), wanted=st.floats(0, 14))
    def step(self, seconds: float, wanted: float) -> None:
        self.now += seconds
        at = StabiliserInput(self.current, self.pending, 1, 12)
        found = self.stabiliser.next_step(self.now, at, wanted)
        assert found == self.naive.step(self.now, at, wanted)
        if found.target is None:
            return
        have = self.current + self.pending
        if found.target > have:
            self.pending += found.target - have
        else:
            assert found.target == have - 1
            assert not self.pending
            self.current -= 1

    @rule()
    def ready(self) -> None:
        self.current, self.pending = self.current + self.pending, 0

    @invariant()
    def bounds_hold(self) -> None:
        if hasattr(self, "stabiliser"):
            check_stabiliser(self.stabiliser)
            assert 1 <= self.current + self.pending <= 12


TestStabiliserMachine = StabiliserMachine.TestCase
TestStabiliserMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
