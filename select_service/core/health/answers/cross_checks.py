"""Cross-checks: peers get the same prompt before a rank is blamed for its answer.

A cross-check is open until all peers have answered, or until the next check of the rank would be
due. Answers without a reference, and wrong answers, are withheld until then.
`ReferenceAnswers.compare_answers` then compares all answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from select_service.core.health.answers.answer_check import CanaryAnswer
from select_service.core.health.answers.reference_answers import ReferenceKey
from select_service.core.health.health_kinds import CheckKind
from select_service.core.identity import PartitionKey, Rank

ANSWERS_MAX = 16
"""Maximum number of answers compared together."""


class CheckResult(NamedTuple):
    """Result of a check.

    started_at: time of its first request
    latency_ms: latency of the passed attempt; None means not counted
    host_ms: part of the latency that a busy host may explain
    reference, answer: None without an answer that can be judged
    kind_if_right: kind of the result if the vote finds the answer right, from later attempts
    was_answered: whether the rank answered any attempt, in whatever way
    """

    rank: Rank
    kind: CheckKind
    started_at: float
    prompt_number: int
    latency_ms: float | None = None
    reference: ReferenceKey | None = None
    answer: CanaryAnswer | None = None
    why: str = ""
    host_ms: float = 0.0
    kind_if_right: CheckKind = CheckKind.PASS
    was_answered: bool = False


class CrossCheckScope(NamedTuple):
    """Subject of a cross-check."""

    key: PartitionKey
    prompt_number: int


@dataclass(slots=True)
class CrossCheck:
    """Open cross-check.

    waiting_peers: peers without an answer so far
    withheld: ranks with results withheld until the end
    seed: sampling seed for the peers
    """

    deadline: float
    waiting_peers: set[Rank]
    seed: int = 0
    results: dict[Rank, CheckResult] = field(default_factory=dict)
    withheld: set[Rank] = field(default_factory=set)

    def add_answer(self, result: CheckResult, withholds: bool) -> None:
        """Add an answer."""
        self.waiting_peers.discard(result.rank)
        self.results[result.rank] = result
        if withholds:
            self.withheld.add(result.rank)

    def group_comparable(self) -> dict[ReferenceKey, dict[Rank, CanaryAnswer]]:
        """Return comparable answers: grouped by weights and engine."""
        groups: dict[ReferenceKey, dict[Rank, CanaryAnswer]] = {}
        for rank, result in self.results.items():
            assert result.reference is not None
            assert result.answer is not None
            groups.setdefault(result.reference, {})[rank] = result.answer
        return groups


class CrossChecks:
    """Open cross-checks, and the time of the latest cross-check of each scope."""

    def __init__(self) -> None:
        self._open: dict[CrossCheckScope, CrossCheck] = {}
        self._asked_at: dict[CrossCheckScope, float] = {}

    def find_open(self, scope: CrossCheckScope) -> CrossCheck | None:
        """Return the open cross-check of a scope, or None."""
        return self._open.get(scope)

    def iterate_open(self) -> Iterator[CrossCheck]:
        """Iterate over the open cross-checks."""
        return iter(self._open.values())

    def is_due(self, scope: CrossCheckScope, now: float, again_s: float) -> bool:
        """Return whether the last cross-check of the scope is at least `again_s` ago."""
        at = self._asked_at.get(scope)
        return at is None or now - at >= again_s

    def open_cross_check(self, scope: CrossCheckScope, question: CrossCheck, now: float) -> None:
        """Open a cross-check after the peers were scheduled."""
        # The time is kept after the cross-check ends, which limits how often a scope is learnt.
        self._open[scope], self._asked_at[scope] = question, now

    def drop_waiting(self, rank: Rank) -> None:
        """Stop waiting for a rank that left, or ended its check without an answer."""
        for question in self._open.values():
            question.waiting_peers.discard(rank)

    def take_ended(self, now: float) -> CrossCheck | None:
        """Remove and return the oldest complete or expired cross-check. O(open cross-checks)"""
        for scope, question in self._open.items():
            # Dictionary order is order of opening, so the first match is the oldest.
            if not question.waiting_peers or now >= question.deadline:
                return self._open.pop(scope)
        return None

    def drop_partition(self, key: PartitionKey) -> None:
        """Remove the cross-checks of a partition."""
        for scopes in (self._open, self._asked_at):
            for scope in [scope for scope in scopes if scope.key == key]:
                del scopes[scope]
