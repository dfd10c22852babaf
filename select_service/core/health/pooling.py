"""Several answers of one rank to the same prompt, looked at as one.

Noise is another one in every answer, a wrong weight is not: where each of some answers is a little
off, their mean shows which of the two it is.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from select_service.core.health.judging import Answer, Token, is_no_logprob
from select_service.core.health.reference_book import ReferenceKey

POOL_MAX = 16
"""Answers; the latest."""


@dataclass(slots=True)
class Pool:
    """Answers that were wrong alone, since the last one that was right.

    to: what they are answers to;  None: there are none
    """

    to: ReferenceKey | None = None
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=POOL_MAX))

    def with_another(self, to: ReferenceKey, answer: Answer) -> Answer:
        """Keep one more; the mean of all to the same.  O(answers * tokens)"""
        if to != self.to:
            self.clear()
        self.to = to
        self.answers.append(answer)
        return mean_answer(self.answers)

    def size(self, prompt: str) -> int:
        """How many answers to the prompt of that name there are."""
        return len(self.answers) if self.to is not None and self.to.prompt == prompt else 0

    def clear(self) -> None:
        """One was right, or the next ones are about something else."""
        self.to = None
        self.answers.clear()


def mean_answer(answers: Sequence[Answer]) -> Answer:
    """Position by position the token that most say, and the mean of its log-probabilities.

    Who says another token is left out from there on, since what follows it cannot be compared.  As
    short as the shortest, and without a number where one of them has none: that is no noise.
    answers: one at least, none malformed
    """
    left = list(answers)
    tokens: list[Token] = []
    logprobs: list[float | None] = []
    for at in range(min(len(answer.tokens) for answer in answers)):
        ((token, _),) = Counter(answer.tokens[at] for answer in left).most_common(1)
        tokens.append(token)
        logprobs.append(_mean_at(at, token, left))
        left = [answer for answer in left if answer.tokens[at] == token]
    return Answer(tokens, logprobs, left[0].top)


def _mean_at(at: int, token: Token, answers: Sequence[Answer]) -> float | None:
    """Of those that name it, whether or not they chose it."""
    if any(is_no_logprob(answer.logprobs[at]) for answer in answers):
        return None
    found = (_logprob_of(answer, at, token) for answer in answers)
    return fmean(x for x in found if x is not None)


def _logprob_of(answer: Answer, at: int, token: Token) -> float | None:
    if answer.tokens[at] == token:
        return answer.logprobs[at]
    return answer.top[at].get(token) if at < len(answer.top) else None
