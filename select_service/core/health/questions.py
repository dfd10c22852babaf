"""Before a rank is blamed for its answer, its peers are asked the same.

A question is open until all that were asked have answered, or until the next check of the rank
would be due.  Answers that nothing is known to judge by, and wrong ones, are held so long; then
`ReferenceBook.settle` looks at them together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from select_service.core.health.judging import Answer
from select_service.core.health.kinds import Kind
from select_service.core.health.reference_book import ReferenceKey
from select_service.core.identity import PartitionKey, Rank

ANSWERS_MAX = 16
"""That are looked at together."""


class Result(NamedTuple):
    """Of one check.

    started_at:  when its first request was sent
    latency_ms:  of the attempt that passed, None: it does not count
    host_ms:     of it, what a busy host may have added
    reference, answer: None: there was no answer that could be judged
    otherwise:   its kind if the answer is right after all, by what came behind it
    """

    rank: Rank
    kind: Kind
    started_at: float
    prompt_number: int
    latency_ms: float | None = None
    reference: ReferenceKey | None = None
    answer: Answer | None = None
    why: str = ""
    host_ms: float = 0.0
    otherwise: Kind = Kind.PASS


class Scope(NamedTuple):
    """What a question is about."""

    key: PartitionKey
    prompt_number: int


@dataclass(slots=True)
class Question:
    """waiting: who was asked and has not answered;  held: whose results wait for the end

    seed: that peers are asked with
    """

    deadline: float
    waiting: set[Rank]
    seed: int = 0
    results: dict[Rank, Result] = field(default_factory=dict)
    held: set[Rank] = field(default_factory=set)

    def answered(self, result: Result, holds: bool) -> None:
        """One more answer."""
        self.waiting.discard(result.rank)
        self.results[result.rank] = result
        if holds:
            self.held.add(result.rank)

    def groups(self) -> dict[ReferenceKey, dict[Rank, Answer]]:
        """Answers that can be compared: of the same weights and engine."""
        groups: dict[ReferenceKey, dict[Rank, Answer]] = {}
        for rank, result in self.results.items():
            assert result.reference is not None
            assert result.answer is not None
            groups.setdefault(result.reference, {})[rank] = result.answer
        return groups


class Questions:
    """Those that are open, and when one was last asked of a scope."""

    def __init__(self) -> None:
        self._open: dict[Scope, Question] = {}
        self._asked_at: dict[Scope, float] = {}

    def of(self, scope: Scope) -> Question | None:
        """None: none is open."""
        return self._open.get(scope)

    def open(self) -> Iterator[Question]:
        """All of them."""
        return iter(self._open.values())

    def may_learn(self, scope: Scope, now: float, again_s: float) -> bool:
        """Has nobody asked for so long?"""
        at = self._asked_at.get(scope)
        return at is None or now - at >= again_s

    def begin(self, scope: Scope, question: Question, now: float) -> None:
        """Peers have been asked."""
        self._open[scope], self._asked_at[scope] = question, now

    def silent(self, rank: Rank) -> None:
        """A check of it ended without an answer, or it has gone."""
        for question in self._open.values():
            question.waiting.discard(rank)

    def take_ended(self, now: float) -> Question | None:
        """The oldest that waits for nobody, or has waited long enough.  O(open questions)"""
        for scope, question in self._open.items():
            if not question.waiting or now >= question.deadline:
                return self._open.pop(scope)
        return None

    def forget(self, key: PartitionKey) -> None:
        """A partition has gone."""
        for scopes in (self._open, self._asked_at):
            for scope in [scope for scope in scopes if scope.key == key]:
                del scopes[scope]
