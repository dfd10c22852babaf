"""Which ranks publish their KV events at one endpoint: more than one is a mistake."""

from collections.abc import Iterable

from select_service.core.identity import Rank
from select_service.core.workers.catalog import Worker


class EventUsers:
    """Events endpoint -> ranks of schedulable workers, in the order in which they came."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[Rank, None]] = {}

    def enter(self, worker: Worker) -> None:
        for dp_rank, endpoint in worker.kv_endpoints().items():
            if endpoint:
                rank = Rank(worker.worker_id, dp_rank)
                self._ranks.setdefault(endpoint, {})[rank] = None

    def leave(self, worker: Worker) -> None:
        """A worker that has entered, as it was then."""
        for dp_rank, endpoint in worker.kv_endpoints().items():
            if endpoint:
                del self._ranks[endpoint][Rank(worker.worker_id, dp_rank)]
                if not self._ranks[endpoint]:
                    del self._ranks[endpoint]

    def has(self, worker: Worker) -> bool:
        """Has it entered, and not left?"""
        if not worker.schedulable:
            return False
        first = next(iter(worker.kv_endpoints().items()), (0, None))
        return Rank(worker.worker_id, first[0]) in self._ranks.get(first[1] or "", ())

    def other(self, endpoint: str, rank: Rank) -> Rank | None:
        """One that publishes there besides `rank`."""
        return next((each for each in self._ranks.get(endpoint, ()) if each != rank), None)

    def check_invariants(self, workers: Iterable[Worker]) -> None:
        """For tests.  workers: those that have entered"""
        expected = EventUsers()
        for worker in workers:
            expected.enter(worker)
        assert self._ranks == expected._ranks
