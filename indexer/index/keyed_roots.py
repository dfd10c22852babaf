"""First blocks of sequences with an adapter or a salt.

An engine sends a salt with the first block of a sequence only, but the salt is part of the content
hash of every block, so later announcements look up the salt by the first block above.  An entry
stays as long as the block; a full table refuses new entries and never forgets a live entry.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes

ROOTS_MAX = 32_768
"""Limit of first blocks, about 7 MB; half may have an adapter without a salt."""
ROOT_BYTES = 216
"""Memory of a first block, measured."""


class SeedParts(NamedTuple):
    """Parts that the blocks of a sequence add to the seed of block hashes; 0 for none."""

    salt: int
    adapter: int


class KeyedRootRows(msgspec.Struct, frozen=True):
    """Copy of a table.  rows: uint64 [n, 3], content hash of the first block, salt, adapter."""

    rows: NDArray[np.uint64]
    has_images: bool


class KeyedRoots:
    """Table of a partition.  The caller has the index's lock."""

    def __init__(self, roots_max: int = ROOTS_MAX) -> None:
        self._roots_max = roots_max
        self._parts: dict[int, SeedParts] = {}
        self._added = 0
        """Entries added or refused since the last removal of dead entries."""
        self.has_salts = False
        """True once a sequence with a salt was announced."""
        self.has_keys = False
        """True once a block with any key was announced."""
        self.has_images = False
        """True once a block with an image or a further key was announced."""

    def __len__(self) -> int:
        return len(self._parts)

    def find_parts(self, content: int) -> SeedParts:
        """Return the parts of the seed below a first block with this content hash."""
        return self._parts.get(content, _NO_PARTS)

    def add(self, content: int, parts: SeedParts) -> bool:
        """Store a first block; return False if the table is full.

        Adapters without a salt are not essential, since engines repeat them with every block.
        """
        self.has_keys = True
        self.has_salts = self.has_salts or parts.salt != 0
        if content in self._parts:
            return True
        room = self._roots_max if parts.salt else self._roots_max // 2
        self._added += 1
        if len(self._parts) >= room:
            return False
        self._parts[content] = parts
        return True

    @property
    def needs_removal(self) -> bool:
        """True if enough entries may have died since the last removal."""
        return self._added * 8 >= self._roots_max

    def contents(self) -> Hashes:
        """Return the content hashes of all first blocks."""
        return np.fromiter(self._parts, np.uint64, len(self._parts))

    def remove_dead(self, contents: Hashes, is_live: NDArray[np.bool_]) -> None:
        """Remove the entries of blocks that are not in the index."""
        for content in contents[~is_live].tolist():
            del self._parts[content]
        self._added = 0

    def copy(self) -> "KeyedRoots":
        """Return a copy of the present state."""
        copied = KeyedRoots(self._roots_max)
        copied._parts = self._parts.copy()
        copied.has_salts, copied.has_keys = self.has_salts, self.has_keys
        copied.has_images = self.has_images
        return copied

    def list_rows(self) -> KeyedRootRows | None:
        """Return the entries; None if no block with a key was ever announced."""
        if not self.has_keys:
            return None
        flat = [number for content, parts in self._parts.items() for number in (content, *parts)]
        return KeyedRootRows(np.array(flat, np.uint64).reshape(-1, 3), self.has_images)

    def merge_rows(self, copied: KeyedRootRows) -> None:
        """Add the entries of a copy."""
        self.has_keys = True
        self.has_images = self.has_images or copied.has_images
        for content, salt, adapter in copied.rows.tolist():
            self.add(content, SeedParts(salt, adapter))


_NO_PARTS = SeedParts(0, 0)
