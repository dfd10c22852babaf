"""Events of moves: nobody who asks in time misses one."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.health import moves as moves_module
from select_service.core.health.kinds import Kind
from select_service.core.health.migration import Move
from select_service.core.health.move_cost import Method
from select_service.core.health.moves import KEPT_S, Moves
from select_service.core.identity import Rank
from tests.exploring import explored
from tests.models.moves_model import MovesModel

A, B = Rank(1, 0), Rank(2, 0)


def moved(moves, name="r", now=0.0, target=B, method=Method.TRANSFER):
    return moves.add(Move(name, target, method, 5.0), A, Kind.OPERATOR, "t", now)


def test_events_follow_each_other():
    moves = Moves()
    for number in range(5):
        moved(moves, str(number))
    assert moves.after(0, 2) == (moves.after(0, 5).events[:2], 2, False)
    assert [e.reservation_id for e in moves.after(2, 9).events] == ["2", "3", "4"]
    assert moves.after(5, 9) == ((), 5, False)
    assert Moves().after(0, 9) == ((), 0, False)


def test_a_number_from_before_or_from_another_process_is_a_gap():
    moves = Moves()
    assert moves.after(77, 9) == ((), 0, True)
    for number in range(3):
        moved(moves, now=float(number))
    moves.forget(KEPT_S + 1.5)
    page = moves.after(0, 9)
    assert ([e.seq for e in page.events], page.gap) == ([3], True)
    assert not moves.after(2, 9).gap
    moves.check_invariants()


def test_a_number_of_an_earlier_process_is_a_gap_however_many_events_there_are_now():
    earlier, moves = Moves(begin=1000), Moves(begin=5000)
    for number in range(9):
        moved(earlier, str(number))
        moved(moves, str(number))
    page = moves.after(earlier.next - 1, 99)
    assert ([e.seq for e in page.events], page.gap) == (list(range(5001, 5010)), True)
    assert not moves.after(page.next, 99).gap


def test_0_is_the_beginning_and_a_gap_only_once_events_are_forgotten():
    moves = Moves(begin=5000)
    assert moves.after(0, 9) == ((), 5000, False)
    moved(moves)
    page = moves.after(0, 9)
    assert ([e.seq for e in page.events], page.gap) == ([5001], False)
    moves.forget(KEPT_S + 1.0)
    assert moves.after(0, 9) == ((), 5001, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=40))
def test_who_polls_sees_every_event_once(steps):
    moves, seen, after = Moves(), [], 0
    for added, wanted in steps:
        for _ in range(added):
            moved(moves)
        page = moves.after(after, wanted)
        assert not page.gap
        seen += [event.seq for event in page.events]
        after = page.next
    assert seen == list(range(1, len(seen) + 1))
    moves.check_invariants()


def test_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(moves_module, "KEPT_MAX", 3)
    moves = Moves()
    for number in range(5):
        moved(moves, str(number))
    assert [e.seq for e in moves.after(0, 9).events] == [3, 4, 5]
    assert moves.of("0") is None
    assert moves.of("4").seq == 5
    moves.check_invariants()


def test_a_transfer_that_failed_goes_on_as_a_prefill_and_ends_once():
    moves = Moves()
    moved(moves)
    failed = moves.confirmed("r", ok=False)
    assert (failed.method, failed.ok) == (Method.REPREFILL, False)
    assert moves.of("r").method is Method.REPREFILL
    ended = moves.confirmed("r", ok=True)
    assert (ended.method, ended.ok) == (Method.REPREFILL, True)
    assert moves.confirmed("r", ok=True) is None


def test_what_did_not_move_cannot_be_confirmed():
    moves = Moves()
    moved(moves, target=None, method=Method.ABORT)
    assert moves.confirmed("r", ok=True) is None
    assert moves.confirmed("other", ok=True) is None


NAMES = st.sampled_from("abcd")
KEPT_MAX = 5


class MovesMatchModel(RuleBasedStateMachine):
    @initialize(begin=st.sampled_from([0, 3, 5000]))
    def start(self, begin):
        self.moves, self.now = Moves(begin), 0.0
        self.model = MovesModel(begin, KEPT_MAX)
        self.limit = patch.object(moves_module, "KEPT_MAX", KEPT_MAX)
        self.limit.start()

    def teardown(self):
        patch.stopall()

    @rule(name=NAMES, has_target=st.booleans(), method=st.sampled_from(["transfer", "reprefill"]))
    def add(self, name, has_target, method):
        method = Method(method) if has_target else Method.ABORT
        moved(self.moves, name, self.now, B if has_target else None, method)
        self.model.add(name, has_target, method.value, self.now)

    @rule(seconds=st.sampled_from([1.0, 200.0, 599.0, 601.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.moves.forget(self.now)
        self.model.forget(self.now)

    @rule(back=st.integers(-2, 8), most=st.integers(1, 4))
    def ask(self, back, most):
        for seq in (0, max(0, self.moves.next - back)):
            page = self.moves.after(seq, most)
            numbers = [event.seq for event in page.events]
            assert (numbers, page.next, page.gap) == self.model.after(seq, most)

    @rule(name=NAMES, ok=st.booleans())
    def confirm(self, name, ok):
        found = self.moves.confirmed(name, ok)
        expected = self.model.confirm(name, ok)
        assert (None if found is None else found.method.value) == expected

    @invariant()
    def last_moves_agree(self):
        for name in "abcd":
            last = self.moves.of(name)
            found = None if last is None else (last.seq, last.target is not None, last.method.value)
            assert found == self.model.of(name)
        assert bool(self.moves) == any(self.model.of(name) for name in "abcd")
        self.moves.check_invariants()


TestMovesMatchModel = explored(MovesMatchModel)
