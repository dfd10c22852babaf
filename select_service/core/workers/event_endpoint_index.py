"""Index of KV event endpoints by rank; an endpoint with several ranks is a misconfiguration."""

from collections.abc import Collection, Iterable

from select_service.core.identity import Rank
from select_service.core.workers.worker_catalog import RegisteredWorker


class EventEndpointIndex:
    """Ranks of schedulable workers by event endpoint, in order of registration.

    Almost always an endpoint has one rank, which is then stored directly instead of in a table.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, Rank | dict[Rank, None]] = {}

    def add_worker(self, worker: RegisteredWorker) -> None:
        for rank, endpoint in zip(worker.list_ranks(), worker.kv_endpoints().values(), strict=True):
            if not endpoint:
                continue
            users = self._ranks.setdefault(endpoint, rank)
            if isinstance(users, dict):
                users[rank] = None
            # Identity suffices: `RegisteredWorker.list_ranks` returns the same objects each time.
            elif users is not rank:
                self._ranks[endpoint] = {users: None, rank: None}

    def remove_worker(self, worker: RegisteredWorker) -> None:
        """Remove a worker, with the endpoints of its `add_worker`."""
        for rank, endpoint in zip(worker.list_ranks(), worker.kv_endpoints().values(), strict=True):
            if not endpoint:
                continue
            users = self._ranks[endpoint]
            if not isinstance(users, dict):
                del self._ranks[endpoint]
                continue
            del users[rank]
            if len(users) == 1:
                (self._ranks[endpoint],) = users

    def has_worker(self, worker: RegisteredWorker) -> bool:
        """Return whether the worker is in the index."""
        if not worker.is_schedulable:
            return False
        first = next(iter(worker.kv_endpoints().items()), (0, None))
        return Rank(worker.worker_id, first[0]) in self._ranks_at(first[1] or "")

    def find_other_rank(self, endpoint: str, rank: Rank) -> Rank | None:
        """Return another rank that publishes at this endpoint, or None."""
        return next((each for each in self._ranks_at(endpoint) if each != rank), None)

    def _ranks_at(self, endpoint: str) -> Collection[Rank]:
        users = self._ranks.get(endpoint, {})
        return users if isinstance(users, dict) else (users,)

    def check_invariants(self, workers: Iterable[RegisteredWorker]) -> None:
        """Assert internal consistency; used by tests. workers: all workers in the index"""
        expected = EventEndpointIndex()
        for worker in workers:
            expected.add_worker(worker)
        assert self._ranks == expected._ranks
