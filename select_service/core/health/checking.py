"""From the attempts of a check to its result; where an answer is in doubt, peers are asked."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from select_service.core.health.checked import (
    Attempt,
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    CheckOrder,
)
from select_service.core.health.delivering import Asking, Delivering
from select_service.core.health.effects import ChecksAccepted, ChecksRefused, Effect
from select_service.core.health.judging import Verdict, judge_expected
from select_service.core.health.kinds import KIND_OF, WRONG_ANSWERS, Came, Kind, State
from select_service.core.health.questions import (
    ANSWERS_MAX,
    Question,
    Questions,
    Result,
    Scope,
)
from select_service.core.health.reference_book import Found, ReferenceBook, ReferenceKey, Source
from select_service.core.health.rules import HealthRules
from select_service.core.health.schedule import Due, Schedule
from select_service.core.identity import Rank

BUSY_MAX = 10
"""So many checks in a row that a rank was too busy for are a timeout."""
VOTERS_MIN = 3
"""Ranks that agree among themselves instead of each with itself."""


_SAYS_NOTHING_OF_REQUESTS = frozenset({Came.CONNECT, Came.TIMEOUT, Came.BUSY})
"""The engine did not get so far as to look at the request."""


class _Found(NamedTuple):
    """What one attempt brought.  kind: its own"""

    kind: Kind
    attempt: Attempt
    reference: ReferenceKey | None
    verdict: Verdict | None


@dataclass(slots=True)
class _Running:
    """wrong: kind of the first wrong answer, and the last one of them
    is_stale: the rank is another process now
    is_asked: together with its peers, as an answer is in doubt; that they are asked at once can be
        all that makes it slow
    """

    order: CheckOrder
    started_at: float
    attempts: int = 0
    wrong: tuple[Kind, _Found] | None = None
    is_stale: bool = False
    is_asked: bool = False

    def result(self, kind: Kind, found: _Found, last: Kind) -> Result:
        """found: by which it has its kind;  last: the kind of the last attempt"""
        attempt, verdict = found.attempt, found.verdict
        latency_ms = attempt.latency_ms if kind is Kind.PASS and attempt.counts_latency else None
        says_more = last is not Kind.NEUTRAL and last not in WRONG_ANSWERS
        return Result(
            self.order.rank,
            kind,
            self.started_at,
            self.order.prompt_number,
            latency_ms,
            found.reference,
            attempt.answer,
            attempt.why if verdict is None else verdict.why,
            latency_ms or 0.0 if self.is_asked else attempt.host_ms,
            last if says_more else Kind.PASS,
        )


class Checking:
    """The checks that are under way, and the questions that are open."""

    def __init__(
        self,
        rules: HealthRules,
        schedule: Schedule,
        fleet: CheckedFleet,
        book: ReferenceBook,
        delivering: Delivering,
        note: Callable[[Effect], None],
    ) -> None:
        """note: takes an effect of the verb that runs"""
        self._rules = rules
        self._schedule = schedule
        self._fleet = fleet
        self._book = book
        self._delivering = delivering
        self._note = note
        self._running: dict[int, _Running] = {}
        self._numbers = count(1)
        self.questions = Questions()

    # --- one check

    def begin(self, due: Due, now: float) -> CheckOrder:
        """It is its turn."""
        checked = self._fleet.ranks[due.rank]
        partition = self._fleet.partitions[checked.key]
        record = partition.health.roster[due.rank]
        number = due.prompt % len(partition.prompts)
        hangs = record.state is State.SUSPICIOUS and record.cause is Kind.TIMEOUT
        is_probe = not record.state.serves
        if is_probe:
            checked.wrong.clear()
        question = self.questions.of(Scope(checked.key, number))
        order = CheckOrder(
            next(self._numbers),
            due.rank,
            partition.prompts[number],
            number,
            1 if hangs else 1 + self._rules.retries,
            is_probe,
            self._fleet.shares_endpoint(due.rank),
            self._seed(checked, partition.names[number], question),
        )
        running = _Running(order, now, is_asked=question is not None)
        self._running[order.number] = running
        return order

    def _seed(self, checked: CheckedRank, name: str, question: Question | None) -> int:
        """Another one for every answer that is wrong or in doubt.  name: of the prompt

        An engine whose noise follows from the seed would repeat it, and look as if a weight of it
        were wrong; no other one cares, at temperature 0.
        """
        mine = checked.wrong.size(name)
        return mine or (0 if question is None else question.seed)

    def attempted(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Seconds until the same is asked once more; None: the check is over."""
        running = self._running.get(order.number)
        checked = self._fleet.ranks.get(order.rank)
        if running is None or checked is None or running.is_stale:
            self._end(order)
            return None
        running.attempts += 1
        reference = self._reference(checked, order, attempt)
        verdict = self._verdict(order, reference, attempt, now)
        if reference is not None and verdict is not None and verdict.kind in WRONG_ANSWERS:
            attempt, verdict = self._with_earlier(checked, reference, attempt, verdict, now)
        kind = KIND_OF[attempt.came] if verdict is None else verdict.kind
        found = _Found(kind, attempt, reference, verdict)
        if kind is Kind.PASS:
            checked.wrong.clear()
            running.wrong = None
        elif kind in WRONG_ANSWERS:
            running.wrong = (kind if running.wrong is None else running.wrong[0]), found
        is_failing = running.wrong is not None or kind not in (Kind.PASS, Kind.NEUTRAL)
        if is_failing and running.attempts < self._attempts_max(order, kind):
            self._schedule.pauses(order.rank)
            return self._rules.retry_pause_s
        self._end(order)
        self._over(running, checked, found, now)
        self.close(now)
        return None

    def resumes(self, order: CheckOrder) -> bool:
        """May the same be asked once more now?"""
        return order.number not in self._running or self._schedule.resumes(order.rank)

    def _attempts_max(self, order: CheckOrder, kind: Kind) -> int:
        """A rank that hangs is not asked again at once where others wait for their turn: checks
        follow that say the same."""
        is_hanging = kind is Kind.TIMEOUT and self._schedule.is_scarce
        return 1 if is_hanging else order.attempts_max

    def _over(self, running: _Running, checked: CheckedRank, found: _Found, now: float) -> None:
        """After the last attempt.  A wrong answer decides, though none came behind it."""
        last = kind = self._told(checked, found.attempt, found.kind, running.attempts)
        if running.wrong is not None:
            kind, found = running.wrong
        if kind is Kind.NEUTRAL:
            self._fleet.counts.misconfigured += found.attempt.came is Came.MISCONFIGURED
            self._fleet.counts.busy += found.attempt.came is Came.BUSY
        result = running.result(kind, found, last)
        if not self._asks(checked, result, found.verdict, now):
            self.questions.silent(checked.rank)
            self._delivering.deliver(result, now)

    def _reference(
        self, checked: CheckedRank, order: CheckOrder, attempt: Attempt
    ) -> ReferenceKey | None:
        """None: there is no answer, or the operator said what is right."""
        if attempt.answer is None or order.prompt.expected is not None:
            return None
        name = self._fleet.partitions[checked.key].names[order.prompt_number]
        return ReferenceKey(*checked.key, name, attempt.weight_version, attempt.engine)

    def _verdict(
        self, order: CheckOrder, reference: ReferenceKey | None, attempt: Attempt, now: float
    ) -> Verdict | None:
        """None: no answer, or nothing is known to judge it by."""
        answer = attempt.answer
        if answer is None:
            return None
        if answer.is_malformed:
            return Verdict(Kind.MALFORMED, "no tokens, or log-probabilities of another length")
        if order.prompt.expected is not None:
            return judge_expected(order.prompt.expected, answer)
        assert reference is not None
        return self._book.judge(reference, order.rank, answer, now)

    def _with_earlier(
        self,
        checked: CheckedRank,
        reference: ReferenceKey,
        attempt: Attempt,
        verdict: Verdict,
        now: float,
    ) -> tuple[Attempt, Verdict]:
        """A wrong answer and those before it, as one: noise vanishes in the mean."""
        assert attempt.answer is not None
        answer = checked.wrong.with_another(reference, attempt.answer)
        if len(checked.wrong.answers) == 1:
            return attempt, verdict
        together = self._book.judge(reference, checked.rank, answer, now)
        return attempt._replace(answer=answer), together or verdict

    def _told(self, checked: CheckedRank, attempt: Attempt, kind: Kind, attempts: int) -> Kind:
        """Note what is not seen from the kind."""
        self._fleet.counts.flaky += kind is Kind.PASS and attempts > 1
        self._note_refusal(checked, attempt)
        checked.busy = checked.busy + 1 if attempt.came is Came.BUSY else 0
        return Kind.TIMEOUT if checked.busy >= BUSY_MAX else kind

    def _note_refusal(self, checked: CheckedRank, attempt: Attempt) -> None:
        """Note whether the rank refuses our request, if the attempt shows it."""
        is_refused = attempt.came is Came.MISCONFIGURED
        if attempt.came in _SAYS_NOTHING_OF_REQUESTS:
            return
        if self._fleet.note_refusal(checked, attempt.why if is_refused else ""):
            self._note(
                ChecksRefused(checked.rank, checked.endpoint, checked.key.model_name, attempt.why)
                if is_refused
                else ChecksAccepted(checked.rank)
            )

    def _end(self, order: CheckOrder) -> None:
        if self._running.pop(order.number, None) is not None:
            self._schedule.ended(order.rank)

    # --- doubt

    def _asks(
        self, checked: CheckedRank, result: Result, verdict: Verdict | None, now: float
    ) -> bool:
        """Put the answer next to those of others; whether its result is held until then."""
        if result.reference is None or result.kind is Kind.MALFORMED:
            return False
        scope = Scope(checked.key, result.prompt_number)
        question = self.questions.of(scope)
        partition = self._fleet.partitions[checked.key]
        in_doubt = self._in_doubt(partition, scope, result, verdict, now)
        if question is None and in_doubt:
            question = self._begin(partition, scope, result, now)
        if question is None or len(question.results) >= ANSWERS_MAX:
            return False
        question.answered(result, holds=in_doubt)
        return in_doubt

    def _in_doubt(
        self,
        partition: CheckedPartition,
        scope: Scope,
        result: Result,
        verdict: Verdict | None,
        now: float,
    ) -> bool:
        """Is there nothing to judge by, too little, or something against it?"""
        if not partition.health.roster[result.rank].state.serves:
            return False
        if verdict is not None and verdict.kind is not Kind.PASS:
            return True
        assert result.reference is not None
        own = self._book.source(result.reference) is not Source.AGREEMENT
        could_vote = len(partition.ranks) >= VOTERS_MIN
        if verdict is not None and not (own and could_vote):
            return False
        return self.questions.of(scope) is not None or self.questions.may_learn(
            scope, now, self._rules.interval_s
        )

    def _begin(
        self, partition: CheckedPartition, scope: Scope, result: Result, now: float
    ) -> Question:
        number = scope.prompt_number
        asking = Asking(ANSWERS_MAX - 1, self._rules.confirm_s / 2.0, number)
        peers = self._delivering.ask_peers(partition, result.rank, asking, now)
        for running in self._running.values():
            order = running.order
            if running.is_stale or order.prompt_number != number:
                continue
            if self._fleet.ranks[order.rank].key == scope.key:
                running.is_asked = True
                peers.add(order.rank)
        seed = self._fleet.ranks[result.rank].wrong.size(partition.names[number])
        question = Question(now + self._rules.confirm_s, peers, seed)
        self.questions.begin(scope, question, now)
        return question

    def close(self, now: float) -> bool:
        """Settle a question that has its answers, or has waited long enough; was there one?

        O(ANSWERS_MAX^2 * tokens), some milliseconds at most
        """
        question = self.questions.take_ended(now)
        if question is not None:
            self._settle(question, now)
        return question is not None

    def _settle(self, question: Question, now: float) -> None:
        for reference, answers in question.groups().items():
            asked = len(answers) + len(question.waiting)
            found, verdicts = self._book.settle(reference, answers, asked, now)
            self._fleet.counts.reference_changes += found is Found.CHANGED
            self._fleet.counts.disagreements += found is Found.DISAGREEMENT
            for rank, verdict in verdicts.items():
                self._judged(question, question.results[rank], verdict, now)

    def _judged(
        self, question: Question, result: Result, verdict: Verdict | None, now: float
    ) -> None:
        """Deliver what was held, and what is known to be wrong only now."""
        is_held = result.rank in question.held
        checked = self._fleet.ranks.get(result.rank)
        if checked is None or (not is_held and (verdict is None or verdict.kind is Kind.PASS)):
            return
        record = self._fleet.record(result.rank)
        kind = result.otherwise
        if verdict is not None and verdict.kind is not Kind.PASS:
            kind = verdict.kind
        else:
            checked.wrong.clear()
        if verdict is None and record.cause in WRONG_ANSWERS:
            kind = Kind.NEUTRAL
        why = "nothing to judge it by" if verdict is None else verdict.why
        self._delivering.deliver(result._replace(kind=kind, why=why), now)

    def leave(self, rank: Rank) -> None:
        """Its check under way and its answers are nobody's."""
        for running in self._running.values():
            running.is_stale = running.is_stale or running.order.rank == rank
        self.questions.silent(rank)
        for question in self.questions.open():
            question.results.pop(rank, None)
            question.held.discard(rank)

    def check_invariants(self) -> None:
        """For tests."""
        running = {running.order.rank for running in self._running.values()}
        assert running == self._schedule.in_flight
