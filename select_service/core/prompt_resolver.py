"""Resolution of a request's partition, and reading of its prompt for this partition."""

from collections.abc import Callable
from contextlib import suppress

from select_service.base.errors import BadRequest, NoWorkers
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.placement.prompt import (
    Prompt,
    PromptReader,
    ReadAheadPrompt,
    add_units,
    has_tokens,
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

    def hashing_parameters(self, query: PromptFields) -> tuple[int, int]:
        """Return (block size, tokens behind a block that its content covers) of this scope."""
        partition = self.find_partition(query)
        if partition is None:
            # The largest block size hashes least, and the result is only used for checks.
            return BLOCK_SIZE_MAX, 0
        return partition.block_size, partition.lookahead

    def read_counted(
        self,
        query: PromptQuery,
        read_ahead: ReadAheadPrompt | None,
        check_first: Callable[[], None] | None = None,
    ) -> tuple[Partition, Prompt, RouterConfig]:
        """Read the prompt of a request for a rank; requests without workers are counted.

        check_first: check of the request that precedes its prompt, where there are workers
        """
        try:
            return self.read_prompt(query, read_ahead, check_first=check_first)
        except NoWorkers:
            self._tally.count_unjudged_refusal("no_workers", partition_key_of(query))
            raise

    def read_prompt(
        self,
        query: PromptQuery,
        read_ahead: ReadAheadPrompt | None = None,
        reader: PromptReader = read_prompt,
        check_first: Callable[[], None] | None = None,
    ) -> tuple[Partition, Prompt, RouterConfig]:
        """Return the partition, the prompt and the configuration of a request.

        read_ahead: prompt read in advance, or None
        check_first: as for `read_counted`
        Raises BadRequest, InvalidBody, NoWorkers.
        """
        partition = self.find_partition(query)
        if partition is None:
            # As in Dynamo, only a body of the wrong shape comes before missing workers.
            if read_ahead is None:
                with suppress(BadRequest):
                    reader(query, BLOCK_SIZE_MAX, 0)
            served, workers = self._fleet.partitions, len(self._fleet.catalog)
            raise no_worker_error(partition_key_of(query), served, workers)
        if check_first is not None:
            check_first()
        hashing = partition.block_size, partition.lookahead
        if read_ahead is not None and (read_ahead.block_size, read_ahead.lookahead) == hashing:
            prompt = read_ahead.prompt
        else:
            prompt = reader(query, *hashing)
        if partition.index.has_layouts:
            prompt = add_units(prompt, query, partition.index, hashing)
        config = apply_override(self._config, query.router_config_override)
        # As in Dynamo: identities that a client gives are shared in any case.
        if not config.assume_kv_reuse and not has_tokens(query):
            config = config._replace(assume_kv_reuse=True)
        return partition, prompt, config
