"""Answers: what is right, what is wrong, and what cannot be known."""

from math import inf, nan

import pytest

from select_service.core.health.agreement import agreement
from select_service.core.health.canary_prompts import CanaryPrompt, default_prompts
from select_service.core.health.judging import Answer, Expected, judge, judge_expected
from select_service.core.health.kinds import Kind

TOP = [{1: -0.5, 2: -0.55}, {3: -0.1, 4: -2.0}]
REFERENCE = Answer([1, 3], [-0.5, -0.1], TOP)


def an_answer(tokens=(1, 3), logprobs=(-0.5, -0.1)):
    return Answer(list(tokens), list(logprobs))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (an_answer(), Kind.PASS),
        (an_answer((1, 3, 9), (-0.5, -0.1, None)), Kind.PASS),
        (an_answer((2, 9), (-0.56, -7.0)), Kind.PASS),
        (an_answer((2, 9), (-0.7, -7.0)), Kind.TOKEN_MISMATCH),
        (an_answer((1, 4), (-0.5, -2.0)), Kind.TOKEN_MISMATCH),
        (an_answer((1, 9), (-0.5, -0.1)), Kind.TOKEN_MISMATCH),
        (an_answer((1,), (-0.5,)), Kind.TOKEN_MISMATCH),
        (an_answer(logprobs=(-0.6, -0.1)), Kind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, None)), Kind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, nan)), Kind.LOGIT_DRIFT),
        (an_answer(logprobs=(-0.5, -inf)), Kind.LOGIT_DRIFT),
        (an_answer((0, 0), (-9999.0, -9999.0)), Kind.LOGIT_DRIFT),
        (an_answer((), ()), Kind.MALFORMED),
        (an_answer(logprobs=(-0.5,)), Kind.MALFORMED),
    ],
)
def test_an_answer_is_judged_position_by_position(answer, kind):
    assert judge(REFERENCE, answer, 0.05).kind is kind


def test_a_reference_without_numbers_proves_nothing_right():
    for broken in (None, nan):
        assert judge(an_answer(logprobs=(broken, -0.1)), an_answer(), 9.0).kind is Kind.LOGIT_DRIFT


def test_numbers_that_are_none_are_found_wherever_they_stand():
    for broken in (None, nan, inf, -inf, -9000.0):
        for at in range(3):
            logprobs = [-0.5, -0.1, -0.2]
            logprobs[at] = broken
            answer = an_answer((1, 3, 5), logprobs)
            right = an_answer((1, 3, 5), [-0.5, -0.1, -0.2])
            assert judge(right, answer, 1e9).kind is Kind.LOGIT_DRIFT
            assert judge(right, right, 0.0).kind is Kind.PASS


def test_texts_are_compared_as_ids_are():
    reference = Answer(["a"], [-1.0], [{"a": -1.0, "b": -1.05}])
    assert judge(reference, Answer(["b"], [-1.04]), 0.05).why == "near tie at 0"
    assert judge(reference, Answer(["c"], [-1.0]), 0.05).why == "c for a at 0"


@pytest.mark.parametrize(
    ("answer", "plain", "checked"),
    [
        (an_answer(), Kind.PASS, Kind.PASS),
        (an_answer(logprobs=(-3.0, -0.1)), Kind.PASS, Kind.LOGIT_DRIFT),
        (an_answer(logprobs=(None, None)), Kind.PASS, Kind.LOGIT_DRIFT),
        (an_answer((1, 2)), Kind.TOKEN_MISMATCH, Kind.TOKEN_MISMATCH),
        (an_answer((1,), (-0.5,)), Kind.TOKEN_MISMATCH, Kind.TOKEN_MISMATCH),
        (an_answer((), ()), Kind.MALFORMED, Kind.MALFORMED),
    ],
)
def test_what_an_operator_expects_is_compared_as_he_says(answer, plain, checked):
    assert judge_expected(Expected((1, 3)), answer).kind is plain
    assert judge_expected(Expected((1, 3), (-1.0, 0.0), True), answer).kind is checked


def test_fewer_than_two_thirds_is_no_agreement():
    good, bad = an_answer(), an_answer((7, 7))
    assert agreement({"a": good, "b": good}) is None
    assert agreement({"a": good, "b": good, "c": bad, "d": bad}) is None
    empty = Answer([1, 3], [])
    assert agreement({"a": empty, "b": empty, "c": empty}) is None
    found = agreement({"a": bad, "b": good, "c": good})
    assert (found.leader, found.members, found.outvoted) == ("b", ("b", "c"), ("a",))


def test_made_up_prompts_are_always_the_same_and_have_names():
    prompts = default_prompts(32_000)
    assert [len(p.prompt) for p in prompts] == [5, 40, 200]
    assert prompts == default_prompts(32_000)
    assert all(10 <= token < 32_000 for p in prompts for token in p.prompt)
    assert len({p.name for p in (*prompts, CanaryPrompt("text"))}) == 4
    assert CanaryPrompt("text").name == CanaryPrompt("text", expected=Expected((1,))).name
    with pytest.raises(ValueError, match="vocab_size"):
        default_prompts(10)
