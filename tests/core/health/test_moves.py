"""Tests of the events of moves: no timely reader misses an event."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.health.health_kinds import CheckKind
from select_service.core.health.migration import move_log as moves_module
from select_service.core.health.migration.migration_plan import PlannedMove
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.health.migration.move_log import RETENTION_S, MoveLog
from select_service.core.identity import Rank
from tests.builders.hypothesis_profiles import explored
from tests.models.moves_model import MovesModel

A, B = Rank(1, 0), Rank(2, 0)


def add_move(moves, name="r", now=0.0, target=B, method=MoveMethod.TRANSFER):
    return moves.append_move(
        PlannedMove(name, target, method, 5.0), A, CheckKind.OPERATOR, "t", now
    )


def test_events_follow_each_other():
    moves = MoveLog()
    for number in range(5):
        add_move(moves, str(number))
    assert moves.events_after(0, 2) == (moves.events_after(0, 5).events[:2], 2, False)
    assert [e.reservation_id for e in moves.events_after(2, 9).events] == ["2", "3", "4"]
    assert moves.events_after(5, 9) == ((), 5, False)
    assert MoveLog().events_after(0, 9) == ((), 0, False)


def test_a_number_from_before_or_from_another_process_is_a_gap():
    moves = MoveLog()
    assert moves.events_after(77, 9) == ((), 0, True)
    for number in range(3):
        add_move(moves, now=float(number))
    moves.drop_expired(RETENTION_S + 1.5)
    page = moves.events_after(0, 9)
    assert ([e.seq for e in page.events], page.gap) == ([3], True)
    assert not moves.events_after(2, 9).gap
    moves.check_invariants()


def test_a_number_of_an_earlier_process_is_a_gap_for_any_number_of_events():
    earlier, moves = MoveLog(begin=1000), MoveLog(begin=5000)
    for number in range(9):
        add_move(earlier, str(number))
        add_move(moves, str(number))
    page = moves.events_after(earlier.next_number - 1, 99)
    assert ([e.seq for e in page.events], page.gap) == (list(range(5001, 5010)), True)
    assert not moves.events_after(page.next, 99).gap


def test_0_is_the_beginning_and_a_gap_only_once_events_are_forgotten():
    moves = MoveLog(begin=5000)
    assert moves.events_after(0, 9) == ((), 5000, False)
    add_move(moves)
    page = moves.events_after(0, 9)
    assert ([e.seq for e in page.events], page.gap) == ([5001], False)
    moves.drop_expired(RETENTION_S + 1.0)
    assert moves.events_after(0, 9) == ((), 5001, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=40))
def test_polling_returns_every_event_once(steps):
    moves, seen, after = MoveLog(), [], 0
    for added, wanted in steps:
        for _ in range(added):
            add_move(moves)
        page = moves.events_after(after, wanted)
        assert not page.gap
        seen += [event.seq for event in page.events]
        after = page.next
    assert seen == list(range(1, len(seen) + 1))
    moves.check_invariants()


def test_the_number_of_kept_events_is_bounded(monkeypatch):
    monkeypatch.setattr(moves_module, "EVENTS_MAX", 3)
    moves = MoveLog()
    for number in range(5):
        add_move(moves, str(number))
    assert [e.seq for e in moves.events_after(0, 9).events] == [3, 4, 5]
    assert moves.latest_move_of("0") is None
    assert moves.latest_move_of("4").seq == 5
    moves.check_invariants()


def test_a_transfer_that_failed_goes_on_as_a_prefill_and_ends_once():
    moves = MoveLog()
    add_move(moves)
    failed = moves.confirm_move("r", ok=False)
    assert (failed.method, failed.ok) == (MoveMethod.REPREFILL, False)
    assert moves.latest_move_of("r").method is MoveMethod.REPREFILL
    ended = moves.confirm_move("r", ok=True)
    assert (ended.method, ended.ok) == (MoveMethod.REPREFILL, True)
    assert moves.confirm_move("r", ok=True) is None


def test_only_moved_reservations_can_be_confirmed():
    moves = MoveLog()
    add_move(moves, target=None, method=MoveMethod.ABORT)
    assert moves.confirm_move("r", ok=True) is None
    assert moves.confirm_move("other", ok=True) is None


NAMES = st.sampled_from("abcd")
KEPT_MAX = 5


class MovesMatchModel(RuleBasedStateMachine):
    @initialize(begin=st.sampled_from([0, 3, 5000]))
    def start(self, begin):
        self.moves, self.now = MoveLog(begin), 0.0
        self.model = MovesModel(begin, KEPT_MAX)
        self.limit = patch.object(moves_module, "EVENTS_MAX", KEPT_MAX)
        self.limit.start()

    def teardown(self):
        patch.stopall()

    @rule(name=NAMES, has_target=st.booleans(), method=st.sampled_from(["transfer", "reprefill"]))
    def add(self, name, has_target, method):
        method = MoveMethod(method) if has_target else MoveMethod.ABORT
        add_move(self.moves, name, self.now, B if has_target else None, method)
        self.model.add(name, has_target, method.value, self.now)

    @rule(seconds=st.sampled_from([1.0, 200.0, 599.0, 601.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.moves.drop_expired(self.now)
        self.model.forget(self.now)

    @rule(back=st.integers(-2, 8), most=st.integers(1, 4))
    def ask(self, back, most):
        for seq in (0, max(0, self.moves.next_number - back)):
            page = self.moves.events_after(seq, most)
            numbers = [event.seq for event in page.events]
            assert (numbers, page.next, page.gap) == self.model.after(seq, most)

    @rule(name=NAMES, ok=st.booleans())
    def plan_confirmation(self, name, ok):
        found = self.moves.confirm_move(name, ok)
        expected = self.model.plan_confirmation(name, ok)
        assert (None if found is None else found.method.value) == expected

    @invariant()
    def last_moves_agree(self):
        for name in "abcd":
            last = self.moves.latest_move_of(name)
            found = None if last is None else (last.seq, last.target is not None, last.method.value)
            assert found == self.model.of(name)
        assert bool(self.moves) == any(self.model.of(name) for name in "abcd")
        self.moves.check_invariants()


TestMovesMatchModel = explored(MovesMatchModel)
