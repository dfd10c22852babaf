"""Numbers of blocks for token sequences, with the content behind each number."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from select_service.sim.engine.kv_block_pool import Chain, KvBlockPool

Tokens = NDArray[np.uint32]
ROOT_KEY = 0


def chain_keys(tokens: Tokens, block_size: int) -> list[int]:
    """Return a 64-bit key per full block; equal keys mean equal content from the start."""
    keys: list[int] = []
    previous = ROOT_KEY
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = tokens[start : start + block_size].astype("<u4", copy=False).tobytes()
        digest = blake2b(previous.to_bytes(8, "big") + content, digest_size=8).digest()
        # Each key includes the previous key, so equal keys mean equal prefixes.
        previous = int.from_bytes(digest, "big")
        keys.append(previous)
    return keys


class BlockCatalog:
    """A number for every content behind every beginning, shared by all ranks of a fleet.

    size: upper bound of the numbers;  keys, tokens: key and content of each block, by number
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.keys: list[int] = []
        self.tokens: list[Tokens] = []
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []

    @property
    def size(self) -> int:
        return len(self.keys)

    def number_blocks(self, tokens: Tokens) -> Chain:
        """Return the numbers of the full blocks of a text; unknown blocks get new numbers."""
        keys = chain_keys(tokens, self.block_size)
        for at, key in enumerate(keys):
            if key not in self._numbers:
                content = tokens[at * self.block_size : (at + 1) * self.block_size]
                self._numbers[key] = self._store_block(key, content)
        return np.array([self._numbers[key] for key in keys], np.int32)

    def recycle_numbers(self, pools: Iterable[KvBlockPool]) -> None:
        """Free the numbers of blocks that no pool caches; no request may be running."""
        cached = set().union(*(pool.cached_blocks() for pool in pools))
        for key, number in list(self._numbers.items()):
            if number not in cached:
                del self._numbers[key]
                self._free.append(number)

    def _store_block(self, key: int, content: Tokens) -> int:
        if self._free:
            number = self._free.pop()
            self.keys[number], self.tokens[number] = key, content
            return number
        self.keys.append(key)
        self.tokens.append(content)
        return len(self.keys) - 1
