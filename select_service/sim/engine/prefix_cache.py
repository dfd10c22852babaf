"""KV cache of a rank over tokens, with events as vLLM publishes them.

The blocks are those of a `KvBlockPool`; every change of the pool becomes an event, in order.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from select_service.sim.engine.block_catalog import BlockCatalog, Tokens
from select_service.sim.engine.kv_block_pool import Chain, Change, KvBlockPool, StoredBlocks

GPU = "GPU"


class VllmBlockStored(Struct, tag="BlockStored", omit_defaults=True):
    """New blocks in chain order. Field names and order are vLLM's wire format."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class VllmBlockRemoved(Struct, tag="BlockRemoved", omit_defaults=True):
    """Evicted blocks."""

    block_hashes: list[int]
    medium: str | None = None


class VllmAllBlocksCleared(Struct, tag="AllBlocksCleared", omit_defaults=True):
    """Reset of the whole cache."""


KvEvent = VllmBlockStored | VllmBlockRemoved | VllmAllBlocksCleared


class PrefixCache:
    """Cache of a rank. `hash_seed` makes the block names differ from those of other ranks."""

    def __init__(self, pool: KvBlockPool, catalog: BlockCatalog, hash_seed: int = 0) -> None:
        self.pool = pool
        self.catalog = catalog
        self._hash_seed = hash_seed

    def number_blocks(self, tokens: Tokens) -> Chain:
        """Return the full blocks of a text."""
        chain = self.catalog.number_blocks(tokens)
        self.pool.grow_to(self.catalog.size)
        return chain

    def admit_prompt(self, chain: Chain) -> int | None:
        """Reference the blocks of a prompt and its tail; None means no room.

        Returns the number of blocks that were cached. `pool.release_blocks` ends the request.
        """
        found = self.pool.count_cached(chain)
        if not self.pool.has_room(len(chain) - found + 1, chain[:found]):
            return None
        # The cached blocks first: a new place may evict only other blocks.
        self.pool.take_blocks(chain, 0, found)
        assert self.pool.take_tail()
        assert self.pool.take_blocks(chain, found, len(chain)) == len(chain)
        return found

    def cache_tokens(self, tokens: Tokens) -> bool:
        """Pass a whole request through the cache at once; False means no room."""
        chain = self.number_blocks(tokens)
        if self.admit_prompt(chain) is None:
            return False
        self.pool.release_blocks(chain, len(chain))
        return True

    def take_events(self) -> list[KvEvent]:
        """Return the events since the last call, in order."""
        changes, self.pool.changes = self.pool.changes, []
        return self.render_events(changes)

    def render_events(self, changes: Sequence[Change]) -> list[KvEvent]:
        """Return the events of changes of the pool."""
        return [self._render_event(change) for change in changes]

    def block_hash(self, block: int) -> int:
        """Return the name of a block in the events of this rank, unsigned 64-bit."""
        # Engines name equal content differently; only tokens identify a block across ranks.
        return self.catalog.keys[block] ^ self._hash_seed

    def _render_event(self, change: Change) -> KvEvent:
        if not isinstance(change, StoredBlocks):
            return VllmBlockRemoved([self.block_hash(each) for each in change.blocks], GPU)
        blocks = change.chain[change.first : change.end]
        return VllmBlockStored(
            block_hashes=[self.block_hash(each) for each in blocks],
            parent_block_hash=(
                self.block_hash(change.chain[change.first - 1]) if change.first else None
            ),
            token_ids=np.concatenate([self.catalog.tokens[each] for each in blocks]).tolist(),
            block_size=self.catalog.block_size,
            medium=GPU,
        )
