"""Tests of the cursor's verdicts on sequence numbers: gaps, late copies, restarts, jumps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.events.event_cursor import END_OF_REPLAY, JUMP_MAX, EventCursor, SequenceVerdict

NEXT, AHEAD, STALE = SequenceVerdict.NEXT, SequenceVerdict.AHEAD, SequenceVerdict.STALE
SUSPECT, RESTART, UNPLACED = (
    SequenceVerdict.SUSPECT,
    SequenceVerdict.RESTART,
    SequenceVerdict.UNPLACED,
)


def verdicts(*seqs, cursor=None):
    """Return the verdicts of a cursor for which every gap is given up at once."""
    cursor = EventCursor() if cursor is None else cursor
    said = []
    for seq in seqs:
        verdict = cursor.observe(seq)
        said.append(verdict)
        if verdict is RESTART:
            cursor.restart()
            cursor.observe(seq)
        if verdict is AHEAD or verdict is RESTART:
            cursor.skip_to(seq)
        if verdict in (NEXT, AHEAD, RESTART):
            cursor.advance(seq)
        cursor.check_invariants()
    return said


def test_first_number_0_and_every_successor_is_next():
    assert verdicts(0, 1, 2) == [NEXT, NEXT, NEXT]


def test_late_joiner_misses_everything_before_its_first_number():
    cursor = EventCursor()
    assert cursor.last_sequence is None
    assert cursor.observe(7) is AHEAD
    assert cursor.skip_to(7) == 7
    cursor.advance(7)
    assert (cursor.last_sequence, cursor.next_seq) == (7, 8)


def test_number_past_the_next_is_ahead():
    assert verdicts(0, 1, 5, 6) == [NEXT, NEXT, AHEAD, NEXT]


def test_one_late_copy_is_suspected_and_forgotten():
    assert verdicts(0, 1, 2, 1, 3, 2, 4) == [NEXT, NEXT, NEXT, SUSPECT, NEXT, SUSPECT, NEXT]


def test_the_same_late_copy_over_and_over_is_no_restart():
    assert verdicts(0, 1, 2, 1, 1, 1, 3) == [NEXT, NEXT, NEXT, SUSPECT, SUSPECT, SUSPECT, NEXT]


def test_late_copies_in_falling_order_are_no_restart():
    assert verdicts(0, 1, 2, 3, 3, 2, 1) == [NEXT] * 4 + [SUSPECT] * 3


def test_number_0_again_is_a_restart():
    assert verdicts(0, 1, 2, 0, 1) == [NEXT, NEXT, NEXT, RESTART, NEXT]


def test_number_0_again_right_after_it_is_a_restart():
    assert verdicts(0, 0) == [NEXT, RESTART]


def test_two_adjacent_numbers_from_the_past_are_a_restart():
    assert verdicts(0, *range(10, 20), 4, 5, 6)[-3:] == [SUSPECT, RESTART, NEXT]


def test_live_numbers_a_replay_was_faster_with_are_stale_and_no_restart():
    cursor = EventCursor()
    assert cursor.observe(3) is AHEAD
    for seq in range(9):  # a replay that continues past the gap
        cursor.advance(seq)
    assert [cursor.observe(seq) for seq in (4, 5, 6, 7, 8)] == [STALE] * 5
    assert cursor.observe(9) is NEXT


def test_a_step_back_while_a_gap_is_open_is_measured_against_the_live_stream():
    cursor = EventCursor()
    assert [cursor.observe(seq) for seq in (20, 21)] == [AHEAD, AHEAD]
    assert [cursor.observe(seq) for seq in (12, 13)] == [SUSPECT, RESTART]
    assert [cursor.observe(seq) for seq in (22, 0)] == [AHEAD, RESTART]


@pytest.mark.parametrize("absurd", [END_OF_REPLAY, END_OF_REPLAY - 1, 2**63, JUMP_MAX + 9])
def test_an_absurd_number_leaves_the_cursor_where_it_is(absurd):
    assert verdicts(0, 1, absurd, 2, absurd, absurd, 3) == [
        NEXT,
        NEXT,
        UNPLACED,
        NEXT,
        UNPLACED,
        UNPLACED,
        NEXT,
    ]


def test_an_engine_that_numbers_by_the_clock_is_accepted_at_its_second_number():
    start = 1_790_000_000_000_000_000
    assert verdicts(start, start + 1, start + 2, start + 5) == [UNPLACED, AHEAD, NEXT, AHEAD]


def test_an_accepted_absurd_jump_heals_by_the_restart_rule():
    assert verdicts(0, 1, 2**64 - 4, 2**64 - 3, 2**64 - 2, 2**64 - 1, 2, 3, 4) == [
        NEXT,
        NEXT,
        UNPLACED,
        AHEAD,
        NEXT,
        UNPLACED,
        SUSPECT,
        RESTART,
        NEXT,
    ]


def test_a_jump_of_exactly_the_limit_is_still_a_gap():
    assert verdicts(JUMP_MAX) == [AHEAD]
    assert verdicts(JUMP_MAX + 1) == [UNPLACED]


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 8)), st.integers(0, 50))
def test_any_past_is_overcome_by_three_successive_numbers(past, start):
    cursor = EventCursor()
    verdicts(*past, cursor=cursor)
    said = verdicts(*range(start, start + 4), cursor=cursor)
    assert said[-1] in (NEXT, STALE)
    assert cursor.next_seq == start + 4
