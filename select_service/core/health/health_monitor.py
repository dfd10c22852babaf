"""Health monitor of all ranks: due checks, their results, and the resulting effects.

Methods append effects in order for listeners: weights for the rank table, reservations to migrate
or release, changes to report. `request_turn_if` requests a run of the task that takes the effects.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.answers.reference_answers import ReferenceAnswers
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.check_runner import CheckRunner
from select_service.core.health.checks.check_schedule import CheckSchedule
from select_service.core.health.checks.check_state import (
    Attempt,
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    CheckedWorker,
    CheckOrder,
    HealthCounters,
)
from select_service.core.health.checks.common_mode import CommonModeDetector
from select_service.core.health.checks.connection_probes import ConnectionProbes
from select_service.core.health.checks.result_dispatcher import ResultDispatcher
from select_service.core.health.checks.schedule_updater import CheckScheduleUpdater
from select_service.core.health.health_effects import ConnectionProbeRequested, HealthEffect
from select_service.core.health.health_kinds import CheckKind, RequestOutcome
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.health.rank_state.partition_health import PartitionHealth
from select_service.core.identity import PartitionKey, Rank

RANKS_PER_STEP = 256
"""Ranks examined per step, about 5 us each, before the event loop runs other tasks."""
LOST_DESCRIBED_MAX = 8
COMMON_MODE_ROUNDS = 2.0
"""Rounds for which the latest result of a rank counts as its speed; one check may be skipped."""
PromptsOf = Callable[[PartitionKey], Sequence[CanaryPrompt]]
"""Function from a partition to its canary prompts; an empty result disables checks."""


class HealthMonitor:
    """Facade of the health state; used by the event loop only. Times never decrease."""

    def __init__(
        self,
        rules: HealthRules,
        prompts_of: PromptsOf,
        count_reservations: Callable[[Rank], int],
        touched: DirtyPartitions,
    ) -> None:
        """Create the monitor; booked_on returns the number of reservations on a rank."""
        self.rules = rules
        self._prompts_of = prompts_of
        self.count_reservations = count_reservations
        self.touched = touched
        self._effects: list[HealthEffect] = []
        self._new: list[HealthEffect] = []
        """Effects of the current call."""
        self._fleet = fleet = CheckedFleet()
        self.references = ReferenceAnswers()
        self._schedule = schedule = CheckSchedule(rules)
        self._connections = ConnectionProbes()
        self._following = CheckScheduleUpdater(rules, schedule, fleet, self._connections)
        self._delivering = ResultDispatcher(rules, schedule, fleet, self._refresh_reservations)
        self._checking = CheckRunner(
            rules, schedule, fleet, self.references, self._delivering, self._new.append
        )
        self._ticking: Iterator[int] | None = None
        """Unfinished round of `advance_timers`."""
        self._now = 0.0

    def register_worker(
        self, worker: CheckedWorker, now: float, ranks: Sequence[Rank] | None = None
    ) -> None:
        """Add a worker that registered, registered again, or changed its endpoint; reset its
        health.

        ranks: some of its ranks, with the rest to follow; None means all
        """
        if ranks is None:
            self.remove_ranks(self.find_outdated_ranks(worker))
            ranks = worker.list_ranks()
        self._fleet.workers[worker.worker_id] = worker
        for rank in ranks:
            self._enter_rank(worker, rank, now)
        self._publish_effects(now)

    def find_outdated_ranks(self, worker: CheckedWorker) -> list[Rank]:
        """Return previous ranks of the worker that its new registration lacks."""
        ranks = self._fleet.ranks_of_worker(worker.worker_id)
        return [rank for rank in ranks if rank.dp_rank not in worker.dp_ranks]

    def _enter_rank(self, worker: CheckedWorker, rank: Rank, now: float) -> None:
        record = self._fleet.ranks.get(rank)
        if record is not None and record.key == worker.key:
            partition = self._fleet.partitions[record.key]
            self._fleet.remove_rank(rank)
            self._drop_process_state(partition, rank)
            # Same partition: registration order and spare role are kept.
            partition.health.reset_rank(rank, now)
        else:
            self.remove_ranks([rank])
            partition = self._ensure_partition(worker.key)
            partition.health.add_rank(rank, worker.is_spare, now)
        self._add_rank(partition, worker, rank, now)

    def remove_worker(self, worker_id: int) -> None:
        """Remove a deregistered worker; unknown workers are ignored."""
        self.remove_ranks(self._fleet.ranks_of_worker(worker_id))
        if self._fleet.workers.pop(worker_id, None) is not None:
            self._fleet.counters.drop_worker(worker_id)

    def remove_ranks(self, ranks: Sequence[Rank]) -> None:
        """Remove the given ranks; unknown ranks are ignored."""
        for rank in ranks:
            if rank in self._fleet.ranks:
                self._remove_rank(rank)

    def _ensure_partition(self, key: PartitionKey) -> CheckedPartition:
        partition = self._fleet.partitions.get(key)
        if partition is None:
            health = PartitionHealth(self.rules, self._new)
            common_mode = CommonModeDetector(COMMON_MODE_ROUNDS * self.rules.interval_s)
            prompts = tuple(self._prompts_of(key))
            names = tuple(prompt.name for prompt in prompts)
            partition = CheckedPartition(health, common_mode, prompts, names)
            self._fleet.partitions[key] = partition
        return partition

    def _add_rank(
        self, partition: CheckedPartition, worker: CheckedWorker, rank: Rank, now: float
    ) -> None:
        self._fleet.add_rank(CheckedRank(rank, worker.key, worker.endpoint))
        if worker.endpoint is not None and partition.prompts:
            partition.ranks.add_rank(rank)
            self._schedule.add_rank(rank, now)

    def _drop_process_state(self, partition: CheckedPartition, rank: Rank) -> None:
        """Drop the state that belongs to the rank's process."""
        if rank in self._schedule:
            self._schedule.remove_rank(rank)
            partition.ranks.remove_rank(rank)
        self._checking.drop_rank(rank)
        partition.common_mode.drop_rank(rank)
        self.references.forget_rank(rank)

    def _remove_rank(self, rank: Rank) -> None:
        key = self._fleet.remove_rank(rank).key
        partition = self._fleet.partitions[key]
        self._drop_process_state(partition, rank)
        partition.health.remove_rank(rank)
        # Without ranks the partition holds no state worth keeping; references are kept separately.
        if not len(partition.health.registry):
            del self._fleet.partitions[key]
            self._checking.cross_checks.drop_partition(key)

    def next_due_check(self, now: float) -> CheckOrder | None:
        """Start and return a check that is due; call repeatedly until the result is None."""
        found = self._schedule.take_due(now)
        return None if found is None else self._checking.start_check(found, now)

    def process_attempt(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Process an attempt of a check.

        Returns the pause in s before the next attempt, None when the check is over. Every order
        must be completed here.
        """
        pause_s = self._checking.process_attempt(order, attempt, now)
        self._publish_effects(now)
        return pause_s

    def next_connection_probe(self) -> str | None:
        """Return an endpoint of refusing ranks to connect to now, or None.

        Every endpoint must be completed by `process_connection`.
        """
        return self._connections.take_next()

    def process_connection(self, endpoint: str, is_open: bool, now: float) -> None:
        """Process an attempt to connect; an open endpoint gets probes at once.

        O(ranks of the endpoint), with RANKS_PER_STEP probes at most; the other ranks follow with
        the next attempt.
        """
        self._connections.end_probe(endpoint)
        left = RANKS_PER_STEP
        for rank in self._fleet.endpoints.get(endpoint, ()):
            partition = self._fleet.partition_of(rank)
            is_waiting = partition.health.registry[rank].awaits_connection
            if is_waiting and rank not in self._schedule.in_flight:
                partition.health.apply_connection(rank, is_open, now)
                left -= 1
                if not left:
                    break
        self._publish_effects(now)

    def may_continue(self, order: CheckOrder) -> bool:
        """Return whether the next attempt may be sent after the pause from `process_attempt`.

        If not, call again soon: the limit of concurrent checks is reached, and this check is next.
        """
        return self._checking.may_continue(order)

    def check_worker(self, worker_id: int, now: float) -> None:
        """Schedule checks of all ranks of a worker now, on request of an operator."""
        for rank in self._fleet.ranks_of_worker(worker_id):
            self._schedule.request_check(rank, now, repeat_after_s=0.0)

    def forget_references(self, model_name: str) -> None:
        """Forget the learnt reference answers of a model."""
        self.references.forget_model(model_name)

    def process_report(self, report: OutcomeReport, is_trusted: bool, now: float) -> None:
        """Process a reported outcome of a request; an untrusted report causes a check at most.

        Failures of a rank without checks are ignored, as no check would bring the rank back. After
        a `fatal` outcome such a rank returns with its next registration.
        """
        if report.rank not in self._fleet.ranks:
            return
        # An untrusted client can at most cause one check per ASKED_AGAIN_S.
        if not is_trusted:
            self._schedule.request_check(report.rank, now)
            return
        if report.outcome is RequestOutcome.FAILURE and not self.is_checked(report.rank):
            return
        self._refresh_reservations(report.rank)
        record = self.record_of(report.rank)
        # More repetitions than the threshold cannot change the result, so a large count costs
        # nothing.
        for _ in range(min(report.times, self.rules.passive_failures)):
            before = record.failures
            self._partition_health(report.rank).apply_report(report.rank, report.outcome, now)
            if record.failures > before:
                is_fatal = report.outcome is RequestOutcome.FATAL
                self.counters.count_failure(
                    report.rank, CheckKind.FATAL if is_fatal else CheckKind.PASSIVE
                )
        self._publish_effects(now)

    def drain_ranks(self, worker_id: int, now: float, ranks: Sequence[Rank] | None = None) -> None:
        """Stop requests and checks for ranks of a worker, and request migration of their
        reservations.

        ranks: some of its ranks; None means all
        """
        for rank in self._fleet.ranks_of_worker(worker_id, ranks):
            self._refresh_reservations(rank)
            self._partition_health(rank).drain_rank(rank, now)
        self._publish_effects(now)

    def undrain_ranks(
        self, worker_id: int, now: float, ranks: Sequence[Rank] | None = None
    ) -> None:
        """Return drained ranks to service.

        ranks: some of its ranks; None means all
        """
        for rank in self._fleet.ranks_of_worker(worker_id, ranks):
            self._partition_health(rank).undrain_rank(rank, now)
        self._publish_effects(now)

    def advance_timers(self, now: float) -> bool:
        """Advance the timers; call once a second, and again in the next turn while the result is
        True.

        O(RANKS_PER_STEP) per call; O(ranks that are out or recently recovered) for all turns
        together
        """
        # A generator keeps the position between turns while ranks come and go.
        if self._ticking is None:
            self._ticking = self._advance_in_steps()
        self._now = now
        more = next(self._ticking, None) is not None
        if not more:
            self._ticking = None
        self._publish_effects(now)
        return more

    def _advance_in_steps(self) -> Iterator[int]:
        """Yield the number of processed ranks after each step; `_now` is the time of the current
        turn.
        """
        while self._delivering.continue_work(self._now):
            yield 1
        left = RANKS_PER_STEP
        # Copied: other calls between two steps may add or remove partitions.
        for partition in list(self._fleet.partitions.values()):
            for record in partition.health.records_with_timers():
                self._refresh_reservations(record.rank)
                partition.health.advance_timer(record, self._now)
                left -= 1
                if not left:
                    yield RANKS_PER_STEP
                    left = RANKS_PER_STEP
        while self._checking.settle_next_cross_check(self._now):
            yield 1

    def continue_work(self, now: float) -> bool:
        """Continue unfinished work of earlier calls; return whether any is left.
        O(RANKS_PER_STEP)
        """
        more = self._delivering.continue_work(now)
        self._publish_effects(now)
        return more

    def _refresh_reservations(self, rank: Rank) -> None:
        """Pass the number of reservations on a rank to its state machine if the number has
        changed.
        """
        checked = self._fleet.ranks.get(rank)
        if checked is not None:
            health, booked = (
                self._fleet.partitions[checked.key].health,
                self.count_reservations(rank),
            )
            # Read lazily here instead of on every booking: bookings are far more frequent than
            # checks.
            if health.registry[rank].reservations != booked:
                health.set_reservations(rank, booked)

    def take_effects(self) -> list[HealthEffect]:
        """Return and clear all effects since the last call, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def _publish_effects(self, now: float) -> None:
        """Apply new effects to the schedule, and publish them to listeners."""
        self._following.apply_effects(self._new, now)
        # The same list object is shared with all state machines, so it is emptied, never replaced.
        # Thousands of ranks may wait for connections; the schedule alone needs to know.
        self._effects += [e for e in self._new if not isinstance(e, ConnectionProbeRequested)]
        self._new.clear()
        self.touched.request_turn_if(self._effects)
        self.touched.request_turn_if(self._delivering.unfinished)

    @property
    def counters(self) -> HealthCounters:
        """Counters, read-only."""
        return self._fleet.counters

    @property
    def has_effects(self) -> bool:
        """Whether effects are waiting."""
        return bool(self._effects)

    def find_worker(self, worker_id: int) -> CheckedWorker | None:
        """Return the worker as last registered; None means unknown."""
        return self._fleet.workers.get(worker_id)

    def record_of(self, rank: Rank) -> HealthRecord:
        """Return the health record, read-only. Raises KeyError for an unknown rank."""
        return self._fleet.record_of(rank)

    def check_state_of(self, rank: Rank) -> CheckedRank:
        """Return the check state, read-only. Raises KeyError for an unknown rank."""
        return self._fleet.ranks[rank]

    def refusing_workers(self) -> Collection[int]:
        """Return the ids of workers with a rank that rejects check requests."""
        return self._fleet.refusing_workers

    def refusal_reason(self, worker_id: int) -> str:
        """Return why a rank of the worker rejects check requests; empty if all accept.

        O(1) if all accept, else O(ranks of the worker)
        """
        if worker_id not in self._fleet.refusing_workers:
            return ""
        ranks = map(self.check_state_of, self._fleet.ranks_of_worker(worker_id))
        return next((rank.refusal_reason for rank in ranks if rank.refusal_reason), "")

    def describe_lost(self, worker_id: int) -> str:
        """Return which ranks of a worker health has taken out, and why; empty if none are.

        At most LOST_DESCRIBED_MAX ranks are named.
        """
        records = map(self.record_of, self._fleet.ranks_of_worker(worker_id))
        lost = [r for r in records if not (r.state.is_serving or r.is_drained_by_operator)]
        named = [
            f"rank {r.rank.dp_rank} ({r.state.label}: {r.cause})" for r in lost[:LOST_DESCRIBED_MAX]
        ]
        more = len(lost) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")

    def is_checked(self, rank: Rank) -> bool:
        """Return whether the rank has an endpoint and its partition has prompts."""
        return rank in self._schedule

    def next_check_at(self, rank: Rank) -> float | None:
        """Return the time of the next check; None if no check is planned."""
        return self._schedule.next_at(rank)

    def is_registered(self, rank: Rank) -> bool:
        """Return whether the rank is registered."""
        return rank in self._fleet.ranks

    def is_in_partition(self, rank: Rank, key: PartitionKey) -> bool:
        """Return whether the rank is registered in this partition."""
        record = self._fleet.ranks.get(rank)
        return record is not None and record.key == key

    def iterate_ranks(self) -> Iterator[Rank]:
        """Iterate over all ranks."""
        return iter(self._fleet.ranks)

    def find_partition(self, key: PartitionKey) -> CheckedPartition | None:
        """Return the partition, read-only; None means that the partition has no ranks."""
        return self._fleet.partitions.get(key)

    def ranks_of_partition(self, key: PartitionKey) -> list[Rank]:
        """Return the ranks of a partition in order of registration."""
        partition = self._fleet.partitions.get(key)
        return [] if partition is None else [record.rank for record in partition.health.registry]

    def suspicious_ranks(self, key: PartitionKey) -> list[Rank]:
        """Return the serving ranks of a partition with failing checks."""
        partition = self._fleet.partitions.get(key)
        return [] if partition is None else list(partition.health.registry.suspicious)

    def is_suspicious(self, rank: Rank) -> bool:
        """Return whether the rank serves although its checks fail; False for unknown ranks."""
        checked = self._fleet.ranks.get(rank)
        return checked is not None and (
            rank in self._fleet.partitions[checked.key].health.registry.suspicious
        )

    def iterate_partitions(self) -> Iterator[tuple[PartitionKey, CheckedPartition]]:
        """Iterate over all partitions, read-only."""
        return iter(self._fleet.partitions.items())

    def _partition_health(self, rank: Rank) -> PartitionHealth:
        return self._fleet.partition_of(rank).health

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self._schedule.check_invariants()
        self._connections.check_invariants()
        self._checking.check_invariants()
        ranks = [rank for worker in self._fleet.workers.values() for rank in worker.list_ranks()]
        assert set(ranks) >= set(self._fleet.ranks)
        behind = {rank for ranks in self._fleet.endpoints.values() for rank in ranks}
        assert behind == {r for r, c in self._fleet.ranks.items() if c.endpoint is not None}
        for key, partition in self._fleet.partitions.items():
            partition.health.check_invariants()
            partition.common_mode.check_invariants()
            assert {r.rank for r in partition.health.registry} == {
                rank for rank, checked in self._fleet.ranks.items() if checked.key == key
            }
            assert set(partition.ranks) == {
                rank
                for rank, checked in self._fleet.ranks.items()
                if checked.key == key and rank in self._schedule
            }
