"""Which ranks publish their KV events at one endpoint: more than one is a mistake."""

from collections.abc import Collection, Iterable

from select_service.core.identity import Rank
from select_service.core.workers.catalog import Worker


class EventUsers:
    """Events endpoint -> ranks of schedulable workers, in the order in which they came.

    Nearly always that is one, which needs no table of its own.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, Rank | dict[Rank, None]] = {}

    def enter(self, worker: Worker) -> None:
        for rank, endpoint in zip(worker.ranks(), worker.kv_endpoints().values(), strict=True):
            if not endpoint:
                continue
            known = self._ranks.setdefault(endpoint, rank)
            if isinstance(known, dict):
                known[rank] = None
            elif known is not rank:
                self._ranks[endpoint] = {known: None, rank: None}

    def leave(self, worker: Worker) -> None:
        """A worker that has entered, as it was then."""
        for rank, endpoint in zip(worker.ranks(), worker.kv_endpoints().values(), strict=True):
            if not endpoint:
                continue
            known = self._ranks[endpoint]
            if not isinstance(known, dict):
                del self._ranks[endpoint]
                continue
            del known[rank]
            if len(known) == 1:
                (self._ranks[endpoint],) = known

    def has(self, worker: Worker) -> bool:
        """Has it entered, and not left?"""
        if not worker.schedulable:
            return False
        first = next(iter(worker.kv_endpoints().items()), (0, None))
        return Rank(worker.worker_id, first[0]) in self._at(first[1] or "")

    def other(self, endpoint: str, rank: Rank) -> Rank | None:
        """One that publishes there besides `rank`."""
        return next((each for each in self._at(endpoint) if each != rank), None)

    def _at(self, endpoint: str) -> Collection[Rank]:
        known = self._ranks.get(endpoint, {})
        return known if isinstance(known, dict) else (known,)

    def check_invariants(self, workers: Iterable[Worker]) -> None:
        """For tests.  workers: those that have entered"""
        expected = EventUsers()
        for worker in workers:
            expected.enter(worker)
        assert self._ranks == expected._ranks
