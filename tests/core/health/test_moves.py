"""Events of moves: nobody who asks in time misses one."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.core.health import moves as moves_module
from select_service.core.health.kinds import Kind
from select_service.core.health.migration import Move
from select_service.core.health.move_cost import Method
from select_service.core.health.moves import KEPT_S, Moves
from select_service.core.identity import Rank

A, B = Rank(1, 0), Rank(2, 0)


def moved(moves, name="r", now=0.0, target=B, method=Method.TRANSFER):
    return moves.add(Move(name, target, method, 5.0), A, Kind.OPERATOR, now)


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
