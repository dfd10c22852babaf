"""Answers next to references, and what several answers agree on."""

from collections.abc import Iterator
from typing import Any

from select_service.core.health.answers.answer_agreement import (
    find_largest_agreeing_set,
    vote_on_answers,
)
from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from tests.vectors.differences import Difference, differences


def play_judge(case: dict[str, Any]) -> Iterator[Difference]:
    """The verdict; why is for people."""
    reference, answer = answer_of(case["reference"]), answer_of(case["answer"])
    verdict = judge_answer(reference, answer, case["tolerance"], case["tie"])
    yield from differences(case["verdict"], str(verdict.kind), "verdict")


def play_agreement(case: dict[str, Any]) -> Iterator[Difference]:
    """What is agreed on and by whom; without agreement, how many did agree."""
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
    """Keys of objects are texts in JSON, ids otherwise."""
    ids = all(isinstance(token, int) for token in given["tokens"])
    top = given.get("top") or ()
    listed = [{int(t) if ids else t: p for t, p in position.items()} for position in top]
    return CanaryAnswer(given["tokens"], given["logprobs"], listed)
