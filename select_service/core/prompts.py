"""Which partition a prompt is for, and the prompt as that partition reads it."""

from select_service.bodies.common import tenant_of
from select_service.bodies.prompts import PromptFields
from select_service.core.decide.prompt import Prompt, PromptRead, ReadPrompt, prompt_of
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.views.absence import nobody_serves
from select_service.core.workers.catalog import BLOCK_SIZE_MAX


class Prompts:
    """Reads what requests ask for; changes nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def partition(self, query: PromptFields) -> Partition | None:
        """None: nobody serves it."""
        return self._fleet.partitions.get(_key_of(query))

    def hashing(self, query: PromptFields) -> tuple[int, bool]:
        """How prompts of this scope are hashed: in which block size, and as with EAGLE?"""
        partition = self.partition(query)
        if partition is None:
            return BLOCK_SIZE_MAX, False
        return partition.block_size, partition.is_eagle

    def read(
        self, query: PromptFields, known: PromptRead | None = None, how: ReadPrompt = prompt_of
    ) -> tuple[Partition, Prompt]:
        """known: the prompt, if it was read ahead.  Raises BadRequest, InvalidBody, NoWorkers."""
        partition = self.partition(query)
        if partition is None:
            if known is None:
                how(query, BLOCK_SIZE_MAX, False)  # what the client can mend is said first
            served, workers = self._fleet.partitions, len(self._fleet.catalog)
            raise nobody_serves(_key_of(query), served, workers)
        hashing = partition.block_size, partition.is_eagle
        if known is not None and (known.block_size, known.is_eagle) == hashing:
            return partition, known.prompt
        return partition, how(query, *hashing)


def _key_of(query: PromptFields) -> PartitionKey:
    return PartitionKey(query.model_name, tenant_of(query.tenant_id, query.routing_group))
