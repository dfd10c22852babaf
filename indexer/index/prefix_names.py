"""Engine hashes of a prompt's prefix in a slot, for messages to the engine."""

import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.index import header_kernels as state
from indexer.index.index_memory import IndexMemory
from indexer.index.prefix_name_kernels import name_held_prefix

RECORD_ROWS_MAX = 1 << 19
"""Longest table of overflow records that is searched, some 3 ns each."""


def find_prefix_names(memory: IndexMemory, slot: int, path: Hashes) -> Hashes | None:
    """Return the engine hashes of the leading GPU blocks of `path` that the slot holds, uint64 [n].

    None means that the slot uses other than primary hashes, in a table too long to search.
    Requires the lock of the index.  O(path), and O(records) for a slot with such hashes.
    """
    nodes, names = np.empty(len(path), np.int64), np.empty(len(path), np.uint64)
    n = name_held_prefix(memory.header, slot, path, nodes, names)
    nodes, names = nodes[:n], names[:n]
    own = np.flatnonzero(nodes)
    if not len(own):
        return names
    rows = memory.column(state.RECORDS).reshape(-1, state.RECORD_FIELDS)
    if len(rows) > RECORD_ROWS_MAX:
        return None
    # The records lead from a hash to the node; the way back is rare, so there is no table for it.
    mine = rows[rows[:, state.RECORD_META] == _alias_meta(slot)]
    mine = mine[np.argsort(mine[:, state.RECORD_NODE])]
    found = mine[np.searchsorted(mine[:, state.RECORD_NODE], nodes[own])]
    high = found[:, state.RECORD_HIGH].astype(np.uint64) << np.uint64(32)
    names[own] = found[:, state.RECORD_LOW] | high
    return names


def _alias_meta(slot: int) -> int:
    """Return the word of the records with a slot's other hashes for GPU blocks (`record_meta`)."""
    return (slot << 1 + state.TIER_BITS) + 1
