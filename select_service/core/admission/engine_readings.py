"""Engine load readings: which engines to read, and which readings to trust.

The adapters read the engines and deliver the results; partitions are updated when a reading becomes
trusted or stale.
"""

from collections.abc import Mapping

from select_service.core.admission.busy_check import BusyCheck
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.workers.engine_load import EngineReading, EngineTarget
from select_service.core.workers.worker_catalog import RegisteredWorker

STALE_PER_TURN_MAX = 512
"""Readings expired in a turn of the event loop."""


class EngineReadings:
    """Engine readings of all workers, joining the fleet and the busy check."""

    def __init__(self, fleet: WorkerFleet, busy_check: BusyCheck) -> None:
        self._fleet = fleet
        self._busy_check = busy_check
        self._loads = busy_check.engines

    def workers_to_read(self) -> list[int]:
        """Return the ids of workers with engines that serve metrics.  O(such workers)"""
        return self._fleet.catalog.workers_with_metrics()

    def find_target(self, worker_id: int) -> EngineTarget | None:
        """Return the engine with the metrics to read.  None means no reading."""
        worker = self._fleet.catalog.find_worker(worker_id)
        if worker is None or not worker.is_schedulable or not worker.registration.metrics_endpoint:
            return None
        return EngineTarget(
            worker_id, worker.registration.metrics_endpoint, tuple(worker.dp_ranks())
        )

    def accept_readings(
        self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float
    ) -> None:
        """Accept the readings of an engine; ignore readings of an engine no longer read."""
        worker = self._fleet.catalog.find_worker(target.worker_id)
        # The worker may have changed while its engine was read.
        if (
            worker is None
            or not worker.is_schedulable
            or worker.registration.metrics_endpoint != target.url
        ):
            return
        ranks = worker.dp_ranks()
        # An engine may report ranks that its worker did not register.
        own = {dp_rank: reading for dp_rank, reading in readings.items() if dp_rank in ranks}
        self._loads.store_readings(target.worker_id, own, now)
        self._apply_readings(worker)

    def record_failure(self, target: EngineTarget, error: str, now: float) -> None:
        """Record that an engine was unreachable or sent nothing readable."""
        worker = self._fleet.catalog.find_worker(target.worker_id)
        if worker is not None and worker.registration.metrics_endpoint == target.url:
            self._loads.record_failure(target.worker_id, error, now)

    def on_worker_changed(self, old: RegisteredWorker | None, new: RegisteredWorker) -> None:
        """Handle a registered or changed worker; readings from another address become invalid."""
        url = new.registration.metrics_endpoint
        moved = old is None or old.registration.metrics_endpoint != url
        if moved:
            self.forget_worker(new.worker_id)
        if new.is_schedulable and old is not None and (moved or url):
            self._apply_readings(new)

    def forget_worker(self, worker_id: int) -> None:
        """Drop the readings of a deleted worker."""
        self._loads.remove_worker(worker_id)

    def expire_stale(self, now: float) -> bool:
        """Expire stale readings.  Return whether more remain."""
        stale = self._loads.take_stale(now, STALE_PER_TURN_MAX)
        for rank in stale:
            worker = self._fleet.catalog.find_worker(rank.worker_id)
            if worker is not None and worker.is_schedulable:
                self._busy_check.apply_readings(self._fleet.partitions[worker.key], (rank,))
        # A full turn means that more readings may be stale.
        return len(stale) == STALE_PER_TURN_MAX

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self._loads.check_invariants()

    def _apply_readings(self, worker: RegisteredWorker) -> None:
        self._busy_check.apply_readings(self._fleet.partitions[worker.key], worker.list_ranks())
