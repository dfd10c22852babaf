"""Runner of checks: from attempts to results, with cross-checks of doubtful answers by peers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from select_service.core.health.answers.answer_check import AnswerVerdict, judge_expected
from select_service.core.health.answers.cross_checks import (
    ANSWERS_MAX,
    CheckResult,
    CrossCheck,
    CrossChecks,
    CrossCheckScope,
)
from select_service.core.health.answers.reference_answers import (
    ComparisonFinding,
    ReferenceAnswers,
    ReferenceKey,
    ReferenceSource,
)
from select_service.core.health.checks.check_schedule import CheckSchedule, DueCheck
from select_service.core.health.checks.check_state import (
    Attempt,
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    CheckOrder,
)
from select_service.core.health.checks.result_dispatcher import PeerCheckRequest, ResultDispatcher
from select_service.core.health.health_effects import ChecksAccepted, ChecksRefused, HealthEffect
from select_service.core.health.health_kinds import (
    KIND_OF_RESULT,
    SILENT_RESULTS,
    WRONG_ANSWERS,
    AttemptResult,
    CheckKind,
    RankHealthState,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank

CONSECUTIVE_BUSY_MAX = 10
"""This many consecutive busy answers count as a timeout."""
VOTERS_MIN = 3
"""Minimum number of ranks for a vote; smaller partitions compare each rank with itself."""


_REQUEST_NOT_READ = frozenset({AttemptResult.CONNECT, AttemptResult.TIMEOUT, AttemptResult.BUSY})
"""Results where the engine did not read the request, so a refusal can neither start nor end."""


class _ClassifiedAttempt(NamedTuple):
    """Classified attempt.

    kind: classification of this attempt alone
    """

    kind: CheckKind
    attempt: Attempt
    reference: ReferenceKey | None
    verdict: AnswerVerdict | None


@dataclass(slots=True)
class _RunningCheck:
    """Check in progress.

    wrong: kind of the first wrong answer, and the latest wrong answer
    is_stale: the rank is a new process, so the result is dropped
    is_cross_check: part of a cross-check; simultaneous requests to its peers alone may explain
    slowness
    """

    order: CheckOrder
    started_at: float
    attempts: int = 0
    wrong_answer: tuple[CheckKind, _ClassifiedAttempt] | None = None
    is_stale: bool = False
    is_cross_check: bool = False
    was_answered: bool = False

    def build_result(
        self, kind: CheckKind, classified: _ClassifiedAttempt, last: CheckKind
    ) -> CheckResult:
        """Build the result.

        found: attempt that determines the kind
        last: kind of the last attempt
        """
        attempt, verdict = classified.attempt, classified.verdict
        latency_ms = (
            attempt.latency_ms if kind is CheckKind.PASS and attempt.counts_latency else None
        )
        says_more = last is not CheckKind.NEUTRAL and last not in WRONG_ANSWERS
        return CheckResult(
            self.order.rank,
            kind,
            self.started_at,
            self.order.prompt_number,
            latency_ms,
            classified.reference,
            attempt.answer,
            attempt.why if verdict is None else verdict.why,
            latency_ms or 0.0 if self.is_cross_check else attempt.host_ms,
            last if says_more else CheckKind.PASS,
            self.was_answered,
        )


class CheckRunner:
    """Checks in progress and open cross-checks."""

    def __init__(
        self,
        rules: HealthRules,
        schedule: CheckSchedule,
        table: CheckedFleet,
        references: ReferenceAnswers,
        dispatcher: ResultDispatcher,
        note_effect: Callable[[HealthEffect], None],
    ) -> None:
        """Create the runner; note receives the effects of the current call."""
        self._rules = rules
        self._schedule = schedule
        self._fleet = table
        self._book = references
        self._delivering = dispatcher
        self._note = note_effect
        self._running: dict[int, _RunningCheck] = {}
        self._numbers = count(1)
        self.cross_checks = CrossChecks()

    def start_check(self, due: DueCheck, now: float) -> CheckOrder:
        """Start a check that is due and return its order."""
        checked = self._fleet.ranks[due.rank]
        partition = self._fleet.partitions[checked.key]
        record = partition.health.registry[due.rank]
        # Due checks carry a round number; partitions may have different numbers of prompts.
        number = due.prompt % len(partition.prompts)
        # A suspicious rank that timed out gets one attempt: retries would only occupy the check
        # slot.
        hangs = record.state is RankHealthState.SUSPICIOUS and record.cause is CheckKind.TIMEOUT
        is_probe = not record.state.is_serving
        if is_probe:
            checked.wrong_answers.remove_all()
        question = self.cross_checks.find_open(CrossCheckScope(checked.key, number))
        order = CheckOrder(
            next(self._numbers),
            due.rank,
            partition.prompts[number],
            number,
            1 if hangs else 1 + self._rules.retries,
            is_probe,
            self._fleet.shares_endpoint(due.rank),
            self._choose_seed(checked, partition.names[number], question),
        )
        running = _RunningCheck(order, now, is_cross_check=question is not None)
        self._running[order.number] = running
        return order

    def _choose_seed(self, checked: CheckedRank, name: str, question: CrossCheck | None) -> int:
        """Return the sampling seed: a new seed for every wrong or doubtful answer to the prompt
        `name`.

        An engine with seed-dependent noise would otherwise repeat the noise, and look as if a
        weight were corrupt. At temperature 0 other engines ignore the seed.
        """
        # Each wrong answer so far means one seed used, so the count is the next unused seed.
        mine = checked.wrong_answers.count_answers(name)
        return mine or (0 if question is None else question.seed)

    def process_attempt(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Process an attempt; return the pause before the next attempt, in s. None ends the
        check.
        """
        running = self._running.get(order.number)
        checked = self._fleet.ranks.get(order.rank)
        # The rank left or restarted while its request was in flight: the answer belongs to a
        # process that no longer exists.
        if running is None or checked is None or running.is_stale:
            self._end_check(order)
            return None
        running.attempts += 1
        running.was_answered |= attempt.result not in SILENT_RESULTS
        reference = self._reference_key(checked, order, attempt)
        verdict = self._judge_attempt(order, reference, attempt, now)
        if reference is not None and verdict is not None and verdict.kind in WRONG_ANSWERS:
            attempt, verdict = self._average_wrong_answers(
                checked, reference, attempt, verdict, now
            )
        kind = KIND_OF_RESULT[attempt.result] if verdict is None else verdict.kind
        found = _ClassifiedAttempt(kind, attempt, reference, verdict)
        if kind is CheckKind.PASS:
            checked.wrong_answers.remove_all()
            running.wrong_answer = None
        elif kind in WRONG_ANSWERS:
            # The first kind is kept: the mean of several wrong answers may change the finding,
            # and a later pass of a flaky kernel must not hide the wrong answer before.
            running.wrong_answer = (
                (kind if running.wrong_answer is None else running.wrong_answer[0]),
                found,
            )
        is_failing = running.wrong_answer is not None or kind not in (
            CheckKind.PASS,
            CheckKind.NEUTRAL,
        )
        if is_failing and running.attempts < self._attempts_max(order, kind):
            # The slot is released during the pause, so that other ranks are checked meanwhile.
            self._schedule.release_slot(order.rank)
            return self._rules.retry_pause_s
        self._end_check(order)
        self._finish_check(running, checked, found, now)
        self.settle_next_cross_check(now)
        return None

    def may_continue(self, order: CheckOrder) -> bool:
        """Return whether the next attempt may be sent now."""
        return order.number not in self._running or self._schedule.take_slot_again(order.rank)

    def _attempts_max(self, order: CheckOrder, kind: CheckKind) -> int:
        """Return the attempt limit of an order after an attempt of this kind.

        A hanging rank is not retried at once while check slots are scarce; later checks repeat the
        test.
        """
        is_hanging = kind is CheckKind.TIMEOUT and self._schedule.is_scarce
        return 1 if is_hanging else order.attempts_max

    def _finish_check(
        self,
        running: _RunningCheck,
        checked: CheckedRank,
        classified: _ClassifiedAttempt,
        now: float,
    ) -> None:
        """Finish a check after the last attempt; an earlier wrong answer decides over later
        attempts.
        """
        last = kind = self._count_attempt(
            checked, classified.attempt, classified.kind, running.attempts
        )
        if running.wrong_answer is not None:
            kind, classified = running.wrong_answer
        if kind is CheckKind.NEUTRAL:
            self._fleet.counters.misconfigured += (
                classified.attempt.result is AttemptResult.MISCONFIGURED
            )
            self._fleet.counters.busy += classified.attempt.result is AttemptResult.BUSY
        result = running.build_result(kind, classified, last)
        if not self._add_to_cross_check(checked, result, classified.verdict, now):
            # Without this an open cross-check would wait for the rank until its deadline.
            self.cross_checks.drop_waiting(checked.rank)
            self._delivering.deliver_result(result, now)

    def _reference_key(
        self, checked: CheckedRank, order: CheckOrder, attempt: Attempt
    ) -> ReferenceKey | None:
        """Return the key of the reference answer.

        None means that there is no answer, or that the operator gave the expected answer.
        """
        if attempt.answer is None or order.prompt.expected is not None:
            return None
        name = self._fleet.partitions[checked.key].names[order.prompt_number]
        return ReferenceKey(*checked.key, name, attempt.weight_version, attempt.engine)

    def _judge_attempt(
        self, order: CheckOrder, reference: ReferenceKey | None, attempt: Attempt, now: float
    ) -> AnswerVerdict | None:
        """Judge an answer; None means no answer, or no reference to judge by."""
        answer = attempt.answer
        if answer is None:
            return None
        if answer.is_malformed:
            return AnswerVerdict(
                CheckKind.MALFORMED, "no tokens, or log-probabilities of another length"
            )
        if order.prompt.expected is not None:
            return judge_expected(order.prompt.expected, answer)
        assert reference is not None
        return self._book.judge_answer(reference, order.rank, answer, now)

    def _average_wrong_answers(
        self,
        checked: CheckedRank,
        reference: ReferenceKey,
        attempt: Attempt,
        verdict: AnswerVerdict,
        now: float,
    ) -> tuple[Attempt, AnswerVerdict]:
        """Judge the mean of a wrong answer and earlier wrong answers: noise averages out."""
        assert attempt.answer is not None
        answer = checked.wrong_answers.add_answer(reference, attempt.answer)
        # Nothing to average yet, and the attempt has been judged already.
        if len(checked.wrong_answers.answers) == 1:
            return attempt, verdict
        together = self._book.judge_answer(reference, checked.rank, answer, now)
        return attempt._replace(answer=answer), together or verdict

    def _count_attempt(
        self, checked: CheckedRank, attempt: Attempt, kind: CheckKind, attempts: int
    ) -> CheckKind:
        """Update counters, refusal and the busy run, and return the final kind of the last
        attempt.
        """
        self._fleet.counters.flaky += kind is CheckKind.PASS and attempts > 1
        self._note_refusal(checked, attempt)
        # An engine that is busy forever is as useless as a hanging one, hence the timeout below.
        checked.consecutive_busy = (
            checked.consecutive_busy + 1 if attempt.result is AttemptResult.BUSY else 0
        )
        return CheckKind.TIMEOUT if checked.consecutive_busy >= CONSECUTIVE_BUSY_MAX else kind

    def _note_refusal(self, checked: CheckedRank, attempt: Attempt) -> None:
        """Record whether the rank rejects check requests, if the attempt shows this."""
        is_refused = attempt.result is AttemptResult.MISCONFIGURED
        if attempt.result in _REQUEST_NOT_READ:
            return
        if self._fleet.note_refusal(checked, attempt.why if is_refused else ""):
            self._note(
                ChecksRefused(checked.rank, checked.endpoint, checked.key.model_name, attempt.why)
                if is_refused
                else ChecksAccepted(checked.rank)
            )

    def _end_check(self, order: CheckOrder) -> None:
        if self._running.pop(order.number, None) is not None:
            self._schedule.end_check(order.rank)

    def _add_to_cross_check(
        self, checked: CheckedRank, result: CheckResult, verdict: AnswerVerdict | None, now: float
    ) -> bool:
        """Add an answer to a cross-check; return whether the result is withheld until the vote."""
        if result.reference is None or result.kind is CheckKind.MALFORMED:
            return False
        scope = CrossCheckScope(checked.key, result.prompt_number)
        question = self.cross_checks.find_open(scope)
        partition = self._fleet.partitions[checked.key]
        in_doubt = self._needs_cross_check(partition, scope, result, verdict, now)
        if question is None and in_doubt:
            question = self._open_cross_check(partition, scope, result, now)
        if question is None or len(question.results) >= ANSWERS_MAX:
            return False
        question.add_answer(result, withholds=in_doubt)
        return in_doubt

    def _needs_cross_check(
        self,
        partition: CheckedPartition,
        scope: CrossCheckScope,
        result: CheckResult,
        verdict: AnswerVerdict | None,
        now: float,
    ) -> bool:
        """Return whether the answer has no reference, a weak reference, or contradicts the
        reference.
        """
        # A rank out of rotation is judged by the reference alone; peers would pay for the vote
        # without any request being at risk.
        if not partition.health.registry[result.rank].state.is_serving:
            return False
        if verdict is not None and verdict.kind is not CheckKind.PASS:
            return True
        assert result.reference is not None
        # A reference learnt from one rank alone is weak: the rank may have been wrong from the
        # start.
        own = self._book.source_of(result.reference) is not ReferenceSource.AGREEMENT
        could_vote = len(partition.ranks) >= VOTERS_MIN
        if verdict is not None and not (own and could_vote):
            return False
        return self.cross_checks.find_open(scope) is not None or self.cross_checks.is_due(
            scope, now, self._rules.interval_s
        )

    def _open_cross_check(
        self, partition: CheckedPartition, scope: CrossCheckScope, result: CheckResult, now: float
    ) -> CrossCheck:
        number = scope.prompt_number
        # One place is for the rank itself. Peers that were asked a moment ago are skipped.
        asking = PeerCheckRequest(ANSWERS_MAX - 1, self._rules.confirm_s / 2.0, number)
        peers = self._delivering.schedule_peer_checks(partition, result.rank, asking, now)
        for running in self._running.values():
            order = running.order
            if running.is_stale or order.prompt_number != number:
                continue
            if self._fleet.ranks[order.rank].key == scope.key:
                running.is_cross_check = True
                peers.add(order.rank)
        seed = self._fleet.ranks[result.rank].wrong_answers.count_answers(partition.names[number])
        question = CrossCheck(now + self._rules.confirm_s, peers, seed)
        self.cross_checks.open_cross_check(scope, question, now)
        return question

    def settle_next_cross_check(self, now: float) -> bool:
        """Settle one cross-check that is complete or has timed out; return whether there was any.

        O(ANSWERS_MAX^2 * tokens), some milliseconds at most
        """
        question = self.cross_checks.take_ended(now)
        if question is not None:
            self._settle_cross_check(question, now)
        return question is not None

    def _settle_cross_check(self, question: CrossCheck, now: float) -> None:
        for reference, answers in question.group_comparable().items():
            asked = len(answers) + len(question.waiting_peers)
            # Silent peers count as asked: three of three answers are weaker evidence if ten were
            # asked.
            found, verdicts = self._book.compare_answers(reference, answers, asked, now)
            self._fleet.counters.reference_changes += found is ComparisonFinding.CHANGED
            self._fleet.counters.disagreements += found is ComparisonFinding.DISAGREEMENT
            for rank, verdict in verdicts.items():
                self._deliver_verdict(question, question.results[rank], verdict, now)

    def _deliver_verdict(
        self, question: CrossCheck, result: CheckResult, verdict: AnswerVerdict | None, now: float
    ) -> None:
        """Deliver a withheld result, or a delivered result that the vote has proved wrong."""
        # Passed answers were delivered when they arrived; only withheld or newly wrong results
        # remain.
        is_held = result.rank in question.withheld
        checked = self._fleet.ranks.get(result.rank)
        if checked is None or (not is_held and (verdict is None or verdict.kind is CheckKind.PASS)):
            return
        record = self._fleet.record_of(result.rank)
        kind = result.kind_if_right
        if verdict is not None and verdict.kind is not CheckKind.PASS:
            kind = verdict.kind
        else:
            checked.wrong_answers.remove_all()
        # A rank blamed for wrong answers is neither cleared nor blamed again without a reference.
        if verdict is None and record.cause in WRONG_ANSWERS:
            kind = CheckKind.NEUTRAL
        why = "no reference answer to compare with" if verdict is None else verdict.why
        self._delivering.deliver_result(result._replace(kind=kind, why=why), now)

    def drop_rank(self, rank: Rank) -> None:
        """Drop the running check and the answers of a rank that left or restarted."""
        for running in self._running.values():
            # The order stays until its request ends, since the check slot is occupied until then.
            running.is_stale = running.is_stale or running.order.rank == rank
        self.cross_checks.drop_waiting(rank)
        for question in self.cross_checks.iterate_open():
            question.results.pop(rank, None)
            question.withheld.discard(rank)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        running = {running.order.rank for running in self._running.values()}
        assert running == self._schedule.in_flight
