"""Health service: candidates of the fleet, and their weights.

The health monitor is informed here about registrations and bookings, and its effects are applied
here: weights go to the rank tables, other effects to listeners. Methods of the catalog only record
what changed. All changes and effects are processed in `run_turn`.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from select_service.base.errors import Conflict, NotFound
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.capacity_estimate import SpareRules, recommended_spares
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.check_state import Attempt, CheckedWorker, CheckOrder
from select_service.core.health.fleet_health.batched_updates import (
    BatchedWorkerUpdates,
    PendingWorkerChange,
)
from select_service.core.health.fleet_health.check_times import CheckTimes
from select_service.core.health.fleet_health.health_listener import HealthListener
from select_service.core.health.fleet_health.health_report import HealthReport, build_health_report
from select_service.core.health.fleet_health.health_views import (
    CapacityOf,
    fleet_health,
    worker_health,
)
from select_service.core.health.fleet_health.outcome_reports import OutcomeReports, outcome_of
from select_service.core.health.health_effects import (
    HealthEffect,
    MigrationRequested,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState, RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout
from select_service.core.load.ledger import Ledger
from select_service.core.rank_condition import RankCondition
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.net.urls import engine_url_error
from select_service.schemas.health import (
    CapacityView,
    OutcomeRequest,
    PartitionHealthView,
    WorkerHealth,
)
from select_service.schemas.observation import ObservedHealth

EFFECTS_PER_TURN_MAX = 160
RANKS_PER_TURN_MAX = 64
"""Ranks of joining, leaving, draining or returning workers per turn, about 20 us each."""
RANKS_PER_STEP = 32

if TYPE_CHECKING:
    from select_service.core.health.migration.migrator import Migrator

PromptsOf = Callable[[PartitionKey], Sequence[CanaryPrompt]]


class HealthService:
    """Health of the fleet; used by the event loop thread only."""

    def __init__(
        self,
        rules: HealthRules,
        prompts_of: PromptsOf,
        fleet: WorkerFleet,
        ledger: Ledger,
        touched: DirtyPartitions,
    ) -> None:
        """Create the service; prompts_of returns the canary prompts of a partition, empty for no
        checks.
        """
        self.monitor = HealthMonitor(rules, prompts_of, self.count_reservations, touched)
        self.reports = OutcomeReports(self.monitor, ledger.reservations)
        ledger.add_listener(self.reports, needs_bookings=False)
        self.times = CheckTimes()
        self.listeners: list[HealthListener] = []
        self.capacity_of: CapacityOf = _unknown_capacity
        """Source of the capacity in reports; set by the capacity watch."""
        self.mover: Migrator | None = None
        """Mover of bookings, if enabled."""
        self.spare_rules = SpareRules()
        """Recommendation of spares; set by the settings."""
        self._fleet = fleet
        self._touched = touched
        self._effects: deque[HealthEffect] = deque()
        """Effects left for further turns."""
        self._turns = BatchedWorkerUpdates(self._apply_change)
        self._now = 0.0
        """Time of the current turn."""
        self._draining_in_place: set[int] = set()
        """Draining workers that keep their reservations."""

    def on_worker_changed(self, worker_id: int, is_registration: bool) -> None:
        """Record that a worker was registered, changed or deregistered."""
        self._turns.add_change(worker_id, is_registration)
        self._touched.request_turn_if(self._turns)
        worker = self._fleet.catalog.find_worker(worker_id)
        if worker is not None and worker.is_schedulable:
            self._fleet.set_weights(worker, self._weights_of_new_rows(worker))

    def _weights_of_new_rows(self, worker: RegisteredWorker) -> Iterator[tuple[Rank, float, str]]:
        """Yield weights of ranks that must not start with full weight in a new row.

        A rank out of rotation stays out in its new row, and a new spare starts with weight 0.
        O(ranks of the worker)
        """
        for rank in worker.list_ranks():
            if self.monitor.is_in_partition(rank, worker.key):
                weight = self._published_weight(rank)
                # New rows start with weight 1, so only other weights have to be written.
                if weight[1] != 1.0:
                    yield weight
            elif worker.registration.spare:
                yield rank, 0.0, "spare"

    def _apply_pending_changes(self, now: float) -> None:
        """Process some ranks of workers with pending changes."""
        self._now = now
        self._turns.process_ranks(RANKS_PER_TURN_MAX)

    def _apply_change(self, worker_id: int, wish: PendingWorkerChange) -> Iterator[int]:
        """Apply a pending change; yield the number of processed ranks after each step."""
        worker = self._fleet.catalog.find_worker(worker_id)
        if worker is None or not worker.is_schedulable:
            yield from self._remove_worker(worker_id)
            return
        if wish.changed:
            yield from self._update_worker(worker, wish)
        if wish.drains is not None:
            change = self.monitor.drain_ranks if wish.drains else self.monitor.undrain_ranks
            for ranks in _split_ranks(worker.list_ranks()):
                change(worker_id, self._now, ranks)
                yield len(ranks)

    def _remove_worker(self, worker_id: int) -> Iterator[int]:
        checked_worker = self.monitor.find_worker(worker_id)
        for ranks in _split_ranks(() if checked_worker is None else checked_worker.list_ranks()):
            self.monitor.remove_ranks(ranks)
            yield len(ranks)
        self.monitor.remove_worker(worker_id)
        self.times.remove_worker(worker_id)
        self._draining_in_place.discard(worker_id)

    def _update_worker(self, worker: RegisteredWorker, wish: PendingWorkerChange) -> Iterator[int]:
        """Update the monitor; health is kept if ranks and endpoint are unchanged."""
        before = self.monitor.find_worker(worker.worker_id)
        checked = _to_checked_worker(worker)
        # Changing the spare flag alone must not clear the health history.
        stands = before is not None and before._replace(is_spare=checked.is_spare) == checked
        is_new = wish.is_registration or not stands
        if is_new:
            for ranks in _split_ranks(self.monitor.find_outdated_ranks(checked)):
                self.monitor.remove_ranks(ranks)
                yield len(ranks)
            self.times.add_worker(worker.worker_id)
            if not wish.drains:
                self._draining_in_place.discard(worker.worker_id)
        for ranks in _split_ranks(worker.list_ranks()):
            if is_new:
                self.monitor.register_worker(checked, self._now, ranks)
            if wish.drains:
                self.monitor.drain_ranks(worker.worker_id, self._now, ranks)
            # A re-registered rank may have a new row, which starts with full weight.
            self._fleet.set_weights(
                worker, map(self._published_weight, ranks)
            )  # their rows may be new
            yield len(ranks)

    def run_turn(self, now: float) -> None:
        """Apply pending changes and effects, within the limits of one turn."""
        self._apply_pending_changes(now)
        self.monitor.continue_work(now)
        self._effects += self.monitor.take_effects()
        # An outage of a whole fleet creates thousands of effects; requests are served in between.
        for _ in range(min(len(self._effects), EFFECTS_PER_TURN_MAX)):
            effect = self._effects.popleft()
            if isinstance(effect, WeightChanged | StateChanged):
                self._write_weight(effect.rank)
            # The operator asked to drain without migration: reservations of this worker finish in
            # place.
            if not (
                isinstance(effect, MigrationRequested)
                and effect.rank.worker_id in self._draining_in_place
            ):
                self._notify_listeners(effect, now)
            if isinstance(effect, StateChanged) and effect.state is RankHealthState.UNHEALTHY:
                self._migrate_latecomers(effect, now)
        for follower in self.listeners:
            follower.run_turn(now)
        self._touched.request_turn_if(self._effects)
        self._touched.request_turn_if(self._turns)

    def _migrate_latecomers(self, out: StateChanged, now: float) -> None:
        """Request migration of reservations booked between a rank's failure and its weight
        update.
        """
        # Kernels of other threads may have booked on the rank until its weight became 0.
        booked = self.count_reservations(out.rank)
        is_left = self.monitor.is_registered(out.rank) and (
            self.monitor.record_of(out.rank).state is RankHealthState.UNHEALTHY
        )
        if booked and is_left and out.cause is not CheckKind.LATENCY_SPIKE:
            self._notify_listeners(MigrationRequested(out.rank, booked), now)

    def _notify_listeners(self, effect: HealthEffect, now: float) -> None:
        for follower in self.listeners:
            follower.on_effect(effect, now)

    def _write_weight(self, rank: Rank) -> None:
        """Write the latest weight into the rank table; ranks that have left are ignored."""
        if self.monitor.is_registered(rank):
            self._fleet.set_weight(*self._published_weight(rank))

    def _published_weight(self, rank: Rank) -> tuple[Rank, float, str]:
        """Return rank, weight and reason. Raises KeyError for an unknown rank."""
        record = self.monitor.record_of(rank)
        state = "spare" if record.is_spare and record.state.is_serving else record.state.label
        return rank, record.published_weight, state

    def count_reservations(self, rank: Rank) -> int:
        """Return the number of reservations on a rank. O(1)"""
        found = self._find_slot(rank)
        if found is None:
            return 0
        partition, slot = found
        return int(partition.load.totals[slot, load_layout.REQUESTS])

    def advance_timers(self, now: float) -> bool:
        """Advance timers once a second; call again in the next turn while the result is True."""
        more = self.monitor.advance_timers(now)
        if not more:
            for follower in self.listeners:
                follower.run_every_second(now)
        return more

    def next_due_check(self, now: float) -> CheckOrder | None:
        """Start and return a check that is due; call repeatedly until the result is None."""
        order = self.monitor.next_due_check(now)
        if order is not None:
            self.times.start_timer(order, now)
        return order

    def process_attempt(self, order: CheckOrder, attempt: Attempt, now: float) -> float | None:
        """Process an attempt; return the pause before the next attempt in s, None when the check is
        over.
        """
        pause_s = self.monitor.process_attempt(order, attempt, now)
        if pause_s is None:
            self.times.stop_timer(order, now)
        return pause_s

    def may_continue(self, order: CheckOrder) -> bool:
        """Return whether the next attempt may be sent after its pause; if not, call again soon."""
        return self.monitor.may_continue(order)

    def process_report(
        self, worker_id: int, request: OutcomeRequest, is_trusted: bool, now: float
    ) -> None:
        """Process a reported outcome. Raises NotFound or Conflict for an unknown rank."""
        self._get_schedulable(worker_id, now)
        rank = Rank(worker_id, request.dp_rank)
        if self._find_slot(rank) is None:
            raise NotFound(f"dp_rank {rank.dp_rank} of worker {rank.worker_id} not found")
        report = OutcomeReport(
            rank, outcome_of(request), request.reservation_id, is_trusted, request.count
        )
        self.reports.process_report(report, now)

    def process_outcome(self, reservation_id: str, rank: Rank, outcome: str, now: float) -> None:
        """Process the outcome given when a reservation was freed; ranks that have left are
        ignored.
        """
        self._apply_pending_changes(now)
        # The rank may have left between booking and release of the request.
        if self._find_slot(rank) is not None:
            report = OutcomeReport(rank, RequestOutcome(outcome), reservation_id)
            self.reports.process_report(report, now)

    def drain_worker(self, worker_id: int, migrates: bool, now: float) -> RegisteredWorker:
        """Stop new requests, over several turns for many ranks. Raises NotFound, Conflict.

        migrates: whether reservations are migrated
        """
        worker = self._get_schedulable(worker_id, now)
        self.drain_next(worker_id, migrates)
        self._apply_pending_changes(now)
        return worker

    def drain_next(self, worker_id: int, migrates: bool) -> None:
        """Drain in the following turns; the worker may just have been registered."""
        if migrates:
            self._draining_in_place.discard(worker_id)
        else:
            self._draining_in_place.add(worker_id)
        self._turns.set_drain(worker_id, True)
        self._touched.request_turn_if(self._turns)

    def undrain_worker(self, worker_id: int, now: float) -> RegisteredWorker:
        """Return a drained worker to service, over several turns. Raises NotFound, Conflict."""
        worker = self._get_schedulable(worker_id, now)
        self._draining_in_place.discard(worker_id)
        self._turns.set_drain(worker_id, False)
        self._apply_pending_changes(now)
        self._touched.request_turn_if(self._turns)
        return worker

    def check_worker(self, worker_id: int, now: float) -> RegisteredWorker:
        """Check all ranks of a worker now. Raises NotFound, Conflict if none has checks."""
        worker = self._get_schedulable(worker_id, now)
        # A worker that is still being added has no checks yet; that is no conflict.
        is_behind = self._turns.is_behind(worker_id)
        if not is_behind and not any(map(self.monitor.is_checked, worker.list_ranks())):
            raise Conflict(
                f"worker {worker_id} has no health checks: give it an HTTP endpoint, and "
                "canary prompts for its model"
            )
        self.monitor.check_worker(worker_id, now)
        return worker

    def forget_references(self, model_name: str) -> None:
        """Forget the reference answers of a model. Raises NotFound for a model without workers."""
        if model_name not in self._fleet.catalog.models:
            raise NotFound(f"model `{model_name}` not found: no worker is registered for it")
        self.monitor.forget_references(model_name)

    def _get_schedulable(self, worker_id: int, now: float) -> RegisteredWorker:
        """Return a schedulable worker. Raises NotFound, Conflict."""
        self._apply_pending_changes(now)
        worker = self._fleet.catalog.get_worker(worker_id)
        if not worker.is_schedulable:
            raise Conflict(
                f"worker {worker_id} is {worker.lifecycle} and has no health yet; "
                f"see GET /workers/{worker_id} for the reason"
            )
        return worker

    def _find_slot(self, rank: Rank) -> tuple[Partition, int] | None:
        """Return partition and slot of a rank; None if unknown."""
        worker = self._fleet.catalog.find_worker(rank.worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        slot = None if partition is None else partition.table.find_slot(rank)
        return None if partition is None or slot is None else (partition, slot)

    def state_of(self, rank: Rank) -> str | None:
        """Return the name of the rank's state; None if unknown."""
        return (
            self.monitor.record_of(rank).state.label if self.monitor.is_registered(rank) else None
        )

    def condition_of(self, rank: Rank, now: float) -> RankCondition | None:
        """Return the condition of a rank; None if unknown."""
        if not self.monitor.is_registered(rank):
            return None
        record = self.monitor.record_of(rank)
        cause, since = record.cause, record.out_since
        out_s = None if since is None else max(0.0, now - since)
        name = None if cause is None else cause.value
        return RankCondition(record.state.label, name, out_s, record.is_spare)

    def summarise_partition(self, key: PartitionKey) -> ObservedHealth:
        """Return the numbers of ranks by health, and the capacity. O(ranks that are out)"""
        partition, capacity = self.monitor.find_partition(key), self.capacity_of(key)
        level = 0 if capacity is None else capacity.level
        ratio = None if capacity is None else round(capacity.ratio, 6)
        if partition is None:
            return ObservedHealth(
                total=0,
                healthy=0,
                capacity_lost=0,
                degradation_level=level,
                capacity_ratio=ratio,
                spares=0,
                spares_wanted=0,
            )
        registry = partition.health.registry
        out = len(registry.out_of_rotation)
        workers = self._fleet.partitions.get(key)
        n_workers = 0 if workers is None else workers.table.n_workers
        return ObservedHealth(
            total=len(registry),
            healthy=len(registry) - out - len(registry.suspicious),
            capacity_lost=registry.count_lost(),
            degradation_level=level,
            capacity_ratio=ratio,
            spares=registry.n_spares,
            spares_wanted=recommended_spares(n_workers, self.spare_rules),
        )

    def worker_health(
        self, worker: RegisteredWorker, now: float
    ) -> Generator[None, None, WorkerHealth | None]:
        """Return the health of a worker; see `views`."""
        return worker_health(self.monitor, worker, now)

    def fleet_health(
        self, model_name: str | None, tenant_id: str | None, now: float
    ) -> Iterator[PartitionHealthView | None]:
        """Return the health of the fleet; see `views`."""
        self._apply_pending_changes(now)
        return fleet_health(
            self.monitor, self.capacity_of, self.spare_rules, model_name, tenant_id, now
        )

    @property
    def is_behind(self) -> bool:
        """Whether work is left for further turns."""
        return bool(self._turns or self._effects or self.monitor.has_effects)

    def build_report(self) -> Generator[None, None, HealthReport]:
        """Return the health metrics; see `report`."""
        return build_health_report(self.monitor, self.times, self.capacity_of)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.monitor.check_invariants()
        if self.is_behind:
            return
        serving_workers = [worker for worker in self._fleet.catalog if worker.is_schedulable]
        assert {r for worker in serving_workers for r in worker.list_ranks()} == set(
            self.monitor.iterate_ranks()
        )
        for partition in self._fleet.partitions.values():
            for rank, slot in partition.table.iterate_slots():
                record = self.monitor.record_of(rank)
                assert partition.table.columns.weight[slot] == record.published_weight


def _unknown_capacity(key: PartitionKey) -> CapacityView | None:
    return None


def _split_ranks(ranks: Sequence[Rank]) -> Iterable[Sequence[Rank]]:
    """Split ranks into batches."""
    starts = range(0, len(ranks), RANKS_PER_STEP)
    return (ranks[start : start + RANKS_PER_STEP] for start in starts)


def _to_checked_worker(worker: RegisteredWorker) -> CheckedWorker:
    endpoint = worker.registration.endpoint
    is_http = endpoint is not None and engine_url_error(endpoint) is None
    return CheckedWorker(
        worker.worker_id,
        worker.key,
        worker.dp_ranks(),
        endpoint if is_http else None,
        worker.registration.spare is True,
    )
