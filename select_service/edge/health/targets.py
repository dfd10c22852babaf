"""Where the canary of a rank goes, as the catalog has it at that moment."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from select_service.bodies.workers import WorkerRegistration
from select_service.core.fleet.fleet import Fleet
from select_service.core.health.canary_prompts import Api
from select_service.core.identity import Rank
from select_service.core.load import load_layout
from select_service.urls import engine_url_error

ApiOf: TypeAlias = Callable[[str], Api]
"""By the name of the model."""
ENDPOINTS_MAX = 8192
"""Of which it is remembered whether they can be asked."""
_error_of = lru_cache(ENDPOINTS_MAX)(engine_url_error)


class Target(NamedTuple):
    """registration: the same object until the worker is registered or changed again"""

    registration: WorkerRegistration
    endpoint: str
    model: str
    api: Api


class Targets:
    """Reads only."""

    def __init__(self, fleet: Fleet, api_of: ApiOf) -> None:
        self._fleet = fleet
        self._api_of = api_of

    def of(self, rank: Rank) -> Target | None:
        """None when it cannot be asked, or is not there any more."""
        worker = self._fleet.catalog.find(rank.worker_id)
        if worker is None or worker.lifecycle == "unschedulable":
            return None
        if rank.dp_rank not in worker.dp_ranks():
            return None
        endpoint, model = worker.given.endpoint, worker.key.model_name
        if endpoint is None or _error_of(endpoint) is not None:
            return None
        return Target(worker.given, endpoint, model, self._api_of(model))

    def prefill_tokens(self, rank: Rank) -> int:
        """Prompt tokens that requests of ours are still waiting for on the rank."""
        worker = self._fleet.catalog.find(rank.worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        slot = None if partition is None else partition.table.find(rank)
        if partition is None or slot is None:
            return 0
        return int(partition.load.totals[slot, load_layout.PREFILL_TOKENS])
