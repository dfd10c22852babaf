"""Destination of the canaries of a rank, read from the catalog at the time of sending."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from select_service.core.health.checks.canary_prompts import CanaryApi
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.net.urls import engine_url_error
from select_service.schemas.workers import WorkerRegistration

ApiOf: TypeAlias = Callable[[str], CanaryApi]
"""Function that returns the API of a model by name."""
ENDPOINTS_MAX = 8192
"""Size of the LRU cache of endpoint checks."""
_error_of = lru_cache(ENDPOINTS_MAX)(engine_url_error)


class CanaryTarget(NamedTuple):
    """Canary destination.

    registration: identity of the registration; a new object after each change of the worker
    """

    registration: WorkerRegistration
    endpoint: str
    model: str
    api: CanaryApi


class CanaryTargets:
    """Lookup of canary destinations; read-only."""

    def __init__(self, fleet: WorkerFleet, api_of: ApiOf) -> None:
        self._fleet = fleet
        self._api_of = api_of

    def find_target(self, rank: Rank) -> CanaryTarget | None:
        """Return the destination of a rank; None if it has no usable endpoint or was removed."""
        worker = self._fleet.catalog.find_worker(rank.worker_id)
        # Checked at sending time: an order may be older than the removal of the worker.
        if worker is None or worker.lifecycle == "unschedulable":
            return None
        if rank.dp_rank not in worker.dp_ranks():
            return None
        endpoint, model = worker.registration.endpoint, worker.key.model_name
        if endpoint is None or _error_of(endpoint) is not None:
            return None
        return CanaryTarget(worker.registration, endpoint, model, self._api_of(model))

    def prefill_tokens(self, rank: Rank) -> int:
        """Return the prompt tokens of this service's requests that wait for prefill on the rank."""
        worker = self._fleet.catalog.find_worker(rank.worker_id)
        partition = None if worker is None else self._fleet.partitions.get(worker.key)
        slot = None if partition is None else partition.table.find_slot(rank)
        if partition is None or slot is None:
            return 0
        return int(partition.load.totals[slot, load_layout.PREFILL_TOKENS])
