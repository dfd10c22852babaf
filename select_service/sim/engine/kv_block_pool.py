"""KV cache of a rank: blocks with content, referenced or idle, and tails without content.

Idle blocks stay cached until their place is needed, the oldest first; the last block of a request
goes before its predecessors. Every running request has one more place, its tail, for the block that
is not full. Two requests with the same content share the blocks, where vLLM keeps two copies until
one of them ends.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from select_service.sim.engine import kv_block_pool_kernels as kernels
from select_service.sim.engine.kv_block_pool_kernels import (
    CACHED,
    EVICTED,
    IDLE,
    NEWER,
    OLDER,
    PLACES,
    REFERENCES,
    STORED,
    TAILS,
)

Chain: TypeAlias = NDArray[np.int32]
"""Blocks of a prompt and its answer, in order."""


class StoredBlocks(NamedTuple):
    """Blocks `first` to `end` of a chain that are cached now."""

    chain: Chain
    first: int
    end: int


class RemovedBlocks(NamedTuple):
    """Blocks that are no longer cached."""

    blocks: Chain


Change: TypeAlias = StoredBlocks | RemovedBlocks


class KvBlockPool:
    """Block pool.  n_blocks: number of different blocks;  places: capacity"""

    def __init__(self, n_blocks: int, places: int) -> None:
        self.places = places
        self.changes: list[Change] = []
        self.on_evicted: Callable[[Chain], None] | None = None
        """Receives the evicted blocks; None if no further tier stores them."""
        self._blocks = np.full((3, n_blocks + 1), n_blocks, np.int32)
        self._references = self._blocks[REFERENCES]
        self._references[:] = -1
        self._numbers = np.array([0, 0, 0, places], np.int64)
        self._taken = np.empty((2, places), np.int32)
        """Blocks changed by the kernel `take_blocks`."""

    def grow_to(self, n_blocks: int) -> None:
        """Make room for the numbers of `n_blocks` different blocks; the capacity stays."""
        head = self._blocks.shape[1] - 1
        if n_blocks <= head:
            return
        # Half more than needed, so that frequent small additions stay cheap.
        last = n_blocks + n_blocks // 2
        old, self._blocks = self._blocks, np.full((3, last + 1), -1, np.int32)
        links = old[OLDER:]
        links[links == head] = last
        self._blocks[:, :head] = old[:, :head]
        self._blocks[OLDER:, last] = links[:, head]
        self._references = self._blocks[REFERENCES]

    def count_cached(self, chain: Chain) -> int:
        """Return the number of leading cached blocks."""
        return int(kernels.count_leading_cached(self._references, chain))

    def is_cached(self, block: int) -> bool:
        """Return whether a block is cached, wherever it stands in a chain."""
        return bool(self._references[block] >= 0)

    def has_room(self, new: int, found: Chain) -> bool:
        """Return whether `new` places are available if the cached blocks `found` are kept."""
        numbers = self._numbers
        pinned = int(numbers[CACHED] - numbers[IDLE] + numbers[TAILS])
        return pinned + new + int(kernels.count_idle_among(self._references, found)) <= self.places

    def take_blocks(self, chain: Chain, first: int, end: int) -> int:
        """Reference blocks `first` to `end` of a chain; returns the end of the referenced part."""
        reached, n_stored, n_evicted = kernels.take_blocks(
            self._blocks, self._numbers, chain, first, end, self._taken
        )
        if n_evicted:
            self._record_evicted(self._taken[EVICTED, :n_evicted].copy())
        if n_stored:
            self._record_stored(chain, self._taken[STORED, :n_stored])
        return int(reached)

    def _record_evicted(self, blocks: Chain) -> None:
        self.changes.append(RemovedBlocks(blocks))
        if self.on_evicted is not None:
            self.on_evicted(blocks)

    def _record_stored(self, chain: Chain, positions: NDArray[np.int32]) -> None:
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            self.changes.append(StoredBlocks(chain, first, last + 1))
            return
        # Cached blocks in the middle split the stored blocks into several runs.
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            self.changes.append(StoredBlocks(chain, int(run[0]), int(run[-1]) + 1))

    def take_tail(self) -> bool:
        """Take a place for a block that is not full; False if none is left."""
        numbers = self._numbers
        if numbers[CACHED] + numbers[TAILS] >= numbers[PLACES]:
            if numbers[IDLE] == 0:
                return False
            gone = kernels.evict_oldest(self._blocks, numbers)
            self._record_evicted(np.array([gone], np.int32))
        numbers[TAILS] += 1
        return True

    def release_blocks(self, chain: Chain, held: int) -> None:
        """Release the first `held` blocks and the tail of a request."""
        kernels.release_blocks(self._blocks, self._numbers, chain, held)
        self._numbers[TAILS] -= 1

    @property
    def used_share(self) -> float:
        """Share of the places that requests hold."""
        numbers = self._numbers
        return float(numbers[CACHED] - numbers[IDLE] + numbers[TAILS]) / self.places

    def cached_blocks(self) -> set[int]:
        """Return all blocks with content.  For tests."""
        return set(np.flatnonzero(self._references[:-1] >= 0).tolist())

    def check_invariants(self) -> None:
        """Recompute all incremental state.  For tests."""
        references, numbers = self._references[:-1], self._numbers
        older, newer = self._blocks[OLDER], self._blocks[NEWER]
        assert numbers[CACHED] == np.count_nonzero(references >= 0)
        assert numbers[IDLE] == np.count_nonzero(references == 0)
        assert numbers[TAILS] >= 0
        assert numbers[CACHED] + numbers[TAILS] <= self.places
        head, idle = len(references), []
        block = newer[head]
        while block != head:
            assert older[newer[block]] == block
            idle.append(int(block))
            block = newer[block]
        assert sorted(idle) == np.flatnonzero(references == 0).tolist()
