"""Tests of how reference answers are learnt."""

import msgspec
import pytest

from select_service.core.health.answers import reference_answers
from select_service.core.health.answers.answer_check import CanaryAnswer
from select_service.core.health.answers.reference_answers import (
    PREVIOUS_S,
    ComparisonFinding,
    ReferenceAnswers,
    ReferenceKey,
    ReferenceSource,
    StoredReference,
)
from select_service.core.health.health_kinds import CheckKind
from select_service.core.identity import Rank

KEY = ReferenceKey("model", "tenant", "prompt")
RANKS = [Rank(n, 0) for n in range(6)]


def answer_of(*tokens, off=0.0):
    return CanaryAnswer(list(tokens), [-1.0 + off] * len(tokens), [{t: -1.0} for t in tokens])


OLD, NEW, BAD = answer_of(1, 2), answer_of(3, 4), answer_of(5, 6)


def compare(book, *answers, asked=None, now=0.0):
    """Return (finding, kinds in the order of the answers)."""
    by_rank = dict(zip(RANKS, answers, strict=False))
    found, verdicts = book.compare_answers(KEY, by_rank, asked or len(by_rank), now)
    return found, [None if v is None else v.kind for v in verdicts.values()]


def a_book():
    book = ReferenceAnswers()
    compare(book, OLD, OLD, OLD)
    return book


def test_three_agree_and_a_fourth_is_outvoted():
    book = ReferenceAnswers()
    assert book.judge_answer(KEY, RANKS[0], OLD, 0.0) is None
    found, kinds = compare(book, BAD, OLD, OLD, OLD)
    assert (found, kinds) == (
        ComparisonFinding.LEARNT,
        [CheckKind.TOKEN_MISMATCH, *[CheckKind.PASS] * 3],
    )
    assert book.source_of(KEY) is ReferenceSource.AGREEMENT
    assert book.judge_answer(KEY, RANKS[5], BAD, 0.0).kind is CheckKind.TOKEN_MISMATCH


def test_three_that_all_differ_prove_nothing():
    book = ReferenceAnswers()
    assert compare(book, OLD, NEW, BAD) == (ComparisonFinding.DISAGREEMENT, [None] * 3)
    assert book.judge_answer(KEY, RANKS[0], OLD, 0.0) is None


def test_a_wrong_answer_is_wrong_if_the_others_repeat_theirs():
    assert compare(a_book(), BAD, OLD, OLD) == (
        ComparisonFinding.NOTHING,
        [CheckKind.TOKEN_MISMATCH, CheckKind.PASS, CheckKind.PASS],
    )


def test_a_new_answer_of_more_than_half_is_a_new_model():
    book = a_book()
    assert compare(book, NEW, NEW, NEW, OLD) == (ComparisonFinding.CHANGED, [CheckKind.PASS] * 4)
    assert book.judge_answer(KEY, RANKS[0], BAD, 1.0).kind is CheckKind.TOKEN_MISMATCH


def test_answers_of_the_old_model_stay_right_for_a_while():
    book = a_book()
    compare(book, NEW, NEW, NEW)
    assert book.judge_answer(KEY, RANKS[0], OLD, PREVIOUS_S - 1).kind is CheckKind.PASS
    assert book.judge_answer(KEY, RANKS[0], OLD, PREVIOUS_S + 1).kind is CheckKind.TOKEN_MISMATCH


TOO_FEW = [((NEW, NEW), 4), ((NEW, BAD, answer_of(8, 9)), 3), ((NEW,), 1)]


@pytest.mark.parametrize(("answers", "asked"), TOO_FEW)
def test_too_few_equal_answers_are_no_new_model(answers, asked):
    found, kinds = compare(a_book(), *answers, asked=asked)
    assert found is ComparisonFinding.NOTHING
    assert set(kinds) == {CheckKind.TOKEN_MISMATCH}


def test_one_rank_is_judged_by_its_first_answer():
    book = ReferenceAnswers()
    assert compare(book, OLD) == (ComparisonFinding.LEARNT, [CheckKind.PASS])
    assert book.source_of(KEY) is ReferenceSource.SELF
    assert compare(book, answer_of(1, 2, off=0.29)) == (ComparisonFinding.NOTHING, [CheckKind.PASS])
    assert compare(book, answer_of(1, 2, off=0.31)) == (
        ComparisonFinding.NOTHING,
        [CheckKind.LOGIT_DRIFT],
    )
    assert book.judge_answer(KEY, RANKS[1], OLD, 0.0) is None, "of another one nothing is known"


def test_an_answer_without_numbers_is_wrong_without_a_reference():
    book, broken = ReferenceAnswers(), CanaryAnswer([0, 0], [None, None])
    assert book.judge_answer(KEY, RANKS[0], broken, 0.0).kind is CheckKind.LOGIT_DRIFT
    assert compare(book, broken) == (ComparisonFinding.LEARNT, [CheckKind.LOGIT_DRIFT])
    assert compare(book, OLD) == (ComparisonFinding.LEARNT, [CheckKind.PASS]), (
        "and never a reference"
    )


def test_two_ranks_that_differ_at_first_keep_their_references():
    book = ReferenceAnswers()
    assert compare(book, OLD, BAD) == (ComparisonFinding.DISAGREEMENT, [None, None])
    assert compare(book, OLD, BAD) == (ComparisonFinding.NOTHING, [CheckKind.PASS, CheckKind.PASS])


def test_two_that_change_together_are_a_new_model():
    book = ReferenceAnswers()
    compare(book, OLD, OLD)
    assert compare(book, NEW, NEW) == (ComparisonFinding.CHANGED, [CheckKind.PASS, CheckKind.PASS])
    assert compare(book, NEW, OLD) == (
        ComparisonFinding.NOTHING,
        [CheckKind.PASS, CheckKind.TOKEN_MISMATCH],
    )


def test_a_third_rank_brings_a_vote():
    book = ReferenceAnswers()
    compare(book, OLD, BAD)
    assert compare(book, OLD, BAD, OLD)[0] is ComparisonFinding.LEARNT
    assert book.source_of(KEY) is ReferenceSource.AGREEMENT


def test_the_answers_of_a_process_are_forgotten_with_it():
    book = ReferenceAnswers()
    compare(book, OLD)
    book.forget_rank(RANKS[0])
    book.forget_rank(RANKS[1])
    assert compare(book, NEW) == (ComparisonFinding.LEARNT, [CheckKind.PASS])


def test_references_survive_as_json():
    book, other = a_book(), ReferenceAnswers()
    text = msgspec.json.encode(list(book.iterate_stored()))
    for stored in msgspec.json.decode(text, type=list[StoredReference]):
        other.restore_reference(stored)
    assert list(other.iterate_stored()) == list(book.iterate_stored())
    assert other.judge_answer(KEY, RANKS[0], OLD, 0.0).kind is CheckKind.PASS
    other.forget_model("another")
    assert other.source_of(KEY) is ReferenceSource.AGREEMENT
    other.forget_model("model")
    assert other.source_of(KEY) is None


def test_the_oldest_of_too_many_is_forgotten(monkeypatch):
    monkeypatch.setattr(reference_answers, "REFERENCES_MAX", 2)
    book = ReferenceAnswers()
    keys = [KEY._replace(prompt=str(n)) for n in range(3)]
    for key in keys:
        book.compare_answers(key, {RANKS[0]: OLD}, 1, 0.0)
    assert [book.source_of(key) for key in keys] == [
        None,
        ReferenceSource.SELF,
        ReferenceSource.SELF,
    ]
    book.forget_rank(RANKS[0])
