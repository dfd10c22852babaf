"""Tests of verdicts on answers: right, wrong, or undecidable."""

from math import inf, nan

import pytest

from select_service.core.health.answers.answer_agreement import vote_on_answers
from select_service.core.health.answers.answer_check import (
    CanaryAnswer,
    ExpectedAnswer,
    judge_answer,
    judge_expected,
)
from select_service.core.health.checks.canary_prompts import CanaryPrompt, default_prompts
from select_service.core.health.health_kinds import CheckKind

TOP = [{1: -0.5, 2: -0.55}, {3: -0.1, 4: -2.0}]
REFERENCE = CanaryAnswer([1, 3], [-0.5, -0.1], TOP)


def an_answer(tokens=(1, 3), logprobs=(-0.5, -0.1)):
    return CanaryAnswer(list(tokens), list(logprobs))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (an_answer(), CheckKind.PASS),
        (an_answer((1, 3, 9), (-0.5, -0.1, None)), CheckKind.PASS),
        (an_answer((2, 9), (-0.56, -7.0)), CheckKind.PASS),
        (an_answer((2, 9), (-0.7, -7.0)), CheckKind.TOKEN_MISMATCH),
        (an_answer((1, 4), (-0.5, -2.0)), CheckKind.TOKEN_MISMATCH),
        (an_answer((1, 9), (-0.5, -0.1)), CheckKind.TOKEN_MISMATCH),
        (an_answer((1,), (-0.5,)), CheckKind.TOKEN_MISMATCH),
        (an_answer(logprobs=(-0.6, -0.1)), CheckKind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, None)), CheckKind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, nan)), CheckKind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, -inf)), CheckKind.LOGIT_DRIFT),
        (an_answer((0, 0), (-9999.0, -9999.0)), CheckKind.LOGIT_DRIFT),
        (an_answer((), ()), CheckKind.MALFORMED),
        (an_answer(logprobs=(-0.5,)), CheckKind.MALFORMED),
    ],
)
def test_an_answer_is_judged_position_by_position(answer, kind):
    assert judge_answer(REFERENCE, answer, 0.05).kind is kind


def test_a_reference_without_numbers_proves_nothing_right():
    for broken in (None, nan):
        assert (
            judge_answer(an_answer(logprobs=(broken, -0.1)), an_answer(), 9.0).kind
            is CheckKind.LOGIT_DRIFT
        )


def test_invalid_numbers_are_found_at_every_position():
    for broken in (None, nan, inf, -inf, -9000.0):
        for at in range(3):
            logprobs = [-0.5, -0.1, -0.2]
            logprobs[at] = broken
            answer = an_answer((1, 3, 5), logprobs)
            right = an_answer((1, 3, 5), [-0.5, -0.1, -0.2])
            assert judge_answer(right, answer, 1e9).kind is CheckKind.LOGIT_DRIFT
            assert judge_answer(right, right, 0.0).kind is CheckKind.PASS


def test_texts_are_compared_as_ids_are():
    reference = CanaryAnswer(["a"], [-1.0], [{"a": -1.0, "b": -1.05}])
    assert judge_answer(reference, CanaryAnswer(["b"], [-1.04]), 0.05).why == "near tie at 0"
    assert judge_answer(reference, CanaryAnswer(["c"], [-1.0]), 0.05).why == "c for a at 0"


@pytest.mark.parametrize(
    ("answer", "plain", "checked"),
    [
        (an_answer(), CheckKind.PASS, CheckKind.PASS),
        (an_answer(logprobs=(-3.0, -0.1)), CheckKind.PASS, CheckKind.LOGIT_DRIFT),
        (an_answer(logprobs=(None, None)), CheckKind.PASS, CheckKind.LOGIT_DRIFT),
        (an_answer((1, 2)), CheckKind.TOKEN_MISMATCH, CheckKind.TOKEN_MISMATCH),
        (an_answer((1,), (-0.5,)), CheckKind.TOKEN_MISMATCH, CheckKind.TOKEN_MISMATCH),
        (an_answer((), ()), CheckKind.MALFORMED, CheckKind.MALFORMED),
    ],
)
def test_an_expected_answer_is_compared_as_configured(answer, plain, checked):
    assert judge_expected(ExpectedAnswer((1, 3)), answer).kind is plain
    assert judge_expected(ExpectedAnswer((1, 3), (-1.0, 0.0), True), answer).kind is checked


def test_fewer_than_two_thirds_is_no_agreement():
    good, bad = an_answer(), an_answer((7, 7))
    assert vote_on_answers({"a": good, "b": good}) is None
    assert vote_on_answers({"a": good, "b": good, "c": bad, "d": bad}) is None
    empty = CanaryAnswer([1, 3], [])
    assert vote_on_answers({"a": empty, "b": empty, "c": empty}) is None
    found = vote_on_answers({"a": bad, "b": good, "c": good})
    assert (found.leader, found.members, found.outvoted) == ("b", ("b", "c"), ("a",))


def test_made_up_prompts_are_always_the_same_and_have_names():
    prompts = default_prompts(32_000)
    assert [len(p.prompt) for p in prompts] == [5, 40, 200]
    assert prompts == default_prompts(32_000)
    assert all(10 <= token < 32_000 for p in prompts for token in p.prompt)
    assert len({p.name for p in (*prompts, CanaryPrompt("text"))}) == 4
    assert CanaryPrompt("text").name == CanaryPrompt("text", expected=ExpectedAnswer((1,))).name
    with pytest.raises(ValueError, match="vocab_size"):
        default_prompts(10)
