"""Workers that get no new requests, and finish what they have.

Operators ask for that, the planner of those that it takes away, and sources of workers of those
that they drop; it lasts until nobody asks for it any more, or the worker is registered anew.
Without checks of health only the weight of its ranks says so, and what is booked runs out where it
is; with them the monitor drains, which moves what is booked.  Nothing here is looked at while a
request is served.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from select_service.bodies.health import DrainAsker, DrainCaller, DrainView
from select_service.bodies.state import KeptDrain
from select_service.core.fleet.fleet import Fleet
from select_service.core.identity import Rank
from select_service.core.load import load_layout
from select_service.core.touched import Touched
from select_service.core.workers.catalog import Worker
from select_service.errors import Conflict

if TYPE_CHECKING:
    from select_service.core.fitness.fitness import Fitness

_KEPT: tuple[DrainCaller, ...] = ("operator", "planner")
"""Whose drains outlive a restart, and another registration by a source."""


class Drain(NamedTuple):
    """askers: who wants it, one or more;  moves: may what is booked go elsewhere?

    The last one who asked has said so."""

    askers: frozenset[DrainAsker]
    moves: bool


class Draining:
    """Belongs to the thread that decides."""

    def __init__(
        self, fleet: Fleet, touched: Touched, fitness: "Callable[[], Fitness | None]"
    ) -> None:
        """fitness: None: health is off"""
        self._fleet = fleet
        self._touched = touched
        self._fitness = fitness
        self._drains: dict[int, Drain] = {}
        self.changes = 0
        """Of what is kept over a restart, since the start."""

    def __len__(self) -> int:
        """Workers that drain."""
        return len(self._drains)

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._drains

    # --- verbs

    def drain(self, worker_id: int, asker: DrainAsker, moves: bool, now: float) -> Worker:
        """No new requests from now on, but of many ranks with checks after some turns.

        Raises NotFound, Conflict for a worker that gets no requests anyway.
        """
        worker, fitness = self._known(worker_id), self._fitness()
        self._note(worker_id, asker, moves)
        if fitness is None:
            self._close(worker)
        else:
            fitness.drain(worker_id, moves, now)
        return worker

    def undrain(self, worker_id: int, asker: DrainAsker, now: float) -> Worker:
        """It serves again, unless somebody else wants it to drain.  Raises like `drain`."""
        worker, fitness = self._known(worker_id), self._fitness()
        drain = self._drains.get(worker_id)
        left = frozenset[DrainAsker]() if drain is None else drain.askers - {asker}
        if drain is not None and left != drain.askers:
            self.changes += 1
            del self._drains[worker_id]
        if drain is not None and left:
            self._drains[worker_id] = drain._replace(askers=left)
        elif fitness is not None:
            fitness.undrain(worker_id, now)
        elif drain is not None:
            self._weigh(worker, 1.0, "")
        return worker

    def again(self, worker_id: int, kept: KeptDrain) -> None:
        """As `drain`, of a worker that has just been put; of one that gets no requests, later."""
        for asker in kept.asked_by:
            self._note(worker_id, asker, kept.migrate)
        self._enforce(worker_id)

    def changed(self, worker_id: int, is_registration: bool) -> None:
        """It was put or deleted.  One that is registered anew does not drain any more."""
        if worker_id not in self._drains:
            return
        if is_registration or not self._fleet.catalog.is_registered(worker_id):
            del self._drains[worker_id]
            self.changes += 1
            worker = self._fleet.catalog.find(worker_id)
            if worker is not None and worker.schedulable and self._fitness() is None:
                self._weigh(worker, 1.0, "")
        else:
            self._enforce(worker_id)

    def _enforce(self, worker_id: int) -> None:
        """Its ranks may be new."""
        worker, fitness = self._fleet.catalog.find(worker_id), self._fitness()
        if worker is None or not worker.schedulable:
            return
        self._close(worker)
        if fitness is not None:
            fitness.drain_next(worker_id, self._drains[worker_id].moves)

    def _note(self, worker_id: int, asker: DrainAsker, moves: bool) -> None:
        before = self._drains.get(worker_id, Drain(frozenset(), moves))
        self._drains[worker_id] = Drain(before.askers | {asker}, moves)
        self.changes += 1

    def _close(self, worker: Worker) -> None:
        is_dropped = self._drains[worker.worker_id].askers == {"source"}
        self._weigh(worker, 0.0, "leaving" if is_dropped else "draining")

    def _weigh(self, worker: Worker, weight: float, state: str) -> None:
        table = self._fleet.partitions[worker.key].table
        if table.set_weight_of(worker.worker_id, weight, state):
            self._touched.capacity(worker.key)

    def _known(self, worker_id: int) -> Worker:
        worker = self._fleet.catalog.get(worker_id)
        if not worker.schedulable:
            raise Conflict(
                f"worker {worker_id} is {worker.lifecycle}: it gets no requests anyway; "
                f"GET /workers/{worker_id} says why"
            )
        return worker

    # --- reading

    def kept(self, worker_id: int) -> KeptDrain | None:
        """What operators and the planner have asked for.  Sources say again what they drop."""
        drain = self._drains.get(worker_id)
        asked_by = [asker for asker in _KEPT if drain is not None and asker in drain.askers]
        if drain is None or not asked_by:
            return None
        return KeptDrain(migrate=drain.moves, asked_by=asked_by)

    def view(self, worker_id: int) -> DrainView | None:
        """None: it does not drain."""
        drain = self._drains.get(worker_id)
        if drain is None:
            return None
        left = self.reservations(worker_id)
        return DrainView(
            state="draining" if left else "drained",
            asked_by=sorted(drain.askers),
            reservations=left,
        )

    def reservations(self, worker_id: int) -> int:
        """That are booked on a worker."""
        worker = self._fleet.catalog.find(worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        if partition is None:
            return 0
        slots = partition.table.slots_of(worker_id)
        return int(partition.load.totals[slots, load_layout.REQUESTS].sum())

    def n_drained(self) -> int:
        """Workers that have nothing left.  O(workers that drain)"""
        return sum(not self.reservations(worker_id) for worker_id in self._drains)

    def state_of(self, rank: Rank) -> str | None:
        """In the words of health, where that is off; None: it serves."""
        return "draining" if rank.worker_id in self._drains else None

    def check_invariants(self) -> None:
        """For tests."""
        assert all(drain.askers for drain in self._drains.values())
        if self._fitness() is not None:
            return
        for partition in self._fleet.partitions.values():
            for rank, slot in partition.table.slots():
                assert not (partition.table.open[slot] and rank.worker_id in self._drains)
