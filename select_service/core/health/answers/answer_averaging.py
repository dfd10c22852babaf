"""Average of several answers of a rank to the same prompt.

Noise differs in every answer, and the effect of a corrupt weight does not. If several answers
deviate slightly, their mean tells the two causes apart.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from select_service.core.health.answers.answer_check import CanaryAnswer, TokenOrText, is_no_logprob
from select_service.core.health.answers.reference_answers import ReferenceKey

WRONG_ANSWERS_MAX = 16
"""Maximum number of latest answers kept."""


@dataclass(slots=True)
class WrongAnswers:
    """Wrong answers since the last right answer.

    reference_key: reference key of the answers; None means empty
    """

    reference_key: ReferenceKey | None = None
    answers: deque[CanaryAnswer] = field(default_factory=lambda: deque(maxlen=WRONG_ANSWERS_MAX))

    def add_answer(self, reference_key: ReferenceKey, answer: CanaryAnswer) -> CanaryAnswer:
        """Add an answer and return the mean of all answers to the same prompt. O(answers *
        tokens)
        """
        # Answers to another prompt or of other weights cannot be averaged.
        if reference_key != self.reference_key:
            self.remove_all()
        self.reference_key = reference_key
        self.answers.append(answer)
        return mean_answer(self.answers)

    def count_answers(self, prompt: str) -> int:
        """Return the number of answers to the prompt of this name."""
        return (
            len(self.answers)
            if self.reference_key is not None and self.reference_key.prompt == prompt
            else 0
        )

    def remove_all(self) -> None:
        """Remove all answers."""
        self.reference_key = None
        self.answers.clear()


def mean_answer(answers: Sequence[CanaryAnswer]) -> CanaryAnswer:
    """Return the mean answer: at each position the most frequent token and its mean
    log-probability.

    An answer with another token is left out from that position on, since later tokens cannot be
    compared. The result is as short as the shortest answer. A missing log-probability in any answer
    makes the mean None, since noise never causes missing values.

    answers: at least one, none malformed
    """
    left = list(answers)
    tokens: list[TokenOrText] = []
    logprobs: list[float | None] = []
    for at in range(min(len(answer.tokens) for answer in answers)):
        ((token, _),) = Counter(answer.tokens[at] for answer in left).most_common(1)
        tokens.append(token)
        logprobs.append(_mean_at(at, token, left))
        # Later tokens depend on earlier ones: after a different token nothing is comparable.
        left = [answer for answer in left if answer.tokens[at] == token]
    return CanaryAnswer(tokens, logprobs, left[0].top)


def _mean_at(at: int, token: TokenOrText, answers: Sequence[CanaryAnswer]) -> float | None:
    """Return the mean over all answers that list the token, chosen or not."""
    if any(is_no_logprob(answer.logprobs[at]) for answer in answers):
        return None
    found = (_logprob_of(answer, at, token) for answer in answers)
    return fmean(x for x in found if x is not None)


def _logprob_of(answer: CanaryAnswer, at: int, token: TokenOrText) -> float | None:
    if answer.tokens[at] == token:
        return answer.logprobs[at]
    return answer.top[at].get(token) if at < len(answer.top) else None
