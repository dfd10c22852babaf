"""The right answers, as far as they are known, and how they become known.

With three ranks and more it is what two thirds agree on, with one or two what a rank itself said
first.  When more than half give the same new answer it is the model that has changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from select_service.core.health.agreement import (
    ANSWERS_MIN,
    LearntReference,
    agree,
    agreement,
    largest_set,
    reference_of,
)
from select_service.core.health.judging import Answer, Token, Verdict, judge
from select_service.core.health.kinds import WRONG_ANSWERS, Kind
from select_service.core.identity import PartitionKey, Rank

SELF_TOLERANCE = 0.3
"""Of a rank to itself, and of two to each other."""
PREVIOUS_S = 3600.0
"""So long after a change the answer before it is right, too: fleets are updated rank by rank."""
REFERENCES_MAX = 4096
"""For the newest ones the oldest are forgotten."""


class ReferenceKey(NamedTuple):
    """prompt: its name;  engine: its kind, whose kernels decide about the last digits"""

    model_name: str
    tenant_id: str
    prompt: str
    weight_version: str = ""
    engine: str = ""


class Source(StrEnum):
    """Where a reference comes from."""

    FILE = "file"
    AGREEMENT = "agreement"
    SELF = "self"


class Found(StrEnum):
    """What several answers to the same prompt have shown."""

    NOTHING = "nothing"
    LEARNT = "learnt"
    CHANGED = "changed"
    DISAGREEMENT = "disagreement"


class Settlement(NamedTuple):
    """verdicts: of each answer; None: there is nothing to judge it by"""

    found: Found
    verdicts: dict[Rank, Verdict | None]


class StoredReference(msgspec.Struct, frozen=True):
    """As it is kept over the end of a process."""

    key: ReferenceKey
    tokens: list[Token]
    logprobs: list[float]
    top: list[dict[str, float]]
    tolerance: float


@dataclass(slots=True)
class _Known:
    """agreed: by two thirds;  own: what ranks said first, without agreement

    before: what was agreed on before a change at `changed_at`
    """

    agreed: LearntReference | None = None
    own: dict[Rank, Answer] = field(default_factory=dict)
    before: LearntReference | None = None
    changed_at: float = 0.0


_UNKNOWN = _Known()


class ReferenceBook:
    """Bounded; what is written last is forgotten last."""

    def __init__(self) -> None:
        self._known: dict[ReferenceKey, _Known] = {}
        self._own: dict[Rank, set[ReferenceKey]] = {}
        """Where it is known what a rank said first."""
        self._changed: dict[ReferenceKey, None] = {}
        """Whose agreed answer was learnt or forgotten since somebody kept it."""

    def source(self, key: ReferenceKey) -> Source | None:
        """None: nothing is known."""
        known = self._known.get(key)
        if known is None:
            return None
        return Source.SELF if known.agreed is None else Source.AGREEMENT

    def sources(self) -> dict[PartitionKey, Source]:
        """Of every partition of which something is known, the best one.  O(references)"""
        found: dict[PartitionKey, Source] = {}
        for key, known in self._known.items():
            scope = PartitionKey(key.model_name, key.tenant_id)
            if known.agreed is not None:
                found[scope] = Source.AGREEMENT
            elif known.own:
                found.setdefault(scope, Source.SELF)
        return found

    def judge(self, key: ReferenceKey, rank: Rank, answer: Answer, now: float) -> Verdict | None:
        """By what is known; None: nothing is, of this rank either.

        What has no numbers is wrong whatever is known.
        """
        known = self._known.get(key) or _UNKNOWN
        if known.agreed is None:
            own = known.own.get(rank)
            verdict = judge(answer if own is None else own, answer, SELF_TOLERANCE)
            return None if own is None and verdict.kind is Kind.PASS else verdict
        verdict = judge(known.agreed.answer, answer, known.agreed.tolerance)
        if verdict.kind in WRONG_ANSWERS and known.before is not None:
            before = judge(known.before.answer, answer, known.before.tolerance)
            if before.kind is Kind.PASS and now - known.changed_at < PREVIOUS_S:
                return before
        return verdict

    def settle(
        self, key: ReferenceKey, answers: Mapping[Rank, Answer], asked: int, now: float
    ) -> Settlement:
        """Look at answers to the same prompt together, and learn from them.

        asked: how many ranks were, those among them that did not answer
        O(answers^2 * tokens)
        """
        known = self._known.pop(key, None) or _Known()
        self._known[key] = known
        if len(self._known) > REFERENCES_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._changed[oldest] = None
        if known.agreed is not None:
            return self._settle_doubt(key, known, answers, asked, now)
        if len(answers) >= ANSWERS_MIN:
            return self._settle_vote(key, known, answers, now)
        return self._settle_own(key, known, answers, asked, now)

    def _settle_vote(
        self, key: ReferenceKey, known: _Known, answers: Mapping[Rank, Answer], now: float
    ) -> Settlement:
        vote = agreement(answers)
        if vote is None:
            return Settlement(Found.DISAGREEMENT, dict.fromkeys(answers))
        known.agreed = vote.reference
        self._changed[key] = None
        known.own.clear()
        return Settlement(Found.LEARNT, self._verdicts(key, answers, now))

    def _settle_doubt(
        self,
        key: ReferenceKey,
        known: _Known,
        answers: Mapping[Rank, Answer],
        asked: int,
        now: float,
    ) -> Settlement:
        """Is it the rank, or has the model changed?"""
        verdicts = self._verdicts(key, answers, now)
        new = _same_new(answers, verdicts, asked)
        if new is None:
            return Settlement(Found.NOTHING, verdicts)
        known.before, known.changed_at, known.agreed = known.agreed, now, new
        self._changed[key] = None
        return Settlement(Found.CHANGED, self._verdicts(key, answers, now))

    def _settle_own(
        self,
        key: ReferenceKey,
        known: _Known,
        answers: Mapping[Rank, Answer],
        asked: int,
        now: float,
    ) -> Settlement:
        """One or two ranks: each by what it said first."""
        fresh = [rank for rank in answers if rank not in known.own]
        for rank in fresh:
            if agree(answers[rank], answers[rank]):
                known.own[rank] = answers[rank]
                self._own.setdefault(rank, set()).add(key)
        verdicts = self._verdicts(key, answers, now)
        if _same_new(answers, verdicts, asked) is not None:
            known.own.update({rank: answers[rank] for rank in known.own.keys() & answers.keys()})
            return Settlement(Found.CHANGED, self._verdicts(key, answers, now))
        first, *others = answers.values()
        if fresh and not all(agree(first, other, SELF_TOLERANCE) for other in others):
            return Settlement(Found.DISAGREEMENT, dict.fromkeys(answers))
        return Settlement(Found.LEARNT if fresh else Found.NOTHING, verdicts)

    def _verdicts(
        self, key: ReferenceKey, answers: Mapping[Rank, Answer], now: float
    ) -> dict[Rank, Verdict | None]:
        return {rank: self.judge(key, rank, answer, now) for rank, answer in answers.items()}

    # --- forgetting and keeping

    def forget(self, model_name: str) -> None:
        """All of a model is to be learnt anew."""
        for key in [key for key in self._known if key.model_name == model_name]:
            del self._known[key]
            self._changed[key] = None

    def forget_rank(self, rank: Rank) -> None:
        """It is another process now, or has gone."""
        for key in self._own.pop(rank, ()):
            known = self._known.get(key)
            if known is not None:
                known.own.pop(rank, None)

    def stored(self) -> Iterator[StoredReference]:
        """What is agreed on."""
        for key, known in self._known.items():
            if known.agreed is not None:
                yield _stored(key, known.agreed)

    @property
    def has_changed(self) -> bool:
        """Is there something to be taken?"""
        return bool(self._changed)

    def take_changed(self, most: int) -> dict[ReferenceKey, StoredReference | None]:
        """What has changed since it was taken last, the earliest first; None: it is forgotten.

        most: so many, and the others the next time
        """
        taken: dict[ReferenceKey, StoredReference | None] = {}
        for key in list(islice(self._changed, most)):
            del self._changed[key]
            agreed = self._known.get(key, _UNKNOWN).agreed
            taken[key] = None if agreed is None else _stored(key, agreed)
        return taken

    def restore(self, stored: StoredReference) -> None:
        """As it was before the process ended."""
        is_id = all(isinstance(token, int) for token in stored.tokens)
        top = [{int(t) if is_id else t: p for t, p in listed.items()} for listed in stored.top]
        answer = Answer(stored.tokens, stored.logprobs, top)
        self._known[stored.key] = _Known(LearntReference(answer, stored.tolerance))


def _stored(key: ReferenceKey, agreed: LearntReference) -> StoredReference:
    answer, tolerance = agreed
    numbers = [x for x in answer.logprobs if x is not None]
    top = [{str(t): p for t, p in listed.items()} for listed in answer.top]
    return StoredReference(key, list(answer.tokens), numbers, top, tolerance)


def _same_new(
    answers: Mapping[Rank, Answer], verdicts: Mapping[Rank, Verdict | None], asked: int
) -> LearntReference | None:
    """What more than half of those that were asked, and at least two, say instead."""
    new = {
        rank: answers[rank]
        for rank, verdict in verdicts.items()
        if verdict is not None and verdict.kind in WRONG_ANSWERS
    }
    leader, members = largest_set(new)
    if leader is None or len(members) < 2 or 2 * len(members) <= asked:
        return None
    found = reference_of(new[leader], [new[rank] for rank in members])
    if len(members) < ANSWERS_MIN:
        return found._replace(tolerance=SELF_TOLERANCE)
    return found
