"""The two keys of the core."""

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """Scope of all selection, index and load state."""

    model_name: str
    tenant_id: str

    def within(self, model_name: str | None, tenant_id: str | None) -> bool:
        """Does a filter admit it?  None admits everything."""
        return model_name in (None, self.model_name) and tenant_id in (None, self.tenant_id)


class Rank(NamedTuple):
    """One data-parallel rank of a worker: the unit that is selected."""

    worker_id: int
    dp_rank: int
