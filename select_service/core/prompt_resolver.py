"""Resolution of a request's partition, and reading of its prompt for this partition."""

from select_service.base.errors import NoWorkers
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.placement.prompt import (
    Prompt,
    PromptReader,
    ReadAheadPrompt,
    add_units,
    partition_key_of,
    read_prompt,
)
from select_service.core.placement.router_config import RouterConfig, apply_override
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.views.no_worker_error import no_worker_error
from select_service.core.workers.worker_catalog import BLOCK_SIZE_MAX
from select_service.schemas.prompts import PromptFields, PromptQuery


class PromptResolver:
    """Reader of prompts, which changes nothing but a count."""

    def __init__(self, fleet: WorkerFleet, tally: AdmissionCounters, config: RouterConfig) -> None:
        """config: default configuration, of which a request may override a part"""
        self._fleet = fleet
        self._tally = tally
        self._config = config

    def find_partition(self, query: PromptFields) -> Partition | None:
        """Return the partition of a query.  None means no workers."""
        return self._fleet.partitions.get(partition_key_of(query))

    def hashing_parameters(self, query: PromptFields) -> tuple[int, bool]:
        """Return (block size, whether EAGLE is on) for hashing prompts of this scope."""
        partition = self.find_partition(query)
        if partition is None:
            # The largest block size hashes least, and the result is only used for checks.
            return BLOCK_SIZE_MAX, False
        return partition.block_size, partition.is_eagle

    def read_counted(
        self, query: PromptQuery, read_ahead: ReadAheadPrompt | None
    ) -> tuple[Partition, Prompt, RouterConfig]:
        """Read the prompt of a request for a rank; requests without workers are counted."""
        try:
            return self.read_prompt(query, read_ahead)
        except NoWorkers:
            self._tally.count_unjudged_refusal("no_workers", partition_key_of(query))
            raise

    def read_prompt(
        self,
        query: PromptQuery,
        read_ahead: ReadAheadPrompt | None = None,
        reader: PromptReader = read_prompt,
    ) -> tuple[Partition, Prompt, RouterConfig]:
        """Return the partition, the prompt and the configuration of a request.

        read_ahead: prompt read in advance, or None
        Raises BadRequest, InvalidBody, NoWorkers.
        """
        partition = self.find_partition(query)
        if partition is None:
            if read_ahead is None:
                reader(query, BLOCK_SIZE_MAX, False)  # errors the client can fix come first
            served, workers = self._fleet.partitions, len(self._fleet.catalog)
            raise no_worker_error(partition_key_of(query), served, workers)
        hashing = partition.block_size, partition.is_eagle
        if read_ahead is not None and (read_ahead.block_size, read_ahead.is_eagle) == hashing:
            prompt = read_ahead.prompt
        else:
            prompt = reader(query, *hashing)
        if partition.index.has_layouts:
            prompt = add_units(prompt, query, partition.index, hashing)
        return partition, prompt, apply_override(self._config, query.router_config_override)
