"""Content of a KV event, independent of engine and encoding.

No bytes and no decoding here (kv_events), no tiers and no index (feed).  Engine hashes are
opaque ids of blocks; `local_hashes` computes the block hashes of `hashing` from the tokens.
"""

from typing import TypeAlias

import msgspec
import numpy as np

from indexer.hashing.block_hashing import Hashes, Tokens, compute_block_hashes

EVENT_COST = 32
"""Cost of reading or applying an event, besides its blocks, in blocks."""


class DecodeError(ValueError):
    """Error for a payload that is unreadable as a whole; the text gives the reason."""


class BlockStored(msgspec.Struct, frozen=True, eq=False):
    """Run of blocks that became resident, each the child of the one before.

    block_hashes: uint64 [n_blocks], engine hashes; all different, and different from the parent
    parent:       engine hash of the block before the run; None when the run starts a sequence
    tokens:       uint32 [n_tokens], of all blocks one after the other; empty when the event only
                  names blocks that were announced with tokens before
    block_size:   tokens per block in the event; 0 is usual when tokens is empty
    cache_salt:   never "", only the salt itself, and None unless parent is None
    mm_hashes:    per block the u64 multimodal hashes; None when no block has any
    is_bigram:    the engine sent pairs (EAGLE); tokens are flattened and one longer than the pairs
    """

    block_hashes: Hashes
    parent: int | None
    tokens: Tokens
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    mm_hashes: list[list[int]] | None = None
    group_idx: int | None = None
    kind: str | None = None
    is_bigram: bool = False


class BlockRemoved(msgspec.Struct, frozen=True, eq=False):
    """Blocks that left one medium.  block_hashes: uint64 [n_blocks], engine hashes, may repeat."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None
    kind: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """Event of a rank that holds no block any more."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Message of an engine.

    data_parallel_rank: None = the rank of the receiving socket; otherwise as sent,
    unchecked
    bad_events:         number of events left out because they are malformed
    last_error:         index and error of the last such event; None when bad_events is 0
    """

    data_parallel_rank: int | None
    events: list[Event]
    bad_events: int = 0
    last_error: str | None = None


NO_HASHES: Hashes = np.empty(0, np.uint64)


def hashable_blocks(event: BlockStored, block_size: int, is_eagle: bool = False) -> int:
    """Return the number of leading blocks with all their tokens; see `local_hashes`."""
    if event.block_size != block_size or block_size < 1:
        return 0
    window = block_size + _has_next(event, block_size, is_eagle)
    return min(len(event.block_hashes), max(0, (len(event.tokens) - window) // block_size + 1))


def local_hashes(
    event: BlockStored,
    block_size: int,
    is_eagle: bool = False,
    *,
    first: int = 0,
    at_most: int | None = None,
) -> Hashes:
    """Return block hashes of the leading blocks of `event` with all their tokens.

    block_size: of the partition; an event of any other block size yields nothing
    is_eagle:   the rank is registered as EAGLE.  Then a publisher that flattened the pairs itself
                is recognised by the one token that follows its last block; an event without it is
                hashed as is.
    first, at_most: first block and largest number of blocks to hash
    Returns uint64 [at most len(event.block_hashes)]; surplus tokens are ignored.
    """
    stop = hashable_blocks(event, block_size, is_eagle)
    if at_most is not None:
        stop = min(stop, first + at_most)
    if first >= stop:
        return NO_HASHES
    with_next = _has_next(event, block_size, is_eagle)
    return compute_block_hashes(
        event.tokens[first * block_size : stop * block_size + with_next],
        block_size,
        lora_name=event.lora_name,
        is_eagle=with_next,
        mm_hashes=event.mm_hashes and event.mm_hashes[first:stop],
        # A salt belongs to the first block of a sequence, so to the first part only.
        cache_salt=None if first else event.cache_salt,
    )


def _has_next(event: BlockStored, block_size: int, is_eagle: bool) -> bool:
    """Return whether each block is followed by one more token, the first of the next block."""
    n_tokens = len(event.block_hashes) * block_size
    return event.is_bigram or (is_eagle and len(event.tokens) > n_tokens)
