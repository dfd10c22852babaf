"""Adapters, salts and known names of a slot: lookups that decide the identity of a block."""

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index.block_tree import BlockTree, holder_of, slot_of_holder
from indexer.index.keyed_roots import KeyedRootRows, KeyedRoots, SeedParts
from indexer.jit.mutex import Mutex
from indexer.tiers import Tier

ROWS_PER_STEP = 2048


class SlotKeys:
    """Keys of the blocks of a slot.  Each method takes the index's lock."""

    def __init__(self, tree: BlockTree, lock: Mutex, slot: int) -> None:
        self._tree = tree
        self._lock = lock
        self._holder = holder_of(slot, Tier.GPU, counted=False)

    @property
    def roots(self) -> KeyedRoots:
        """Table of the whole index; its flags may be read without the lock."""
        return self._tree.keyed_roots

    def find_names(self, engine_hashes: Hashes) -> NDArray[np.bool_]:
        """Return whether the slot has announced each block with content, in any tier."""
        tree, slot = self._tree, slot_of_holder(self._holder)
        with self._lock:
            is_known = tree.find_names(self._holder, engine_hashes)
            if slot in tree.orphans:
                for i in np.flatnonzero(~is_known).tolist():
                    orphan = tree.orphans.find_in_any_tier(slot, int(engine_hashes[i]))
                    is_known[i] = orphan is not None
        return is_known

    def find_parts(self, name: int) -> SeedParts | None:
        """Return the parts of the seed below a block of the slot; None for an unknown name."""
        with self._lock:
            return self._tree.find_seed_parts(self._holder, name)

    def add_root(self, content: int, parts: SeedParts) -> bool:
        """Store the parts of the seed below a first block; return False if the table is full."""
        with self._lock:
            return self._tree.add_keyed_root(content, parts)

    def merge_rows(self, copied: KeyedRootRows) -> None:
        """Add the first blocks of a dump to the index, in steps."""
        for start in range(0, max(1, len(copied.rows)), ROWS_PER_STEP):
            part = KeyedRootRows(copied.rows[start : start + ROWS_PER_STEP], copied.has_images)
            with self._lock:
                self._tree.keyed_roots.merge_rows(part)
