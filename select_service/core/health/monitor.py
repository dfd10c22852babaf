"""The health of all ranks: which checks are due, what became of them, and what follows.

Verbs return nothing but orders and note effects, in order, for whoever carries them out: weights
for the table of ranks, reservations to be moved or released, changes to be shown.  `wake` asks
once for somebody to take them.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from select_service.core.health.canary_prompts import CanaryPrompt
from select_service.core.health.checked import (
    Attempt,
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    CheckedWorker,
    CheckOrder,
    HealthCounts,
)
from select_service.core.health.checking import Checking
from select_service.core.health.common_mode import CommonMode
from select_service.core.health.delivering import Delivering
from select_service.core.health.effects import Effect
from select_service.core.health.following import Following
from select_service.core.health.health_record import HealthRecord
from select_service.core.health.kinds import Kind, Outcome
from select_service.core.health.outcomes import OutcomeReport
from select_service.core.health.partition_health import PartitionHealth
from select_service.core.health.reference_book import ReferenceBook
from select_service.core.health.rules import HealthRules
from select_service.core.health.schedule import Schedule
from select_service.core.identity import PartitionKey, Rank
from select_service.core.touched import Touched

RANKS_PER_STEP = 256
"""Ranks that are looked at, some 5 us each, before others get their turn."""
ROUNDS = 2.0
"""So long the last result of a rank says whether it is slow: its next turn may be skipped."""
PromptsOf = Callable[[PartitionKey], Sequence[CanaryPrompt]]
"""Those of a partition; none: its ranks are not checked."""


class HealthMonitor:
    """Belongs to the event loop.  `now` never goes back."""

    def __init__(
        self,
        rules: HealthRules,
        prompts_of: PromptsOf,
        booked_on: Callable[[Rank], int],
        touched: Touched,
    ) -> None:
        """booked_on: how many reservations are on a rank"""
        self.rules = rules
        self._prompts_of = prompts_of
        self.booked_on = booked_on
        self.touched = touched
        self._effects: list[Effect] = []
        self._new: list[Effect] = []
        """Of the verb that runs."""
        self._fleet = fleet = CheckedFleet()
        self.book = ReferenceBook()
        self._schedule = schedule = Schedule(rules)
        self._following = Following(rules, schedule, fleet)
        self._delivering = Delivering(rules, schedule, fleet, self._look)
        self._checking = Checking(
            rules, schedule, fleet, self.book, self._delivering, self._new.append
        )
        self._ticking: Iterator[int] | None = None
        """The round of `tick` that is not at its end."""
        self._now = 0.0

    # --- workers

    def joined(
        self, worker: CheckedWorker, now: float, ranks: Sequence[Rank] | None = None
    ) -> None:
        """Registered, registered again, or at another endpoint: what was known is forgotten.

        ranks: some of its ranks, the others follow; None: all
        """
        if ranks is None:
            self.forget(self.outdated(worker))
            ranks = worker.ranks()
        self._fleet.workers[worker.worker_id] = worker
        for rank in ranks:
            self._enter(worker, rank, now)
        self._follow(now)

    def outdated(self, worker: CheckedWorker) -> list[Rank]:
        """Ranks that the worker had before, and has not when it joins as it is now."""
        known = self._fleet.of_worker(worker.worker_id)
        return [rank for rank in known if rank.dp_rank not in worker.dp_ranks]

    def _enter(self, worker: CheckedWorker, rank: Rank, now: float) -> None:
        known = self._fleet.ranks.get(rank)
        if known is not None and known.key == worker.key:
            partition = self._fleet.partitions[known.key]
            self._fleet.take(rank)
            self._leave(partition, rank)
            partition.health.reset(rank, now)
        else:
            self.forget([rank])
            partition = self._partition(worker.key)
            partition.health.join(rank, worker.is_spare, now)
        self._watch(partition, worker, rank, now)

    def left(self, worker_id: int) -> None:
        """Deleted; of one that is not here, nothing."""
        self.forget(self._fleet.of_worker(worker_id))
        if self._fleet.workers.pop(worker_id, None) is not None:
            self._fleet.counts.forget(worker_id)

    def forget(self, ranks: Sequence[Rank]) -> None:
        """They are not there any more, those of them that were."""
        for rank in ranks:
            if rank in self._fleet.ranks:
                self._rank_left(rank)

    def _partition(self, key: PartitionKey) -> CheckedPartition:
        partition = self._fleet.partitions.get(key)
        if partition is None:
            health = PartitionHealth(self.rules, self._new)
            common_mode = CommonMode(ROUNDS * self.rules.interval_s)
            prompts = tuple(self._prompts_of(key))
            names = tuple(prompt.name for prompt in prompts)
            partition = CheckedPartition(health, common_mode, prompts, names)
            self._fleet.partitions[key] = partition
        return partition

    def _watch(
        self, partition: CheckedPartition, worker: CheckedWorker, rank: Rank, now: float
    ) -> None:
        self._fleet.put(CheckedRank(rank, worker.key, worker.endpoint))
        if worker.endpoint is not None and partition.prompts:
            partition.ranks.add(rank)
            self._schedule.join(rank, now)

    def _leave(self, partition: CheckedPartition, rank: Rank) -> None:
        """What belongs to the process behind the rank."""
        if rank in self._schedule:
            self._schedule.leave(rank)
            partition.ranks.remove(rank)
        self._checking.leave(rank)
        partition.common_mode.leave(rank)
        self.book.forget_rank(rank)

    def _rank_left(self, rank: Rank) -> None:
        key = self._fleet.take(rank).key
        partition = self._fleet.partitions[key]
        self._leave(partition, rank)
        partition.health.leave(rank)
        if not len(partition.health.roster):
            del self._fleet.partitions[key]
            self._checking.questions.forget(key)

    # --- checks

    def due(self, now: float) -> CheckOrder | None:
        """A check that is to be made now, one after the other until there is none."""
        found = self._schedule.due(now)
        return None if found is None else self._checking.begin(found, now)

    def attempted(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """What a request of a check brought.

        Returns seconds until the same is to be asked again, None when the check is over.  Every
        order must come to its end here.
        """
        pause_s = self._checking.attempted(order, attempt, now)
        self._follow(now)
        return pause_s

    def resumes(self, order: CheckOrder) -> bool:
        """The pause that `attempted` returned is over: may the same be asked again now?

        If not, ask again soon: so many others are being asked, and this one is the next.
        """
        return self._checking.resumes(order)

    def check(self, worker_id: int, now: float) -> None:
        """An operator wants its ranks checked now."""
        for rank in self._fleet.of_worker(worker_id):
            self._schedule.ask(rank, now, again_s=0.0)

    def learn(self, model_name: str) -> None:
        """What is right is to be learnt anew."""
        self.book.forget(model_name)

    # --- what others say

    def reported(self, report: OutcomeReport, believed: bool, now: float) -> None:
        """What became of a request.  Who is not believed causes a check of the rank at most.

        Failures of a rank that is never checked are not held against it: nothing would bring it
        back.  After a `fatal` it comes back when it is registered again.
        """
        if report.rank not in self._fleet.ranks:
            return
        if not believed:
            self._schedule.ask(report.rank, now)
            return
        if report.outcome is Outcome.FAILURE and not self.is_checked(report.rank):
            return
        self._look(report.rank)
        record = self.record(report.rank)
        for _ in range(min(report.times, self.rules.passive_failures)):
            before = record.failures
            self._health(report.rank).reported(report.rank, report.outcome, now)
            if record.failures > before:
                is_fatal = report.outcome is Outcome.FATAL
                self.counts.failed(report.rank, Kind.FATAL if is_fatal else Kind.PASSIVE)
        self._follow(now)

    # --- operators

    def drain(self, worker_id: int, now: float, ranks: Sequence[Rank] | None = None) -> None:
        """No requests and no checks for its ranks, and what is on them is moved.

        ranks: only these of them; None: all
        """
        for rank in self._fleet.of_worker(worker_id, ranks):
            self._look(rank)
            self._health(rank).drain(rank, now)
        self._follow(now)

    def undrain(self, worker_id: int, now: float, ranks: Sequence[Rank] | None = None) -> None:
        """Serve again.  ranks: only these of its ranks; None: all"""
        for rank in self._fleet.of_worker(worker_id, ranks):
            self._health(rank).undrain(rank, now)
        self._follow(now)

    # --- time

    def tick(self, now: float) -> bool:
        """Once a second, and again in the next turn as long as that is returned.

        O(RANKS_PER_STEP); all turns together O(ranks that are out or have just recovered)
        """
        if self._ticking is None:
            self._ticking = self._tick()
        self._now = now
        more = next(self._ticking, None) is not None
        if not more:
            self._ticking = None
        self._follow(now)
        return more

    def _tick(self) -> Iterator[int]:
        """Yields after some ranks how many they were.  `_now` is that of the turn."""
        while self._delivering.go_on(self._now):
            yield 1
        left = RANKS_PER_STEP
        for partition in list(self._fleet.partitions.values()):
            for record in partition.health.timed():
                self._look(record.rank)
                partition.health.pass_time(record, self._now)
                left -= 1
                if not left:
                    yield RANKS_PER_STEP
                    left = RANKS_PER_STEP
        while self._checking.close(self._now):
            yield 1

    def go_on(self, now: float) -> bool:
        """What a verb has left for further turns; is there still something?  O(RANKS_PER_STEP)"""
        more = self._delivering.go_on(now)
        self._follow(now)
        return more

    def _look(self, rank: Rank) -> None:
        """Tell the state machine what is booked on a rank, if that is something else."""
        checked = self._fleet.ranks.get(rank)
        if checked is not None:
            health, booked = self._fleet.partitions[checked.key].health, self.booked_on(rank)
            if health.roster[rank].reservations != booked:
                health.booked(rank, booked)

    # --- effects

    def take_effects(self) -> list[Effect]:
        """All since the last call, in order."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def _follow(self, now: float) -> None:
        """What has been done means something for the schedule, and for others."""
        self._following.follow(self._new, now)
        self._effects += self._new
        self._new.clear()
        self.touched.wake_if(self._effects)
        self.touched.wake_if(self._delivering.left)

    # --- reading

    @property
    def counts(self) -> HealthCounts:
        """To be read only."""
        return self._fleet.counts

    @property
    def has_effects(self) -> bool:
        """Is there something to be taken?"""
        return bool(self._effects)

    def worker(self, worker_id: int) -> CheckedWorker | None:
        """As it joined last; None: it is not here."""
        return self._fleet.workers.get(worker_id)

    def record(self, rank: Rank) -> HealthRecord:
        """To be read only.  Raises KeyError for a rank that is not here."""
        return self._fleet.record(rank)

    def checked(self, rank: Rank) -> CheckedRank:
        """To be read only.  Raises KeyError for a rank that is not here."""
        return self._fleet.ranks[rank]

    def refusing(self) -> Collection[int]:
        """Return the ids of workers of which a rank refuses the request of a check."""
        return self._fleet.refusing

    def checks_refused(self, worker_id: int) -> str:
        """Why a rank of the worker refuses the request of a check; empty: none does.

        O(1) where none does, else O(ranks of the worker)
        """
        if worker_id not in self._fleet.refusing:
            return ""
        ranks = map(self.checked, self._fleet.of_worker(worker_id))
        return next((rank.misconfigured for rank in ranks if rank.misconfigured), "")

    def is_checked(self, rank: Rank) -> bool:
        """Does it have an endpoint, and its partition prompts?"""
        return rank in self._schedule

    def next_check_at(self, rank: Rank) -> float | None:
        """None: no check is planned."""
        return self._schedule.next_at(rank)

    def knows(self, rank: Rank) -> bool:
        """Is it here?"""
        return rank in self._fleet.ranks

    def is_of(self, rank: Rank, key: PartitionKey) -> bool:
        """Is it here, and in this partition?"""
        known = self._fleet.ranks.get(rank)
        return known is not None and known.key == key

    def ranks(self) -> Iterator[Rank]:
        """All of them."""
        return iter(self._fleet.ranks)

    def partition(self, key: PartitionKey) -> CheckedPartition | None:
        """To be read only; None: nobody is there."""
        return self._fleet.partitions.get(key)

    def ranks_of_partition(self, key: PartitionKey) -> list[Rank]:
        """In the order of their registration, or none."""
        partition = self._fleet.partitions.get(key)
        return [] if partition is None else [record.rank for record in partition.health.roster]

    def partitions(self) -> Iterator[tuple[PartitionKey, CheckedPartition]]:
        """To be read only."""
        return iter(self._fleet.partitions.items())

    def _health(self, rank: Rank) -> PartitionHealth:
        return self._fleet.partition_of(rank).health

    def check_invariants(self) -> None:
        """For tests."""
        self._schedule.check_invariants()
        self._checking.check_invariants()
        ranks = [rank for worker in self._fleet.workers.values() for rank in worker.ranks()]
        assert set(ranks) >= set(self._fleet.ranks)
        behind = {rank for ranks in self._fleet.endpoints.values() for rank in ranks}
        assert behind == {r for r, c in self._fleet.ranks.items() if c.endpoint is not None}
        for key, partition in self._fleet.partitions.items():
            partition.health.check_invariants()
            partition.common_mode.check_invariants()
            assert {r.rank for r in partition.health.roster} == {
                rank for rank, checked in self._fleet.ranks.items() if checked.key == key
            }
            assert set(partition.ranks) == {
                rank
                for rank, checked in self._fleet.ranks.items()
                if checked.key == key and rank in self._schedule
            }
