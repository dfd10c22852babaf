"""Snapshot view of catalog and load for the reconciler."""

from select_service.core.load.compiled import load_layout
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.schemas.workers import WorkerRegistration


class FleetSnapshot:
    """Implementation of `FleetView` for the fleet."""

    def __init__(self, fleet: WorkerFleet) -> None:
        self._fleet = fleet

    def registration_of(self, worker_id: int) -> WorkerRegistration | None:
        worker = self._fleet.catalog.find_worker(worker_id)
        is_there = worker is not None and worker_id not in self._fleet.catalog.deleted_workers()
        return worker.registration if worker is not None and is_there else None

    def has_no_reservations(self, worker_id: int) -> bool:
        """Return whether the worker has no reservations. O(ranks of the worker)"""
        worker = self._fleet.catalog.find_worker(worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        if worker is None or partition is None or not worker.is_schedulable:
            return True
        slots = [
            slot
            for rank in worker.list_ranks()
            if (slot := partition.table.find_slot(rank)) is not None
        ]
        return not partition.load.totals[slots, load_layout.REQUESTS].any()
