"""Draining of workers, which finish their requests but get no new requests.

Operators drain workers, the planner drains workers before removal, and discovery sources drain
dropped workers.  A drain lasts until every caller has ended its request, or until the worker is
registered again.  Without health checks, a drain only sets the weight of the ranks to 0, and
bookings run out in place.  With health checks, the monitor drains and moves bookings.  Serving a
request never reads this state.
"""

from typing import TYPE_CHECKING, NamedTuple

from select_service.base.errors import Conflict
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout
from select_service.core.rank_condition import RankCondition
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.health import DrainCaller, DrainRequester, DrainView
from select_service.schemas.persisted_state import PersistedDrain

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService

_DRAINING = RankCondition("draining", "operator")
_PERSISTED_CALLERS: tuple[DrainCaller, ...] = ("operator", "planner")
"""Callers with drains that survive a restart and a registration by a source."""


class DrainState(NamedTuple):
    """Drain of a worker.

    callers: callers with an open drain request, at least one
    moves_bookings: whether bookings may move to other workers, as last requested
    """

    callers: frozenset[DrainRequester]
    moves_bookings: bool


class DrainRegistry:
    """Drains of all workers, owned by the deciding thread."""

    def __init__(self, fleet: WorkerFleet, health: "HealthService | None") -> None:
        """Start without drains.  health: None means that health checks are off"""
        self._fleet = fleet
        self._health = health
        self._drains: dict[int, DrainState] = {}
        self.changes = 0
        """Number of changes of the persisted state since the start."""

    def __len__(self) -> int:
        """Return the number of draining workers."""
        return len(self._drains)

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._drains

    # Operations

    def drain_worker(
        self, worker_id: int, caller: DrainRequester, moves_bookings: bool, now: float
    ) -> RegisteredWorker:
        """Stop new requests to a worker; with checks and many ranks, this takes some turns.

        Raises NotFound, and Conflict for a worker that receives no requests.
        """
        worker, fitness = self._schedulable_worker(worker_id), self._health
        self._record_caller(worker_id, caller, moves_bookings)
        if fitness is None:
            self._close_worker(worker)
        else:
            fitness.drain_worker(worker_id, moves_bookings, now)
        return worker

    def undrain_worker(
        self, worker_id: int, caller: DrainRequester, now: float
    ) -> RegisteredWorker:
        """End the drain of a caller; the worker serves again after the last.  Raises like
        `drain`.
        """
        worker, fitness = self._schedulable_worker(worker_id), self._health
        drain = self._drains.get(worker_id)
        left = frozenset[DrainRequester]() if drain is None else drain.callers - {caller}
        if drain is not None and left != drain.callers:
            self.changes += 1
            del self._drains[worker_id]
        if drain is not None and left:
            self._drains[worker_id] = drain._replace(callers=left)
        # Also without a drain here: the monitor may drain the worker for a reason of its own.
        elif fitness is not None:
            fitness.undrain_worker(worker_id, now)
        elif drain is not None:
            self._set_weight(worker, 1.0, "")
        return worker

    def restore_drain(self, worker_id: int, persisted: PersistedDrain) -> None:
        """Restore a drain for a worker just registered; effective once the worker is
        schedulable.
        """
        for asker in persisted.asked_by:
            self._record_caller(worker_id, asker, persisted.migrate)
        self._enforce_drain(worker_id)

    def on_worker_changed(self, worker_id: int, is_registration: bool) -> None:
        """Handle a registered, changed or deleted worker; a new registration ends the drain."""
        if worker_id not in self._drains:
            return
        if is_registration or not self._fleet.catalog.is_registered(worker_id):
            del self._drains[worker_id]
            self.changes += 1
            worker = self._fleet.catalog.find_worker(worker_id)
            if worker is not None and worker.is_schedulable and self._health is None:
                self._set_weight(worker, 1.0, "")
        else:
            self._enforce_drain(worker_id)

    def _enforce_drain(self, worker_id: int) -> None:
        """Apply the drain to all ranks, some of which may be new."""
        worker, fitness = self._fleet.catalog.find_worker(worker_id), self._health
        if worker is None or not worker.is_schedulable:
            return
        self._close_worker(worker)
        if fitness is not None:
            fitness.drain_next(worker_id, self._drains[worker_id].moves_bookings)

    def _record_caller(self, worker_id: int, caller: DrainRequester, moves_bookings: bool) -> None:
        before = self._drains.get(worker_id, DrainState(frozenset(), moves_bookings))
        self._drains[worker_id] = DrainState(before.callers | {caller}, moves_bookings)
        self.changes += 1

    def _close_worker(self, worker: RegisteredWorker) -> None:
        # Other callers' drains end with the worker still wanted; a dropped worker is leaving.
        is_dropped = self._drains[worker.worker_id].callers == {"source"}
        self._set_weight(worker, 0.0, "leaving" if is_dropped else "draining")

    def _set_weight(self, worker: RegisteredWorker, weight: float, state: str) -> None:
        table = self._fleet.partitions[worker.key].table
        if table.set_weight_of(worker.worker_id, weight, state):
            # Waiting requests may have lost or gained a candidate.
            self._fleet.dirty.mark_capacity(worker.key)

    def _schedulable_worker(self, worker_id: int) -> RegisteredWorker:
        worker = self._fleet.catalog.get_worker(worker_id)
        if not worker.is_schedulable:
            raise Conflict(
                f"worker {worker_id} is {worker.lifecycle} and receives no requests; "
                f"see GET /workers/{worker_id} for the reason"
            )
        return worker

    # Reading

    def persisted_drain(self, worker_id: int) -> PersistedDrain | None:
        """Return the persisted drain of a worker, without sources, which repeat their own
        drains.
        """
        drain = self._drains.get(worker_id)
        asked_by = [
            asker for asker in _PERSISTED_CALLERS if drain is not None and asker in drain.callers
        ]
        if drain is None or not asked_by:
            return None
        return PersistedDrain(migrate=drain.moves_bookings, asked_by=asked_by)

    def drain_view(self, worker_id: int) -> DrainView | None:
        """Return the drain of a worker.  None means no drain."""
        drain = self._drains.get(worker_id)
        if drain is None:
            return None
        left = self.count_reservations(worker_id)
        return DrainView(
            state="draining" if left else "drained",
            asked_by=sorted(drain.callers),
            reservations=left,
        )

    def count_reservations(self, worker_id: int) -> int:
        """Return the number of reservations on a worker."""
        worker = self._fleet.catalog.find_worker(worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        if partition is None:
            return 0
        slots = partition.table.slots_of(worker_id)
        return int(partition.load.totals[slots, load_layout.REQUESTS].sum())

    def condition_of(self, rank: Rank, now: float) -> RankCondition | None:
        """Return the condition of a draining rank where health is off.  None means serving."""
        return _DRAINING if rank.worker_id in self._drains else None

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert all(drain.callers for drain in self._drains.values())
        if self._health is not None:
            return
        for partition in self._fleet.partitions.values():
            for rank, slot in partition.table.iterate_slots():
                assert not (partition.table.open_slots[slot] and rank.worker_id in self._drains)
