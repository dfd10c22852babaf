"""What engines say of their own load: whom to ask, and whom to believe.

`edge` asks and hands over what came; partitions are told of what is believed, or is no more.
"""

from collections.abc import Mapping

from select_service.core.admission.busy import BusyJudge
from select_service.core.engines.engine_load import EngineReading, EngineTarget
from select_service.core.fleet.fleet import Fleet
from select_service.core.workers.catalog import Worker

STALE_PER_TURN_MAX = 512
"""Ranks whose engines are believed no more after one turn."""


class EngineReadings:
    """The readings of `judge` follow the workers of `fleet`."""

    def __init__(self, fleet: Fleet, judge: BusyJudge) -> None:
        self._fleet = fleet
        self._judge = judge
        self._loads = judge.engines

    def workers(self) -> list[int]:
        """Workers whose engines serve metrics, by id; O(such workers)."""
        return self._fleet.catalog.measured()

    def target(self, worker_id: int) -> EngineTarget | None:
        """The engine whose own metrics should be read; None when they should not."""
        worker = self._fleet.catalog.find(worker_id)
        if worker is None or not worker.schedulable or not worker.given.metrics_endpoint:
            return None
        return EngineTarget(worker_id, worker.given.metrics_endpoint, tuple(worker.dp_ranks()))

    def read(self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float) -> None:
        """Take what an engine says; nothing when it is not to be asked any more."""
        worker = self._fleet.catalog.find(target.worker_id)
        if worker is None or not worker.schedulable or worker.given.metrics_endpoint != target.url:
            return
        ranks = worker.dp_ranks()
        known = {dp_rank: reading for dp_rank, reading in readings.items() if dp_rank in ranks}
        self._loads.put(target.worker_id, known, now)
        self._tell(worker)

    def failed(self, target: EngineTarget, error: str, now: float) -> None:
        """An engine could not be asked, or said nothing that can be read."""
        worker = self._fleet.catalog.find(target.worker_id)
        if worker is not None and worker.given.metrics_endpoint == target.url:
            self._loads.failed(target.worker_id, error, now)

    def changed(self, old: Worker | None, new: Worker) -> None:
        """A worker was registered or changed: what was heard at another address is nothing now."""
        url = new.given.metrics_endpoint
        moved = old is None or old.given.metrics_endpoint != url
        if moved:
            self.forget(new.worker_id)
        if new.schedulable and old is not None and (moved or url):
            self._tell(new)

    def forget(self, worker_id: int) -> None:
        """A worker was deleted."""
        self._loads.forget(worker_id)

    def tick(self, now: float) -> bool:
        """Stop to believe what engines said too long ago.  Returns whether more is to be done."""
        stale = self._loads.take_stale(now, STALE_PER_TURN_MAX)
        for rank in stale:
            worker = self._fleet.catalog.find(rank.worker_id)
            if worker is not None and worker.schedulable:
                self._judge.read_engines(self._fleet.partitions[worker.key], (rank,))
        return len(stale) == STALE_PER_TURN_MAX

    def check_invariants(self) -> None:
        """For tests."""
        self._loads.check_invariants()

    def _tell(self, worker: Worker) -> None:
        self._judge.read_engines(self._fleet.partitions[worker.key], worker.ranks())
