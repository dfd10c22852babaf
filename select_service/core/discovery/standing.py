"""The catalog and the load, as those who follow sources ask about them."""

from select_service.bodies.workers import WorkerRegistration
from select_service.core.fleet.fleet import Fleet
from select_service.core.load import load_layout


class FleetStanding:
    """See `following.Standing`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def given(self, worker_id: int) -> WorkerRegistration | None:
        worker = self._fleet.catalog.find(worker_id)
        is_there = worker is not None and worker_id not in self._fleet.catalog.deleted()
        return worker.given if worker is not None and is_there else None

    def is_empty(self, worker_id: int) -> bool:
        """O(ranks of the worker)"""
        worker = self._fleet.catalog.find(worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        if worker is None or partition is None or not worker.schedulable:
            return True
        slots = [
            slot for rank in worker.ranks() if (slot := partition.table.find(rank)) is not None
        ]
        return not partition.load.totals[slots, load_layout.REQUESTS].any()
