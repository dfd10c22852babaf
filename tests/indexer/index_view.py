"""What only tests ask of an index."""

from indexer.index import header_kernels as state
from indexer.tiers import N_TIERS


def slot_blocks(index):
    """Blocks held, int64 [n_slots, N_TIERS]."""
    return plane_blocks(index, N_TIERS)


def plane_blocks(index, n_planes):
    """Blocks held in tiers and in lanes behind them, int64 [n_slots, n_planes]."""
    live = index._tree.memory.column(state.LIVE).reshape(state.LIVE_TIERS, -1).T
    return live[: index.n_slots, :n_planes].copy()
