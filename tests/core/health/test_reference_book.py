"""How it becomes known what is right."""

import msgspec
import pytest

from select_service.core.health import reference_book
from select_service.core.health.judging import Answer
from select_service.core.health.kinds import Kind
from select_service.core.health.reference_book import (
    PREVIOUS_S,
    Found,
    ReferenceBook,
    ReferenceKey,
    Source,
    StoredReference,
)
from select_service.core.identity import Rank

KEY = ReferenceKey("model", "tenant", "prompt")
RANKS = [Rank(n, 0) for n in range(6)]


def says(*tokens, off=0.0):
    return Answer(list(tokens), [-1.0 + off] * len(tokens), [{t: -1.0} for t in tokens])


OLD, NEW, BAD = says(1, 2), says(3, 4), says(5, 6)


def settled(book, *answers, asked=None, now=0.0):
    """(what was found, kinds in the order of the answers)"""
    by_rank = dict(zip(RANKS, answers, strict=False))
    found, verdicts = book.settle(KEY, by_rank, asked or len(by_rank), now)
    return found, [None if v is None else v.kind for v in verdicts.values()]


def a_book():
    book = ReferenceBook()
    settled(book, OLD, OLD, OLD)
    return book


def test_three_agree_and_a_fourth_is_outvoted():
    book = ReferenceBook()
    assert book.judge(KEY, RANKS[0], OLD, 0.0) is None
    found, kinds = settled(book, BAD, OLD, OLD, OLD)
    assert (found, kinds) == (Found.LEARNT, [Kind.TOKEN_MISMATCH, *[Kind.PASS] * 3])
    assert book.source(KEY) is Source.AGREEMENT
    assert book.judge(KEY, RANKS[5], BAD, 0.0).kind is Kind.TOKEN_MISMATCH


def test_three_that_all_differ_prove_nothing():
    book = ReferenceBook()
    assert settled(book, OLD, NEW, BAD) == (Found.DISAGREEMENT, [None] * 3)
    assert book.judge(KEY, RANKS[0], OLD, 0.0) is None


def test_a_wrong_answer_is_wrong_if_the_others_say_what_they_said():
    assert settled(a_book(), BAD, OLD, OLD) == (
        Found.NOTHING,
        [Kind.TOKEN_MISMATCH, Kind.PASS, Kind.PASS],
    )


def test_a_new_answer_of_more_than_half_is_a_new_model():
    book = a_book()
    assert settled(book, NEW, NEW, NEW, OLD) == (Found.CHANGED, [Kind.PASS] * 4)
    assert book.judge(KEY, RANKS[0], BAD, 1.0).kind is Kind.TOKEN_MISMATCH


def test_who_has_the_old_model_is_right_for_a_while():
    book = a_book()
    settled(book, NEW, NEW, NEW)
    assert book.judge(KEY, RANKS[0], OLD, PREVIOUS_S - 1).kind is Kind.PASS
    assert book.judge(KEY, RANKS[0], OLD, PREVIOUS_S + 1).kind is Kind.TOKEN_MISMATCH


TOO_FEW = [((NEW, NEW), 4), ((NEW, BAD, says(8, 9)), 3), ((NEW,), 1)]


@pytest.mark.parametrize(("answers", "asked"), TOO_FEW)
def test_not_enough_that_say_the_same_are_no_new_model(answers, asked):
    found, kinds = settled(a_book(), *answers, asked=asked)
    assert found is Found.NOTHING
    assert set(kinds) == {Kind.TOKEN_MISMATCH}


def test_one_rank_is_judged_by_what_it_said_first():
    book = ReferenceBook()
    assert settled(book, OLD) == (Found.LEARNT, [Kind.PASS])
    assert book.source(KEY) is Source.SELF
    assert settled(book, says(1, 2, off=0.29)) == (Found.NOTHING, [Kind.PASS])
    assert settled(book, says(1, 2, off=0.31)) == (Found.NOTHING, [Kind.LOGIT_DRIFT])
    assert book.judge(KEY, RANKS[1], OLD, 0.0) is None, "of another one nothing is known"


def test_what_has_no_numbers_is_wrong_with_nothing_to_compare_it_with():
    book, broken = ReferenceBook(), Answer([0, 0], [None, None])
    assert book.judge(KEY, RANKS[0], broken, 0.0).kind is Kind.LOGIT_DRIFT
    assert settled(book, broken) == (Found.LEARNT, [Kind.LOGIT_DRIFT])
    assert settled(book, OLD) == (Found.LEARNT, [Kind.PASS]), "and never a reference"


def test_two_that_differ_at_first_stay_what_they_are():
    book = ReferenceBook()
    assert settled(book, OLD, BAD) == (Found.DISAGREEMENT, [None, None])
    assert settled(book, OLD, BAD) == (Found.NOTHING, [Kind.PASS, Kind.PASS])


def test_two_that_change_together_are_a_new_model():
    book = ReferenceBook()
    settled(book, OLD, OLD)
    assert settled(book, NEW, NEW) == (Found.CHANGED, [Kind.PASS, Kind.PASS])
    assert settled(book, NEW, OLD) == (Found.NOTHING, [Kind.PASS, Kind.TOKEN_MISMATCH])


def test_a_third_rank_brings_a_vote():
    book = ReferenceBook()
    settled(book, OLD, BAD)
    assert settled(book, OLD, BAD, OLD)[0] is Found.LEARNT
    assert book.source(KEY) is Source.AGREEMENT


def test_what_a_process_said_is_forgotten_with_it():
    book = ReferenceBook()
    settled(book, OLD)
    book.forget_rank(RANKS[0])
    book.forget_rank(RANKS[1])
    assert settled(book, NEW) == (Found.LEARNT, [Kind.PASS])


def test_references_survive_as_json():
    book, other = a_book(), ReferenceBook()
    text = msgspec.json.encode(list(book.stored()))
    for stored in msgspec.json.decode(text, type=list[StoredReference]):
        other.restore(stored)
    assert list(other.stored()) == list(book.stored())
    assert other.judge(KEY, RANKS[0], OLD, 0.0).kind is Kind.PASS
    other.forget("another")
    assert other.source(KEY) is Source.AGREEMENT
    other.forget("model")
    assert other.source(KEY) is None


def test_the_oldest_of_too_many_is_forgotten(monkeypatch):
    monkeypatch.setattr(reference_book, "REFERENCES_MAX", 2)
    book = ReferenceBook()
    keys = [KEY._replace(prompt=str(n)) for n in range(3)]
    for key in keys:
        book.settle(key, {RANKS[0]: OLD}, 1, 0.0)
    assert [book.source(key) for key in keys] == [None, Source.SELF, Source.SELF]
    book.forget_rank(RANKS[0])
