"""Is an answer the one that the model gives?

Engines batch, and their kernels are not invariant to what else is in the batch: the same prompt
differs in the third decimal, and at near ties in the token, also at temperature 0.  So a token that
the reference lists next to its own is right, too, and what follows it cannot be compared; and
log-probabilities have a tolerance.  What a wrong answer proves, and a right one does not, is in
docs/health.md.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from operator import eq, sub
from typing import NamedTuple, cast

from select_service.core.health.kinds import Kind

Token = int | str
"""An id, or its text from an engine that names no ids."""

TIE = 0.1
"""Log-probabilities that are so close are a tie."""
NO_LOGPROB = -9000.0
"""What engines write for minus infinity is below."""


class Answer(NamedTuple):
    """What an engine generated for a canary.

    logprobs: of each token; None: it gave none there
    top:      per position, the likeliest tokens and their log-probabilities
    """

    tokens: Sequence[Token]
    logprobs: Sequence[float | None]
    top: Sequence[Mapping[Token, float]] = ()

    @property
    def is_malformed(self) -> bool:
        """Nothing in it could be compared."""
        return not self.tokens or len(self.logprobs) != len(self.tokens)


class Verdict(NamedTuple):
    """why: where and what, for people"""

    kind: Kind
    why: str


class Expected(NamedTuple):
    """What an operator says the answer is.

    first_logprob: bounds of the first token's log-probability
    """

    tokens: Sequence[Token]
    first_logprob: tuple[float, float] = (-inf, inf)
    checks_logprobs: bool = False


_PASS = Verdict(Kind.PASS, "all")


def judge(reference: Answer, answer: Answer, tolerance: float, tie: float = TIE) -> Verdict:
    """Position by position; the first finding decides.  O(tokens)"""
    if _is_same(reference, answer, tolerance):
        return _PASS
    if answer.is_malformed:
        return Verdict(Kind.MALFORMED, "no tokens, or log-probabilities of another length")
    for at, wanted in enumerate(reference.tokens):
        if at >= len(answer.tokens):
            ends = f"ends after {at} of {len(reference.tokens)} tokens"
            return Verdict(Kind.TOKEN_MISMATCH, ends)
        found, token = answer.logprobs[at], answer.tokens[at]
        if is_no_logprob(found):
            return Verdict(Kind.LOGIT_DRIFT, f"log-probability {found} at {at}")
        assert found is not None
        if token != wanted:
            return _judge_other_token(reference, at, token, found, tolerance, tie)
        known = reference.logprobs[at]
        if known is None or not abs(found - known) <= tolerance:  # which is so of no number, too
            return Verdict(Kind.LOGIT_DRIFT, f"{found:.6g} for {known} at {at}")
    return Verdict(Kind.PASS, "all")


def _is_same(reference: Answer, answer: Answer, tolerance: float) -> bool:
    """Is it right without any doubt?  The usual case, in little time."""
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
    # the sum is no number where one of them is none, which max and min would overlook
    is_close = isfinite(sum(away)) and -tolerance <= min(away) and max(away) <= tolerance
    return is_close and min(found) > NO_LOGPROB


def _judge_other_token(
    reference: Answer, at: int, token: Token, found: float, tolerance: float, tie: float
) -> Verdict:
    """Right if it is as likely as that of the reference, and as likely as it was there."""
    own, top = reference.logprobs[at], reference.top
    listed = top[at].get(token) if at < len(top) else None
    if listed is None or own is None or abs(listed - own) > tie or abs(found - listed) > tolerance:
        return Verdict(Kind.TOKEN_MISMATCH, f"{token} for {reference.tokens[at]} at {at}")
    return Verdict(Kind.PASS, f"near tie at {at}")


def judge_expected(expected: Expected, answer: Answer) -> Verdict:
    """By what an operator wrote down: tokens, and log-probabilities only if it says so."""
    if answer.is_malformed:
        return Verdict(Kind.MALFORMED, "no tokens, or log-probabilities of another length")
    for at, wanted in enumerate(expected.tokens):
        if at >= len(answer.tokens):
            ends = f"ends after {at} of {len(expected.tokens)} tokens"
            return Verdict(Kind.TOKEN_MISMATCH, ends)
        if expected.checks_logprobs and is_no_logprob(answer.logprobs[at]):
            return Verdict(Kind.LOGIT_DRIFT, f"log-probability {answer.logprobs[at]} at {at}")
        if answer.tokens[at] != wanted:
            return Verdict(Kind.TOKEN_MISMATCH, f"{answer.tokens[at]} for {wanted} at {at}")
    first, (low, high) = answer.logprobs[0], expected.first_logprob
    if expected.checks_logprobs and first is not None and not low <= first <= high:
        return Verdict(Kind.LOGIT_DRIFT, f"{first:.4g} at 0, expected {low:.4g} to {high:.4g}")
    return Verdict(Kind.PASS, "all")


def is_no_logprob(value: float | None) -> bool:
    """None, not a number, or what stands for minus infinity: so logits that are no numbers look."""
    return value is None or not isfinite(value) or value <= NO_LOGPROB
