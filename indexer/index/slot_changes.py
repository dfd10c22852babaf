"""One locked step of a change of a slot: in the tree, and in the orphans.

The caller has the lock of the index.  `holder` is slot, tier and counted, see `holder_of`.
"""

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index.block_tree import (
    DETACHED_STEP_MAX,
    BlockTree,
    slot_of_holder,
    tier_of_holder,
)


def store_part(
    tree: BlockTree,
    holder: int,
    parent: int | None,
    blocks: Hashes,
    engines: Hashes,
    waiting: list[int],
) -> tuple[int, int]:
    """Store a part of a chain; return (blocks recorded, blocks attempted).

    waiting: receives the stored names that are missing parents of orphans
    """
    slot, offered = slot_of_holder(holder), int(blocks.size)
    stored = tree.store_chain(holder, parent, blocks, engines)
    if stored < 0:
        assert parent is not None
        # Blocks without a known parent are stored singly, so a step takes fewer.
        offered = min(offered, DETACHED_STEP_MAX)
        stored = tree.store_detached(holder, parent, blocks[:offered], engines[:offered])
    if slot in tree.orphans:
        names = engines[:stored].tolist()
        tree.join_orphans(holder, parent, blocks[:stored].tolist(), names)
        waiting += tree.orphans.missing_parents(slot, names)
    return stored, offered


def store_known_part(tree: BlockTree, holder: int, engines: Hashes) -> int:
    """Record blocks that the slot has already; return the number recorded."""
    slot, recorded = slot_of_holder(holder), tree.store_known(holder, engines)
    if slot in tree.orphans:
        names = engines.tolist()
        recorded += tree.copy_orphans(holder, names)
        tree.drop_placed(slot, tier_of_holder(holder), names)
    return recorded


def add_copies_part(
    tree: BlockTree, holder: int, engines: Hashes, copies: NDArray[np.int64]
) -> int:
    """Add announcements to blocks of the slot; return the number of blocks held."""
    slot, held = slot_of_holder(holder), tree.add_copies(holder, engines, copies)
    if slot in tree.orphans:
        tier = tier_of_holder(holder)
        for name, more in zip(engines.tolist(), copies.tolist(), strict=True):
            orphan = tree.orphans.find_in_tier(slot, tier, name)
            if orphan is not None and more > 0:
                tree.orphans.add(slot, orphan, counted=more)
    return held


def remove_part(tree: BlockTree, holder: int, engines: Hashes) -> int:
    """Undo an announcement of each block; return how many were known."""
    slot, removed = slot_of_holder(holder), tree.remove_blocks(holder, engines, every_copy=False)
    if slot in tree.orphans:
        names = engines.tolist()
        removed += tree.forget_orphans(slot, tier_of_holder(holder), names, every_copy=False)
    return removed
