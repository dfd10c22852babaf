"""Views of an index that only tests need."""

from indexer.index import header_kernels as state
from indexer.tiers import N_TIERS


def slot_blocks(index):
    """Return the number of blocks held, int64 [n_slots, N_TIERS]."""
    return plane_blocks(index, N_TIERS)


def plane_blocks(index, n_planes):
    """Return the number of blocks held in tiers and lanes, int64 [n_slots, n_planes]."""
    live = index._tree.memory.column(state.LIVE).reshape(state.LIVE_TIERS, -1).T
    return live[: index.n_slots, :n_planes].copy()
