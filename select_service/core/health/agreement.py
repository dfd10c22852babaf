"""What the ranks of a model agree on, with nobody there who knows the right answer.

Of the answers to the same prompt the largest set is taken in which all agree with one member.
Answers differ a little, and how much they do says how much a right one may: the tolerance is
learnt with the reference.
"""

from collections.abc import Hashable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

from select_service.core.health.judging import Answer, judge
from select_service.core.health.kinds import Kind

ANSWERS_MIN = 3
"""Fewer do not vote."""
AGREE_TOLERANCE = 0.5
"""Within which two answers agree before it is known how much they differ."""
DEVIATIONS = 6.0
"""Of the median absolute deviation, that a right answer may be off."""
TOLERANCE_MIN, TOLERANCE_MAX = 0.02, 0.5

Name = TypeVar("Name", bound=Hashable)


class LearntReference(NamedTuple):
    """answer: tokens of one member, medians of the log-probabilities"""

    answer: Answer
    tolerance: float


class Agreement(NamedTuple):
    """Names in the order of the answers.  leader: with whom all members agree"""

    leader: object
    members: tuple[object, ...]
    outvoted: tuple[object, ...]
    reference: LearntReference


def agreement(answers: Mapping[Name, Answer]) -> Agreement | None:
    """None: fewer than three answers, or no two thirds of them agree.  O(answers^2 * tokens)"""
    if len(answers) < ANSWERS_MIN:
        return None
    leader, members = largest_set(answers)
    if leader is None or 3 * len(members) < 2 * len(answers):
        return None
    outvoted = tuple(name for name in answers if name not in members)
    reference = reference_of(answers[leader], [answers[name] for name in members])
    return Agreement(leader, members, outvoted, reference)


def largest_set(answers: Mapping[Name, Answer]) -> tuple[Name | None, tuple[Name, ...]]:
    """All that agree with one of them; the first one of equals.

    Not even with itself agrees an answer that has no numbers.
    """
    names = list(answers)
    friends: dict[Name, set[Name]] = {name: set() for name in names}
    for at, one in enumerate(names):
        for other in names[at:]:
            if agree(answers[one], answers[other]):
                friends[one].add(other)
                friends[other].add(one)
    leader = max(names, key=lambda name: len(friends[name]), default=None)
    if leader is None or not friends[leader]:
        return None, ()
    return leader, tuple(name for name in names if name in friends[leader])


def agree(one: Answer, other: Answer, tolerance: float = AGREE_TOLERANCE) -> bool:
    """Could each be right if the other one is?"""
    if one.is_malformed or judge(one, other, tolerance).kind is not Kind.PASS:
        return False
    return one is other or judge(other, one, tolerance).kind is Kind.PASS


def reference_of(leader: Answer, members: list[Answer]) -> LearntReference:
    """The middle of those that have the leader's tokens, and how far they are from it."""
    same = [a.logprobs for a in members if list(a.tokens) == list(leader.tokens)]
    columns = [[x for x in column if x is not None] for column in zip(*same, strict=True)]
    middle = [median(column) for column in columns]
    away = [abs(x - m) for column, m in zip(columns, middle, strict=True) for x in column]
    tolerance = min(max(DEVIATIONS * median(away), TOLERANCE_MIN), TOLERANCE_MAX)
    return LearntReference(Answer(leader.tokens, middle, leader.top), tolerance)
