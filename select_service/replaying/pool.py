"""The KV cache of one rank: blocks with content, referenced or idle, and tails without.

Idle blocks stay cached until their place is needed, the oldest first; the last block of a request
goes before the ones that it builds on.  Every running request has one place more, its tail, for
the block that is not full yet.  Two requests with the same content share its blocks, where vLLM
keeps a copy each until one of them ends.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from select_service.replaying import pool_kernels as kernels
from select_service.replaying.pool_kernels import CACHED, IDLE, PLACES, TAILS

Chain: TypeAlias = NDArray[np.int32]
"""Blocks of a prompt and its answer, first one first."""


class Stored(NamedTuple):
    """The blocks of a chain from `first` to `end` are cached now."""

    chain: Chain
    first: int
    end: int


class Removed(NamedTuple):
    """These blocks are cached no more."""

    blocks: Chain


Change: TypeAlias = Stored | Removed


class Pool:
    """n_blocks: how many different blocks there are;  places: how many fit."""

    def __init__(self, n_blocks: int, places: int) -> None:
        self.places = places
        self.changes: list[Change] = []
        self._references = np.full(n_blocks + 1, -1, np.int32)
        self._older = np.full(n_blocks + 1, n_blocks, np.int32)
        self._newer = np.full(n_blocks + 1, n_blocks, np.int32)
        self._numbers = np.array([0, 0, 0, places], np.int64)
        self._stored = np.empty(places, np.int32)
        self._evicted = np.empty(places, np.int32)

    def hits(self, chain: Chain) -> int:
        """Leading blocks that are cached."""
        return int(kernels.leading_hits(self._references, chain))

    def has_room(self, new: int, found: Chain) -> bool:
        """For `new` places, when the cached blocks `found` are needed as well?"""
        numbers = self._numbers
        pinned = int(numbers[CACHED] - numbers[IDLE] + numbers[TAILS])
        return pinned + new + int(kernels.idle_among(self._references, found)) <= self.places

    def take(self, chain: Chain, first: int, end: int) -> int:
        """Refer to blocks `first` to `end` of a chain; returns how far there were places."""
        reached, n_stored, n_evicted = kernels.take(
            self._references,
            self._older,
            self._newer,
            self._numbers,
            chain,
            first,
            end,
            self._stored,
            self._evicted,
        )
        if n_evicted:
            self.changes.append(Removed(self._evicted[:n_evicted].copy()))
        if n_stored:
            self._tell_stored(chain, self._stored[:n_stored])
        return int(reached)

    def _tell_stored(self, chain: Chain, positions: NDArray[np.int32]) -> None:
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            self.changes.append(Stored(chain, first, last + 1))
            return
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            self.changes.append(Stored(chain, int(run[0]), int(run[-1]) + 1))

    def take_tail(self) -> bool:
        """A place for a block that is not full; False when there is none."""
        numbers = self._numbers
        if numbers[CACHED] + numbers[TAILS] >= numbers[PLACES]:
            if numbers[IDLE] == 0:
                return False
            gone = kernels.evict(self._references, self._older, self._newer, numbers)
            self.changes.append(Removed(np.array([gone], np.int32)))
        numbers[TAILS] += 1
        return True

    def release(self, chain: Chain, held: int) -> None:
        """A request refers no more to its first `held` blocks and to its tail."""
        kernels.release(self._references, self._older, self._newer, self._numbers, chain, held)
        self._numbers[TAILS] -= 1

    def cached(self) -> set[int]:
        """All blocks with content; for tests."""
        return set(np.flatnonzero(self._references[:-1] >= 0).tolist())

    def check_invariants(self) -> None:
        """Recompute what is kept incrementally; for tests."""
        references, numbers = self._references[:-1], self._numbers
        assert numbers[CACHED] == np.count_nonzero(references >= 0)
        assert numbers[IDLE] == np.count_nonzero(references == 0)
        assert numbers[TAILS] >= 0
        assert numbers[CACHED] + numbers[TAILS] <= self.places
        head, idle = len(references), []
        block = self._newer[head]
        while block != head:
            assert self._older[self._newer[block]] == block
            idle.append(int(block))
            block = self._newer[block]
        assert sorted(idle) == np.flatnonzero(references == 0).tolist()
