"""Reference answers: how they are learnt, changed and used.

With three ranks or more the reference is the answer of two thirds; with one or two it is the first
answer of each rank itself. When more than half of the ranks give the same new answer, the model
has changed, and the reference with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from select_service.core.health.answers.answer_agreement import (
    ANSWERS_MIN,
    LearntReference,
    answers_agree,
    compute_reference,
    find_largest_agreeing_set,
    vote_on_answers,
)
from select_service.core.health.answers.answer_check import (
    AnswerVerdict,
    CanaryAnswer,
    TokenOrText,
    judge_answer,
)
from select_service.core.health.health_kinds import WRONG_ANSWERS, CheckKind
from select_service.core.identity import PartitionKey, Rank

SELF_TOLERANCE = 0.3
"""Tolerance for comparing a rank with its own first answer, and two ranks with each other."""
PREVIOUS_S = 3600.0
"""Time after a change in which the previous answer is still accepted, s: rolling updates take
time.
"""
REFERENCES_MAX = 4096
"""Maximum number of references; the oldest are dropped."""


class ReferenceKey(NamedTuple):
    """Key of a reference answer.

    prompt: name of the prompt
    engine: engine kind; its kernels determine the last digits
    """

    model_name: str
    tenant_id: str
    prompt: str
    weight_version: str = ""
    engine: str = ""


class ReferenceSource(StrEnum):
    """Origin of a reference."""

    FILE = "file"
    AGREEMENT = "agreement"
    SELF = "self"


class ComparisonFinding(StrEnum):
    """Finding of a comparison of several answers."""

    NOTHING = "nothing"
    LEARNT = "learnt"
    CHANGED = "changed"
    DISAGREEMENT = "disagreement"


class Settlement(NamedTuple):
    """Result of a comparison.

    verdicts: verdict for each answer; None means no reference
    """

    finding: ComparisonFinding
    verdicts: dict[Rank, AnswerVerdict | None]


class StoredReference(msgspec.Struct, frozen=True):
    """Reference as persisted."""

    key: ReferenceKey
    tokens: list[TokenOrText]
    logprobs: list[float]
    top: list[dict[str, float]]
    tolerance: float


@dataclass(slots=True)
class _References:
    """References of a key.

    agreed: answer of two thirds
    own: first answer of each rank, without agreement
    before: reference before a change at `changed_at`
    """

    agreed: LearntReference | None = None
    own: dict[Rank, CanaryAnswer] = field(default_factory=dict)
    before: LearntReference | None = None
    changed_at: float = 0.0


_UNKNOWN = _References()


class ReferenceAnswers:
    """Bounded table of reference answers; the least recently written entry is dropped first."""

    def __init__(self) -> None:
        self._references: dict[ReferenceKey, _References] = {}
        self._own: dict[Rank, set[ReferenceKey]] = {}
        """Keys for which a first answer of the rank is stored."""
        self._changed: dict[ReferenceKey, None] = {}
        """Keys with an agreed answer learnt or forgotten since `take_changed`."""

    def source_of(self, key: ReferenceKey) -> ReferenceSource | None:
        """Return the origin of the reference; None means that there is no reference."""
        references = self._references.get(key)
        if references is None:
            return None
        return ReferenceSource.SELF if references.agreed is None else ReferenceSource.AGREEMENT

    def sources_by_partition(self) -> dict[PartitionKey, ReferenceSource]:
        """Return the best origin for every partition with a reference. O(references)"""
        found: dict[PartitionKey, ReferenceSource] = {}
        for key, references in self._references.items():
            scope = PartitionKey(key.model_name, key.tenant_id)
            if references.agreed is not None:
                found[scope] = ReferenceSource.AGREEMENT
            elif references.own:
                found.setdefault(scope, ReferenceSource.SELF)
        return found

    def judge_answer(
        self, key: ReferenceKey, rank: Rank, answer: CanaryAnswer, now: float
    ) -> AnswerVerdict | None:
        """Judge an answer by its reference; None means no reference, not even of this rank.

        An answer without log-probabilities is wrong in any case.
        """
        references = self._references.get(key) or _UNKNOWN
        if references.agreed is None:
            own = references.own.get(rank)
            verdict = judge_answer(answer if own is None else own, answer, SELF_TOLERANCE)
            return None if own is None and verdict.kind is CheckKind.PASS else verdict
        verdict = judge_answer(references.agreed.answer, answer, references.agreed.tolerance)
        # The earlier reference can only acquit, never convict.
        if verdict.kind in WRONG_ANSWERS and references.before is not None:
            before = judge_answer(references.before.answer, answer, references.before.tolerance)
            # Rolling update: ranks with the old weights are still right for a while.
            if before.kind is CheckKind.PASS and now - references.changed_at < PREVIOUS_S:
                return before
        return verdict

    def compare_answers(
        self, key: ReferenceKey, answers: Mapping[Rank, CanaryAnswer], n_requested: int, now: float
    ) -> Settlement:
        """Compare answers to the same prompt, and learn from them.

        n_requested: number of requested ranks, including those without an answer
        O(answers^2 * tokens)
        """
        # Removed and inserted again: dictionary order is the order of eviction.
        references = self._references.pop(key, None) or _References()
        self._references[key] = references
        if len(self._references) > REFERENCES_MAX:
            oldest = next(iter(self._references))
            del self._references[oldest]
            # Also persisted as a change: the file must drop the evicted reference.
            self._changed[oldest] = None
        if references.agreed is not None:
            return self._compare_with_agreed(key, references, answers, n_requested, now)
        if len(answers) >= ANSWERS_MIN:
            return self._learn_by_vote(key, references, answers, now)
        return self._compare_with_own(key, references, answers, n_requested, now)

    def _learn_by_vote(
        self,
        key: ReferenceKey,
        references: _References,
        answers: Mapping[Rank, CanaryAnswer],
        now: float,
    ) -> Settlement:
        vote = vote_on_answers(answers)
        if vote is None:
            return Settlement(ComparisonFinding.DISAGREEMENT, dict.fromkeys(answers))
        references.agreed = vote.reference
        self._changed[key] = None
        # First answers of single ranks are weaker evidence than the vote.
        references.own.clear()
        return Settlement(ComparisonFinding.LEARNT, self._judge_all(key, answers, now))

    def _compare_with_agreed(
        self,
        key: ReferenceKey,
        references: _References,
        answers: Mapping[Rank, CanaryAnswer],
        n_requested: int,
        now: float,
    ) -> Settlement:
        """Decide whether a rank is wrong or the model has changed."""
        verdicts = self._judge_all(key, answers, now)
        new = _find_new_majority(answers, verdicts, n_requested)
        if new is None:
            return Settlement(ComparisonFinding.NOTHING, verdicts)
        references.before, references.changed_at, references.agreed = references.agreed, now, new
        self._changed[key] = None
        return Settlement(ComparisonFinding.CHANGED, self._judge_all(key, answers, now))

    def _compare_with_own(
        self,
        key: ReferenceKey,
        references: _References,
        answers: Mapping[Rank, CanaryAnswer],
        n_requested: int,
        now: float,
    ) -> Settlement:
        """Judge one or two ranks by their own first answers."""
        fresh = [rank for rank in answers if rank not in references.own]
        for rank in fresh:
            if answers_agree(answers[rank], answers[rank]):
                references.own[rank] = answers[rank]
                self._own.setdefault(rank, set()).add(key)
        verdicts = self._judge_all(key, answers, now)
        if _find_new_majority(answers, verdicts, n_requested) is not None:
            references.own.update(
                {rank: answers[rank] for rank in references.own.keys() & answers.keys()}
            )
            return Settlement(ComparisonFinding.CHANGED, self._judge_all(key, answers, now))
        first, *others = answers.values()
        # Two ranks that disagree from the start: either may be wrong.
        if fresh and not all(answers_agree(first, other, SELF_TOLERANCE) for other in others):
            return Settlement(ComparisonFinding.DISAGREEMENT, dict.fromkeys(answers))
        return Settlement(
            ComparisonFinding.LEARNT if fresh else ComparisonFinding.NOTHING, verdicts
        )

    def _judge_all(
        self, key: ReferenceKey, answers: Mapping[Rank, CanaryAnswer], now: float
    ) -> dict[Rank, AnswerVerdict | None]:
        return {rank: self.judge_answer(key, rank, answer, now) for rank, answer in answers.items()}

    def forget_model(self, model_name: str) -> None:
        """Forget all references of a model, so that they are learnt again."""
        for key in [key for key in self._references if key.model_name == model_name]:
            del self._references[key]
            self._changed[key] = None

    def forget_rank(self, rank: Rank) -> None:
        """Forget the first answers of a rank that restarted or left."""
        for key in self._own.pop(rank, ()):
            references = self._references.get(key)
            if references is not None:
                references.own.pop(rank, None)

    def iterate_stored(self) -> Iterator[StoredReference]:
        """Iterate over the agreed references in their persisted form."""
        for key, references in self._references.items():
            if references.agreed is not None:
                yield _to_stored(key, references.agreed)

    @property
    def has_changed(self) -> bool:
        """Whether `take_changed` has entries to return."""
        return bool(self._changed)

    def take_changed(self, changes_max: int) -> dict[ReferenceKey, StoredReference | None]:
        """Return changes since the last call, oldest first; None means forgotten.

        changes_max: maximum number of changes; the rest follows in later calls
        """
        taken: dict[ReferenceKey, StoredReference | None] = {}
        for key in list(islice(self._changed, changes_max)):
            del self._changed[key]
            agreed = self._references.get(key, _UNKNOWN).agreed
            taken[key] = None if agreed is None else _to_stored(key, agreed)
        return taken

    def restore_reference(self, stored: StoredReference) -> None:
        """Restore a persisted reference."""
        # JSON keys are strings; token ids have to become integers again.
        is_id = all(isinstance(token, int) for token in stored.tokens)
        top = [{int(t) if is_id else t: p for t, p in listed.items()} for listed in stored.top]
        answer = CanaryAnswer(stored.tokens, stored.logprobs, top)
        self._references[stored.key] = _References(LearntReference(answer, stored.tolerance))


def _to_stored(key: ReferenceKey, agreed: LearntReference) -> StoredReference:
    answer, tolerance = agreed
    numbers = [x for x in answer.logprobs if x is not None]
    top = [{str(t): p for t, p in listed.items()} for listed in answer.top]
    return StoredReference(key, list(answer.tokens), numbers, top, tolerance)


def _find_new_majority(
    answers: Mapping[Rank, CanaryAnswer],
    verdicts: Mapping[Rank, AnswerVerdict | None],
    n_requested: int,
) -> LearntReference | None:
    """Return the new answer of more than half of the requested ranks, at least two; else None."""
    new = {
        rank: answers[rank]
        for rank, verdict in verdicts.items()
        if verdict is not None and verdict.kind in WRONG_ANSWERS
    }
    leader, members = find_largest_agreeing_set(new)
    # One rank alone never changes a reference, even if it is the only one asked.
    if leader is None or len(members) < 2 or 2 * len(members) <= n_requested:
        return None
    found = compute_reference(new[leader], [new[rank] for rank in members])
    if len(members) < ANSWERS_MIN:
        return found._replace(tolerance=SELF_TOLERANCE)
    return found
