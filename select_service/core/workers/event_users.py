"""Which ranks publish their KV events at one endpoint: more than one is a mistake."""

from collections.abc import Iterable

from select_service.core.identity import Rank
from select_service.core.workers.catalog import Worker


class EventUsers:
    """Events endpoint -> ranks of schedulable workers, in the order in which they came."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[Rank, None]] = {}

    def enter(self, worker: Worker) -> None:
        for rank in worker.ranks():
            endpoint = worker.kv_endpoint(rank.dp_rank)
            if endpoint:
                self._ranks.setdefault(endpoint, {})[rank] = None

    def leave(self, worker: Worker) -> None:
        """A worker that has entered, as it was then."""
        for rank in worker.ranks():
            endpoint = worker.kv_endpoint(rank.dp_rank)
            if endpoint:
                del self._ranks[endpoint][rank]
                if not self._ranks[endpoint]:
                    del self._ranks[endpoint]

    def has(self, worker: Worker) -> bool:
        """Has it entered, and not left?"""
        first = next(iter(worker.ranks()), None) if worker.schedulable else None
        return first is not None and first in self._ranks.get(
            worker.kv_endpoint(first.dp_rank) or "", ()
        )

    def other(self, endpoint: str, rank: Rank) -> Rank | None:
        """One that publishes there besides `rank`."""
        return next((each for each in self._ranks.get(endpoint, ()) if each != rank), None)

    def check_invariants(self, workers: Iterable[Worker]) -> None:
        """For tests.  workers: those that have entered"""
        expected = EventUsers()
        for worker in workers:
            expected.enter(worker)
        assert self._ranks == expected._ranks
