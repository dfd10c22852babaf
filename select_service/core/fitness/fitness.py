"""Which ranks of the fleet may serve, and by which weight.

The monitor of health is told here who is registered and what is booked, and what it says is carried
out here: weights in the table of ranks, everything else by those who follow.  Verbs of the catalog
only note what changed; that and all effects have one place, `settle`.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from select_service.bodies.health import (
    CapacityView,
    OutcomeRequest,
    PartitionHealthView,
    WorkerHealth,
)
from select_service.core.fitness.check_times import CheckTimes
from select_service.core.fitness.following import HealthFollower
from select_service.core.fitness.report import HealthReport, health_report
from select_service.core.fitness.reports import Reports, outcome_of
from select_service.core.fitness.views import CapacityOf, fleet_health, worker_health
from select_service.core.fitness.worker_turns import Wish, WorkerTurns
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.health.canary_prompts import CanaryPrompt
from select_service.core.health.checked import Attempt, CheckedWorker, CheckOrder
from select_service.core.health.effects import Effect, MovesAsked, StateChanged, WeightChanged
from select_service.core.health.kinds import Kind, Outcome, State
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.outcomes import OutcomeReport
from select_service.core.health.rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout
from select_service.core.load.ledger import Ledger
from select_service.core.touched import Touched
from select_service.core.workers.catalog import Worker
from select_service.errors import Conflict, NotFound
from select_service.urls import engine_url_error

EFFECTS_PER_TURN_MAX = 160
RANKS_PER_TURN_MAX = 64
"""Ranks of workers that come, go, drain or serve again, some 20 us each."""
RANKS_PER_STEP = 32

PromptsOf = Callable[[PartitionKey], Sequence[CanaryPrompt]]


class Fitness:
    """Belongs to the thread that decides."""

    def __init__(
        self,
        rules: HealthRules,
        prompts_of: PromptsOf,
        fleet: Fleet,
        ledger: Ledger,
        touched: Touched,
    ) -> None:
        """prompts_of: what the ranks of a partition are asked; nothing: they are not checked"""
        self.monitor = HealthMonitor(rules, prompts_of, self.booked_on, touched)
        self.reports = Reports(self.monitor, ledger.held)
        ledger.follow(self.reports, tells_bookings=False)
        self.times = CheckTimes()
        self.followers: list[HealthFollower] = []
        self.capacity_of: CapacityOf = _unknown_capacity
        """Shown with the fleet; whoever computes it sets this."""
        self._fleet = fleet
        self._touched = touched
        self._effects: deque[Effect] = deque()
        """Of verbs that were long, what is left for further turns."""
        self._turns = WorkerTurns(self._carried_out)
        self._now = 0.0
        """Of the turn."""
        self._stays: set[int] = set()
        """Workers that drain and whose reservations stay."""

    # --- the catalog, and ranks in turns

    def changed(self, worker_id: int, is_registration: bool) -> None:
        """A worker was registered, changed or deleted."""
        self._turns.changed(worker_id, is_registration)
        self._touched.wake_if(self._turns)
        worker = self._fleet.catalog.find(worker_id)
        if worker is not None and worker.schedulable:
            self._fleet.set_weights(worker, self._kept_out(worker))

    def _kept_out(self, worker: Worker) -> Iterator[tuple[Rank, float, str]]:
        """A rank that was not to be chosen is not, either, in a new row that nobody has looked at;
        nor is a new spare.  O(ranks of the worker)"""
        for rank in worker.ranks():
            if self.monitor.is_of(rank, worker.key):
                told = self._told(rank)
                if told[1] != 1.0:
                    yield told
            elif worker.given.spare:
                yield rank, 0.0, "spare"

    def _go_on(self, now: float) -> None:
        """Look at some ranks of those workers about which something is to be done."""
        self._now = now
        self._turns.go_on(RANKS_PER_TURN_MAX)

    def _carried_out(self, worker_id: int, wish: Wish) -> Iterator[int]:
        """Yields after some ranks how many they were."""
        worker = self._fleet.catalog.find(worker_id)
        if worker is None or not worker.schedulable:
            yield from self._left(worker_id)
            return
        if wish.changed:
            yield from self._put(worker, wish)
        if wish.drains is not None:
            change = self.monitor.drain if wish.drains else self.monitor.undrain
            for ranks in _some(worker.ranks()):
                change(worker_id, self._now, ranks)
                yield len(ranks)

    def _left(self, worker_id: int) -> Iterator[int]:
        known = self.monitor.worker(worker_id)
        for ranks in _some(() if known is None else known.ranks()):
            self.monitor.forget(ranks)
            yield len(ranks)
        self.monitor.left(worker_id)
        self.times.left(worker_id)
        self._stays.discard(worker_id)

    def _put(self, worker: Worker, wish: Wish) -> Iterator[int]:
        """A change that leaves ranks and endpoint as they were says nothing of their health."""
        known, checked = self.monitor.worker(worker.worker_id), _checked(worker)
        stands = known is not None and known._replace(is_spare=checked.is_spare) == checked
        is_new = wish.is_registration or not stands
        if is_new:
            for ranks in _some(self.monitor.outdated(checked)):
                self.monitor.forget(ranks)
                yield len(ranks)
            self.times.joined(worker.worker_id)
            if not wish.drains:
                self._stays.discard(worker.worker_id)
        for ranks in _some(worker.ranks()):
            if is_new:
                self.monitor.joined(checked, self._now, ranks)
            if wish.drains:
                self.monitor.drain(worker.worker_id, self._now, ranks)
            self._fleet.set_weights(worker, map(self._told, ranks))  # their rows may be new
            yield len(ranks)

    # --- effects

    def settle(self, now: float) -> None:
        """Carry out what followed from verbs since the last call, as much as one turn may."""
        self._go_on(now)
        self.monitor.go_on(now)
        self._effects += self.monitor.take_effects()
        for _ in range(min(len(self._effects), EFFECTS_PER_TURN_MAX)):
            effect = self._effects.popleft()
            if isinstance(effect, WeightChanged | StateChanged):
                self._weigh(effect.rank)
            if not (isinstance(effect, MovesAsked) and effect.rank.worker_id in self._stays):
                self._tell(effect, now)
            if isinstance(effect, StateChanged) and effect.state is State.UNHEALTHY:
                self._move_latecomers(effect, now)
        for follower in self.followers:
            follower.settle(now)
        self._touched.wake_if(self._effects)
        self._touched.wake_if(self._turns)

    def _move_latecomers(self, out: StateChanged, now: float) -> None:
        """What was booked on a rank after it was out and before its weight said so leaves, too."""
        booked = self.booked_on(out.rank)
        is_left = self.monitor.knows(out.rank) and (
            self.monitor.record(out.rank).state is State.UNHEALTHY
        )
        if booked and is_left and out.cause is not Kind.LATENCY_SPIKE:
            self._tell(MovesAsked(out.rank, booked), now)

    def _tell(self, effect: Effect, now: float) -> None:
        for follower in self.followers:
            follower.follow(effect, now)

    def _weigh(self, rank: Rank) -> None:
        """By what the monitor said last.  Of a rank that has left meanwhile, nothing."""
        if self.monitor.knows(rank):
            self._fleet.set_weight(*self._told(rank))

    def _told(self, rank: Rank) -> tuple[Rank, float, str]:
        """The rank, its weight and why it has it.  Raises KeyError for one that is not here."""
        record = self.monitor.record(rank)
        state = "spare" if record.is_spare and record.state.serves else record.state.word
        return rank, record.told_weight, state

    def booked_on(self, rank: Rank) -> int:
        """Reservations on a rank.  O(1)"""
        found = self._place(rank)
        if found is None:
            return 0
        partition, slot = found
        return int(partition.load.totals[slot, load_layout.REQUESTS])

    # --- time

    def tick(self, now: float) -> bool:
        """Once a second, and again in the next turn as long as that is returned."""
        more = self.monitor.tick(now)
        if not more:
            for follower in self.followers:
                follower.tick(now)
        return more

    # --- checks, for who makes them

    def due(self, now: float) -> CheckOrder | None:
        """A check that is to be made now, one after the other until there is none."""
        order = self.monitor.due(now)
        if order is not None:
            self.times.began(order, now)
        return order

    def attempted(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """What a request of a check brought: seconds until the next one, None: it is over."""
        pause_s = self.monitor.attempted(order, attempt, now)
        if pause_s is None:
            self.times.ended(order, now)
        return pause_s

    def resumes(self, order: CheckOrder) -> bool:
        """The pause is over: may the same be asked again now?  If not, ask again soon."""
        return self.monitor.resumes(order)

    # --- verbs of callers and operators; all raise before they change anything

    def reported(self, worker_id: int, given: OutcomeRequest, is_trusted: bool, now: float) -> None:
        """What became of a request.  Raises NotFound, Conflict for a rank that is not here."""
        self._known(worker_id, now)
        rank = Rank(worker_id, given.dp_rank)
        if self._place(rank) is None:
            raise NotFound(f"dp_rank {rank.dp_rank} of worker {rank.worker_id} not found")
        report = OutcomeReport(
            rank, outcome_of(given), given.reservation_id, is_trusted, given.count
        )
        self.reports.reported(report, now)

    def ended(self, reservation_id: str, rank: Rank, outcome: str, now: float) -> None:
        """A reservation was freed so; of a rank that has left, nothing."""
        self._go_on(now)
        if self._place(rank) is not None:
            report = OutcomeReport(rank, Outcome(outcome), reservation_id)
            self.reports.reported(report, now)

    def drain(self, worker_id: int, moves: bool, now: float) -> Worker:
        """No new requests, after some turns if it has many ranks.  Raises NotFound, Conflict.

        moves: what is booked goes elsewhere
        """
        worker = self._known(worker_id, now)
        self.drain_next(worker_id, moves)
        self._go_on(now)
        return worker

    def drain_next(self, worker_id: int, moves: bool) -> None:
        """As `drain`, in the next turns, of a worker that may just have been put."""
        if moves:
            self._stays.discard(worker_id)
        else:
            self._stays.add(worker_id)
        self._turns.drains(worker_id, True)
        self._touched.wake_if(self._turns)

    def undrain(self, worker_id: int, now: float) -> Worker:
        """Serve again, if an operator let it drain; in turns, too.  Raises NotFound, Conflict."""
        worker = self._known(worker_id, now)
        self._stays.discard(worker_id)
        self._turns.drains(worker_id, False)
        self._go_on(now)
        self._touched.wake_if(self._turns)
        return worker

    def check(self, worker_id: int, now: float) -> Worker:
        """Check its ranks now.  Raises NotFound, Conflict if none of them is ever checked."""
        worker = self._known(worker_id, now)
        is_behind = self._turns.is_behind(worker_id)
        if not is_behind and not any(map(self.monitor.is_checked, worker.ranks())):
            raise Conflict(
                f"worker {worker_id} is not checked: its endpoint is not one for HTTP, or there "
                "are no prompts for its model"
            )
        self.monitor.check(worker_id, now)
        return worker

    def learn(self, model_name: str) -> None:
        """Forget what is right.  Raises NotFound for a model that no worker serves."""
        if model_name not in self._fleet.catalog.models:
            raise NotFound(f"model `{model_name}` not found: no worker is registered for it")
        self.monitor.learn(model_name)

    def _known(self, worker_id: int, now: float) -> Worker:
        """Raises NotFound, Conflict."""
        self._go_on(now)
        worker = self._fleet.catalog.get(worker_id)
        if not worker.schedulable:
            raise Conflict(
                f"worker {worker_id} is {worker.lifecycle}: what gets no requests has no health; "
                f"GET /workers/{worker_id} says why"
            )
        return worker

    def _place(self, rank: Rank) -> tuple[Partition, int] | None:
        """Partition and slot; None: it is not there."""
        worker = self._fleet.catalog.find(rank.worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        slot = None if partition is None else partition.table.find(rank)
        return None if partition is None or slot is None else (partition, slot)

    # --- reading

    def state_of(self, rank: Rank) -> str | None:
        """The word for it; None: nothing is known of the rank."""
        return self.monitor.record(rank).state.word if self.monitor.knows(rank) else None

    def worker_health(
        self, worker: Worker, now: float
    ) -> Generator[None, None, WorkerHealth | None]:
        """See `views`."""
        return worker_health(self.monitor, worker, now)

    def fleet_health(
        self, model_name: str | None, tenant_id: str | None, now: float
    ) -> Iterator[PartitionHealthView | None]:
        """See `views`."""
        self._go_on(now)
        return fleet_health(self.monitor, self.capacity_of, model_name, tenant_id, now)

    @property
    def is_behind(self) -> bool:
        """Is there something for further turns?"""
        return bool(self._turns or self._effects or self.monitor.has_effects)

    def report(self) -> Generator[None, None, HealthReport]:
        """See `report`."""
        return health_report(self.monitor, self.times, self.capacity_of)

    def check_invariants(self) -> None:
        """For tests."""
        self.monitor.check_invariants()
        if self.is_behind:
            return
        known = [worker for worker in self._fleet.catalog if worker.schedulable]
        assert {r for worker in known for r in worker.ranks()} == set(self.monitor.ranks())
        for partition in self._fleet.partitions.values():
            for rank, slot in partition.table.slots():
                record = self.monitor.record(rank)
                assert partition.table.columns.weight[slot] == record.told_weight


def _unknown_capacity(key: PartitionKey) -> CapacityView | None:
    return None


def _some(ranks: Sequence[Rank]) -> Iterable[Sequence[Rank]]:
    """All of them, a few at a time."""
    starts = range(0, len(ranks), RANKS_PER_STEP)
    return (ranks[start : start + RANKS_PER_STEP] for start in starts)


def _checked(worker: Worker) -> CheckedWorker:
    endpoint = worker.given.endpoint
    is_http = endpoint is not None and engine_url_error(endpoint) is None
    return CheckedWorker(
        worker.worker_id,
        worker.key,
        worker.dp_ranks(),
        endpoint if is_http else None,
        worker.given.spare is True,
    )
