"""The two keys of the core."""

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """Scope of all selection, index and load state."""

    model_name: str
    tenant_id: str


class Rank(NamedTuple):
    """One data-parallel rank of a worker: the unit that is selected."""

    worker_id: int
    dp_rank: int
