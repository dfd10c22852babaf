"""Tests of pooled answers: answers that are wrong alone may be right together."""

import pytest

from select_service.core.health.answers.answer_averaging import (
    WRONG_ANSWERS_MAX,
    WrongAnswers,
    mean_answer,
)
from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from select_service.core.health.answers.reference_answers import ReferenceKey
from select_service.core.health.health_kinds import CheckKind

TOP = [{1: -0.5, 9: -0.55}, {2: -0.5}, {3: -0.5}]
RIGHT = CanaryAnswer([1, 2, 3], [-0.5, -0.5, -0.5], TOP)
KEY = ReferenceKey("model", "default", "prompt")


def off(*by, tokens=(1, 2, 3), top=TOP):
    return CanaryAnswer(list(tokens), [-0.5 + x for x in by], top)


def kind_of(*answers):
    return judge_answer(RIGHT, mean_answer(answers), 0.02).kind


NOISE = [off(0.03, 0, 0), off(0, -0.03, 0), off(-0.03, 0.03, 0.03)]


def test_noise_averages_out_and_a_constant_deviation_does_not():
    assert {kind_of(each) for each in NOISE} == {CheckKind.LOGIT_DRIFT}
    assert kind_of(*NOISE) is CheckKind.PASS
    assert kind_of(*[off(0, 0.021, 0)] * 9) is CheckKind.LOGIT_DRIFT


def test_a_single_answer_is_its_own_mean():
    (alone,) = [mean_answer([each]) for each in NOISE[:1]]
    assert (list(alone.tokens), list(alone.logprobs)) == ([1, 2, 3], NOISE[0].logprobs)


def test_an_answer_with_the_other_token_of_a_tie_counts_up_to_the_tie():
    """Check an answer with a likelier own token, which lists the other token as less likely."""
    aside = off(0.03, 9, 9, tokens=(9, 7, 7), top=[{1: -0.53, 9: -0.47}, {}, {}])
    usual = off(0.03, 0.01, 0)
    found = mean_answer([aside, usual, usual])
    assert found.tokens == [1, 2, 3]
    assert found.logprobs == pytest.approx([-0.5 + 0.03 / 3, -0.49, -0.5])


def test_a_tie_that_most_take_the_other_way_is_one():
    """Check that the comparison ends at the tie."""
    top = [{1: -0.53, 9: -0.50}, {}, {}]
    aside = [off(0.0, 9, 9, tokens=(9, 7, 7), top=top), off(-0.06, 1, 1, tokens=(9, 7, 7), top=top)]
    assert kind_of(*aside, off(0.03, 0, 0)) is CheckKind.PASS


WRONG = [
    (off(0, 0, 0, tokens=(1, 5, 3)), CheckKind.TOKEN_MISMATCH),
    (CanaryAnswer([1], [-0.5], TOP[:1]), CheckKind.TOKEN_MISMATCH),
    (CanaryAnswer([1, 2, 3], [-0.5, None, -0.5], TOP), CheckKind.LOGIT_DRIFT),
    (CanaryAnswer([0, 0, 0], [-9999.0] * 3, TOP), CheckKind.LOGIT_DRIFT),
]


@pytest.mark.parametrize(("wrong", "kind"), WRONG)
def test_a_constantly_wrong_answer_stays_wrong(wrong, kind):
    found = kind_of(wrong, wrong, wrong)
    assert found is kind or found is judge_answer(RIGHT, wrong, 0.02).kind


@pytest.mark.parametrize("at", range(3))
def test_an_end_too_early_or_no_number_is_no_noise(at):
    for wrong, kind in WRONG[1:3]:
        answers = [off(0, 0, 0), off(0, 0, 0)]
        answers.insert(at, wrong)
        assert kind_of(*answers) is kind


def test_a_pool_is_about_one_prompt_and_ends_with_a_right_answer():
    pool = WrongAnswers()
    assert pool.count_answers("prompt") == 0
    for n in range(1, 4):
        pool.add_answer(KEY, NOISE[0])
        assert (pool.count_answers("prompt"), pool.count_answers("another")) == (n, 0)
    mean = pool.add_answer(KEY._replace(weight_version="2"), NOISE[1])
    assert mean.logprobs == NOISE[1].logprobs
    assert pool.count_answers("prompt") == 1
    pool.remove_all()
    assert pool.count_answers("prompt") == 0


def test_a_pool_is_bounded():
    pool = WrongAnswers()
    for n in range(2 * WRONG_ANSWERS_MAX):
        pool.add_answer(KEY, off(float(n >= WRONG_ANSWERS_MAX), 0, 0))
    assert pool.count_answers("prompt") == WRONG_ANSWERS_MAX
    assert mean_answer(pool.answers).logprobs[0] == pytest.approx(0.5)
