"""Majority vote on the right answer, for models without a known reference answer.

Among the answers to the same prompt, the largest set is taken in which every answer agrees with
one leading answer. Correct answers differ slightly; the tolerance is learnt from their spread.
"""

from collections.abc import Hashable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from select_service.core.health.health_kinds import CheckKind

ANSWERS_MIN = 3
"""Minimum number of answers for a vote."""
AGREE_TOLERANCE = 0.5
"""Tolerance for comparing two answers before their usual spread is known, in log-probability."""
DEVIATIONS = 6.0
"""Allowed deviation of a right answer, in median absolute deviations."""
TOLERANCE_MIN, TOLERANCE_MAX = 0.02, 0.5

AnswerName = TypeVar("AnswerName", bound=Hashable)


class LearntReference(NamedTuple):
    """Reference answer computed from agreeing ranks, with its tolerance.

    answer: tokens of the leader, medians of the log-probabilities
    tolerance: allowed difference of a log-probability
    """

    answer: CanaryAnswer
    tolerance: float


class AnswerAgreement(NamedTuple):
    """Result of a successful vote; names are in the order of the answers.

    leader: name of the answer that agrees with every member
    """

    leader: object
    members: tuple[object, ...]
    outvoted: tuple[object, ...]
    reference: LearntReference


def vote_on_answers(answers: Mapping[AnswerName, CanaryAnswer]) -> AnswerAgreement | None:
    """Return the result of the vote.

    None means fewer than three answers, or no agreement among two thirds. O(answers^2 * tokens)
    """
    if len(answers) < ANSWERS_MIN:
        return None
    leader, members = find_largest_agreeing_set(answers)
    # Two thirds, not a simple majority: a wrong reference would eject every healthy rank,
    # while a missing reference only postpones detection.
    if leader is None or 3 * len(members) < 2 * len(answers):
        return None
    outvoted = tuple(name for name in answers if name not in members)
    reference = compute_reference(answers[leader], [answers[name] for name in members])
    return AnswerAgreement(leader, members, outvoted, reference)


def find_largest_agreeing_set(
    answers: Mapping[AnswerName, CanaryAnswer],
) -> tuple[AnswerName | None, tuple[AnswerName, ...]]:
    """Return the leader of the largest agreeing set and its members; the first of equal sets wins.

    An answer without usable numbers does not even agree with itself.
    """
    names = list(answers)
    friends: dict[AnswerName, set[AnswerName]] = {name: set() for name in names}
    for at, one in enumerate(names):
        for other in names[at:]:
            if answers_agree(answers[one], answers[other]):
                friends[one].add(other)
                friends[other].add(one)
    leader = max(names, key=lambda name: len(friends[name]), default=None)
    if leader is None or not friends[leader]:
        return None, ()
    return leader, tuple(name for name in names if name in friends[leader])


def answers_agree(
    answer: CanaryAnswer, other: CanaryAnswer, tolerance: float = AGREE_TOLERANCE
) -> bool:
    """Return whether two answers agree in both directions."""
    if answer.is_malformed or judge_answer(answer, other, tolerance).kind is not CheckKind.PASS:
        return False
    # The comparison is not symmetric (near ties are listed by the reference only),
    # so both directions have to pass.
    return answer is other or judge_answer(other, answer, tolerance).kind is CheckKind.PASS


def compute_reference(leader: CanaryAnswer, members: list[CanaryAnswer]) -> LearntReference:
    """Compute the reference: medians over the members with the leader's tokens, and their
    spread.
    """
    # Members may differ from the leader at near ties; only equal token sequences can be averaged.
    same = [a.logprobs for a in members if list(a.tokens) == list(leader.tokens)]
    columns = [[x for x in column if x is not None] for column in zip(*same, strict=True)]
    middle = [median(column) for column in columns]
    away = [abs(x - m) for column, m in zip(columns, middle, strict=True) for x in column]
    # Identical answers have a spread of 0; the lower bound keeps normal batching noise inside.
    tolerance = min(max(DEVIATIONS * median(away), TOLERANCE_MIN), TOLERANCE_MAX)
    return LearntReference(CanaryAnswer(leader.tokens, middle, leader.top), tolerance)
