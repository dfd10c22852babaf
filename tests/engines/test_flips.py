"""Tests of the share of wrong weights that answers reveal; noise does not count as a fault.

scripts/test_slow tests/engines/test_flips.py -s      # prints percentages
"""

from random import Random

import pytest

from select_service.core.health.answers.answer_averaging import mean_answer
from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.health_kinds import CheckKind
from tests.builders.decoder import Decoder

FLIPS = 200
SMALLEST_TOLERANCE = 0.02
SIGN, TOP_EXPONENT = 15, 14
PROMPTS = default_prompts()


def answer(model, prompt, seed=0, noise=0.0):
    steps = model.generate(list(prompt.prompt), prompt.max_tokens, seed, noise)
    return CanaryAnswer(
        [step.read_token for step in steps],
        [step.logprob for step in steps],
        [step.likely for step in steps],
    )


def has_wrong_answer(model, references):
    """Return whether any answer is wrong."""
    return any(
        judge_answer(reference, answer(model, prompt), SMALLEST_TOLERANCE).kind
        is not CheckKind.PASS
        for prompt, reference in zip(PROMPTS, references, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("bit", "share"), [(SIGN, 0.4), (TOP_EXPONENT, 0.95)])
def test_flipped_bits_are_found(bit, share):
    model, rng = Decoder(1), Random(bit)
    references = [answer(model, prompt) for prompt in PROMPTS]
    seen = 0
    for _ in range(FLIPS):
        flip = model.draw_flip(rng, bit)
        model.flip(flip)
        seen += has_wrong_answer(model, references)
        model.flip(flip)
    print(f"bit {bit}: {seen / FLIPS:.0%} of {FLIPS}")
    assert seen >= share * FLIPS
    assert not has_wrong_answer(model, references), "as it was"


def test_noise_of_one_answer_looks_like_a_wrong_weight_and_that_of_nine_does_not():
    model, prompt = Decoder(1), PROMPTS[0]
    reference = answer(model, prompt)
    answers = [answer(model, prompt, seed, 0.01) for seed in range(9)]
    alone = [judge_answer(reference, each, SMALLEST_TOLERANCE).kind for each in answers]
    assert CheckKind.PASS not in alone[:1] or CheckKind.LOGIT_DRIFT in alone
    assert judge_answer(reference, mean_answer(answers), SMALLEST_TOLERANCE).kind is CheckKind.PASS
