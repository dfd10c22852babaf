"""Which partition a prompt is for, and the prompt as that partition reads it."""

from select_service.bodies.prompts import PromptFields
from select_service.core.admission.tally import AdmissionTally
from select_service.core.decide.prompt import Prompt, PromptRead, ReadPrompt, key_of, prompt_of
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.views.absence import nobody_serves
from select_service.core.workers.catalog import BLOCK_SIZE_MAX
from select_service.errors import NoWorkers


class Prompts:
    """Reads what requests ask for; changes nothing but a count."""

    def __init__(self, fleet: Fleet, tally: AdmissionTally) -> None:
        self._fleet = fleet
        self._tally = tally

    def partition(self, query: PromptFields) -> Partition | None:
        """None: nobody serves it."""
        return self._fleet.partitions.get(key_of(query))

    def hashing(self, query: PromptFields) -> tuple[int, bool]:
        """How prompts of this scope are hashed: in which block size, and as with EAGLE?"""
        partition = self.partition(query)
        if partition is None:
            return BLOCK_SIZE_MAX, False
        return partition.block_size, partition.is_eagle

    def asked(self, query: PromptFields, known: PromptRead | None) -> tuple[Partition, Prompt]:
        """As `read`, of a request for a rank, which is counted where nobody serves it."""
        try:
            return self.read(query, known)
        except NoWorkers:
            self._tally.turned_away("no_workers", key_of(query))
            raise

    def read(
        self, query: PromptFields, known: PromptRead | None = None, how: ReadPrompt = prompt_of
    ) -> tuple[Partition, Prompt]:
        """known: the prompt, if it was read ahead.  Raises BadRequest, InvalidBody, NoWorkers."""
        partition = self.partition(query)
        if partition is None:
            if known is None:
                how(query, BLOCK_SIZE_MAX, False)  # what the client can mend is said first
            served, workers = self._fleet.partitions, len(self._fleet.catalog)
            raise nobody_serves(key_of(query), served, workers)
        hashing = partition.block_size, partition.is_eagle
        if known is not None and (known.block_size, known.is_eagle) == hashing:
            return partition, known.prompt
        return partition, how(query, *hashing)
