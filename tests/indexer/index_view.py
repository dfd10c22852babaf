"""What only tests ask of an index."""

from indexer.index import header_kernels as state
from indexer.tiers import N_TIERS


def slot_blocks(index):
    """Blocks held, int64 [n_slots, N_TIERS]."""
    live = index._tree.memory.column(state.LIVE)[: index.n_slots * N_TIERS]
    return live.reshape(index.n_slots, N_TIERS).copy()
