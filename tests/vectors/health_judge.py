"""Player of canary answers: judgements against references, and agreement between answers."""

from collections.abc import Iterator
from typing import Any

from select_service.core.health.answers.answer_agreement import (
    find_largest_agreeing_set,
    vote_on_answers,
)
from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from tests.vectors.differences import Difference, differences


def play_judge(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the kind of verdict; its reason is text for people."""
    reference, answer = answer_of(case["reference"]), answer_of(case["answer"])
    verdict = judge_answer(reference, answer, case["tolerance"], case["tie"])
    yield from differences(case["verdict"], str(verdict.kind), "verdict")


def play_agreement(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the agreed reference and its members, or the size of the largest set."""
    answers = {name: answer_of(answer) for name, answer in case["answers"].items()}
    expected = {key: value for key, value in case["result"].items() if key != "why"}
    found = vote_on_answers(answers)
    if found is None:
        _, largest = find_largest_agreeing_set(answers)
        yield from differences(expected, {"reference": None, "largest": len(largest)})
        return
    reference = {
        "tokens": list(found.reference.answer.tokens),
        "logprobs": list(found.reference.answer.logprobs),
    }
    result = {
        "reference": reference,
        "from": found.leader,
        "members": list(found.members),
        "outvoted": list(found.outvoted),
        "tolerance": found.reference.tolerance,
    }
    yield from differences(expected, result)


def answer_of(given: dict[str, Any]) -> CanaryAnswer:
    """Return a case's answer, with integer keys if tokens are ids: JSON keys are texts."""
    ids = all(isinstance(token, int) for token in given["tokens"])
    top = given.get("top") or ()
    listed = [{int(t) if ids else t: p for t, p in position.items()} for position in top]
    return CanaryAnswer(given["tokens"], given["logprobs"], listed)
