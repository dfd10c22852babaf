"""Keys of the core: partition and rank."""

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """Scope of all selection, index and load state."""

    model_name: str
    tenant_id: str

    def matches(self, model_name: str | None, tenant_id: str | None) -> bool:
        """Return whether a filter matches; None matches everything."""
        return model_name in (None, self.model_name) and tenant_id in (None, self.tenant_id)


class Rank(NamedTuple):
    """One data-parallel rank of a worker, the unit of selection."""

    worker_id: int
    dp_rank: int
