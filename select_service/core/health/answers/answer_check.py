"""Comparison of a canary answer with its reference.

Engines batch requests, and their kernels are not invariant to the rest of the batch: the same
prompt differs in the third decimal, and at near ties in the token, even at temperature 0. A token
that the reference lists as a near tie is therefore right, and the tokens after it cannot be
compared. Log-probabilities have a tolerance. docs/guides/health.md explains what a wrong answer
proves, and why a right answer proves less.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from operator import eq, sub
from typing import NamedTuple, cast

from select_service.core.health.health_kinds import CheckKind

TokenOrText = int | str
"""Token id, or token text for engines without ids."""

NEAR_TIE = 0.1
"""Maximum distance of two log-probabilities that count as a tie."""
NO_LOGPROB = -9000.0
"""Upper bound of the values that engines write for minus infinity."""


class CanaryAnswer(NamedTuple):
    """Canary answer of an engine.

    logprobs: log-probability of each token; None marks a missing value
    top: likeliest tokens and their log-probabilities, for each position
    """

    tokens: Sequence[TokenOrText]
    logprobs: Sequence[float | None]
    top: Sequence[Mapping[TokenOrText, float]] = ()

    @property
    def is_malformed(self) -> bool:
        """Whether the answer has no tokens, or a wrong number of log-probabilities."""
        return not self.tokens or len(self.logprobs) != len(self.tokens)


class AnswerVerdict(NamedTuple):
    """Result of a comparison.

    why: position and values, for reports
    """

    kind: CheckKind
    why: str


class ExpectedAnswer(NamedTuple):
    """Expected answer given by the operator.

    first_logprob: bounds of the first token's log-probability
    """

    tokens: Sequence[TokenOrText]
    first_logprob: tuple[float, float] = (-inf, inf)
    checks_logprobs: bool = False


_PASS = AnswerVerdict(CheckKind.PASS, "all")


def judge_answer(
    reference: CanaryAnswer, answer: CanaryAnswer, tolerance: float, near_tie: float = NEAR_TIE
) -> AnswerVerdict:
    """Compare position by position; the first difference decides. O(tokens)"""
    # Nearly all answers take this path: its map() calls run in C.
    if _is_same(reference, answer, tolerance):
        return _PASS
    if answer.is_malformed:
        return AnswerVerdict(
            CheckKind.MALFORMED, "no tokens, or log-probabilities of another length"
        )
    for at, expected_token in enumerate(reference.tokens):
        if at >= len(answer.tokens):
            ends = f"ends after {at} of {len(reference.tokens)} tokens"
            return AnswerVerdict(CheckKind.TOKEN_MISMATCH, ends)
        found, token = answer.logprobs[at], answer.tokens[at]
        if is_no_logprob(found):
            return AnswerVerdict(CheckKind.LOGIT_DRIFT, f"log-probability {found} at {at}")
        assert found is not None
        if token != expected_token:
            return _judge_other_token(reference, at, token, found, tolerance, near_tie)
        expected_logprob = reference.logprobs[at]
        # "not <=" instead of ">": a NaN compares false and must count as drift.
        if expected_logprob is None or not abs(found - expected_logprob) <= tolerance:
            return AnswerVerdict(
                CheckKind.LOGIT_DRIFT, f"{found:.6g} for {expected_logprob} at {at}"
            )
    return AnswerVerdict(CheckKind.PASS, "all")


def _is_same(reference: CanaryAnswer, answer: CanaryAnswer, tolerance: float) -> bool:
    """Return whether the answer matches without any near tie: a fast test for the common case."""
    n = len(reference.tokens)
    if not 0 < n == len(answer.tokens) == len(answer.logprobs) == len(reference.logprobs):
        return False
    if not all(map(eq, reference.tokens, answer.tokens)):
        return False
    try:
        found = cast("Sequence[float]", answer.logprobs)
        away = [*map(sub, found, cast("Sequence[float]", reference.logprobs))]
    except TypeError:  # None is no number
        return False
    # The sum is NaN if any value is; max() and min() would overlook a NaN.
    is_close = isfinite(sum(away)) and -tolerance <= min(away) and max(away) <= tolerance
    return is_close and min(found) > NO_LOGPROB


def _judge_other_token(
    reference: CanaryAnswer,
    at: int,
    token: TokenOrText,
    logprob: float,
    tolerance: float,
    tie: float,
) -> AnswerVerdict:
    """Judge a different token: right at a near tie, if about as likely as in the reference."""
    # Three conditions: listed by the reference, tied with its token there, and as likely here
    # as listed there. The last one detects corrupt weights that happen to flip a tie.
    own, top = reference.logprobs[at], reference.top
    listed = top[at].get(token) if at < len(top) else None
    if (
        listed is None
        or own is None
        or abs(listed - own) > tie
        or abs(logprob - listed) > tolerance
    ):
        return AnswerVerdict(
            CheckKind.TOKEN_MISMATCH, f"{token} for {reference.tokens[at]} at {at}"
        )
    return AnswerVerdict(CheckKind.PASS, f"near tie at {at}")


def judge_expected(expected: ExpectedAnswer, answer: CanaryAnswer) -> AnswerVerdict:
    """Compare with the operator's answer; log-probabilities count only if configured."""
    if answer.is_malformed:
        return AnswerVerdict(
            CheckKind.MALFORMED, "no tokens, or log-probabilities of another length"
        )
    for at, expected_token in enumerate(expected.tokens):
        if at >= len(answer.tokens):
            ends = f"ends after {at} of {len(expected.tokens)} tokens"
            return AnswerVerdict(CheckKind.TOKEN_MISMATCH, ends)
        if expected.checks_logprobs and is_no_logprob(answer.logprobs[at]):
            return AnswerVerdict(
                CheckKind.LOGIT_DRIFT, f"log-probability {answer.logprobs[at]} at {at}"
            )
        if answer.tokens[at] != expected_token:
            return AnswerVerdict(
                CheckKind.TOKEN_MISMATCH, f"{answer.tokens[at]} for {expected_token} at {at}"
            )
    first, (low, high) = answer.logprobs[0], expected.first_logprob
    if expected.checks_logprobs and first is not None and not low <= first <= high:
        return AnswerVerdict(
            CheckKind.LOGIT_DRIFT, f"{first:.4g} at 0, expected {low:.4g} to {high:.4g}"
        )
    return AnswerVerdict(CheckKind.PASS, "all")


def is_no_logprob(value: float | None) -> bool:
    """Return whether the value is missing, not finite, or a code for minus infinity.

    Engines produce such values from NaN or infinite logits.
    """
    return value is None or not isfinite(value) or value <= NO_LOGPROB
