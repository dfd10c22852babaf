"""Content of a KV event, independent of engine and encoding.

No bytes and no decoding here (kv_events), no tiers and no index (feed).  Engine hashes are
opaque ids of blocks; `local_hashes` computes the block hashes of `hashing` from the tokens.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from indexer.hashing.block_hashing import Hashes, Tokens, hash_blocks
from indexer.hashing.seeds import SEED, U64_MASK, lora_offset, salt_offset

EVENT_COST = 32
"""Cost of reading or applying an event without blocks, in blocks."""


class DecodeError(ValueError):
    """Error for a payload that is unreadable as a whole; the text gives the reason."""


class BlockStored(msgspec.Struct, frozen=True, eq=False):
    """Run of blocks that became resident, each the child of the block before.

    block_hashes: uint64 [n_blocks], engine hashes; all different, and different from the parent
    parent:       engine hash of the block before the run; None when the run starts a sequence
    tokens:       uint32 [n_tokens], of all blocks in order; empty when the event only names blocks
    that were announced with tokens before
    block_size:   tokens per block in the event; 0 is usual when tokens is empty
    cache_salt:   never "", only the salt itself; None means that the parent's salt continues
    mm_hashes:    per block the u64 multimodal hashes; None when no block has any
    is_bigram:    the engine sent pairs (EAGLE); tokens are flattened and one longer than the pairs
    sliding_window: tokens of the window of a windowed attention group
    lookahead:    uint32 [n_blocks, L], the L tokens behind each block that the engine hash covers;
    None when the engine hashes blocks alone
    has_key_fields: the form of the event has fields for keys, filled or not; without such fields
    (SGLang adds key fields where needed) the absence of keys is certain
    is_array:     the event is an array, as of vLLM before 0.24 and of other engines
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
    sliding_window: int | None = None
    lookahead: Tokens | None = None
    has_key_fields: bool = False
    is_array: bool = False

    @property
    def has_keys(self) -> bool:
        """True if the event itself has an adapter, a salt, an image or another key."""
        has_adapter, is_salted = self.lora_name is not None, self.cache_salt is not None
        return has_adapter or is_salted or self.mm_hashes is not None


class BlockRemoved(msgspec.Struct, frozen=True, eq=False):
    """Blocks that left a medium.  block_hashes: uint64 [n_blocks], engine hashes, may repeat."""

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
    bad_events:         number of malformed events, which are left out
    last_error:         index and error of the last such event; None when bad_events is 0
    unknown_fields:     number of unknown fields of all events by name; None if there are none
    """

    data_parallel_rank: int | None
    events: list[Event]
    bad_events: int = 0
    last_error: str | None = None
    unknown_fields: Mapping[str, int] | None = None


NO_HASHES: Hashes = np.empty(0, np.uint64)


def split_names(
    event: "BlockStored | BlockRemoved", at_most: int
) -> "Iterator[BlockStored | BlockRemoved]":
    """Yield an event in parts of at most so many names; each part is an event.

    A stored event is split only if every block is listed, since only then the tokens can be split.
    """
    names, n_tokens = event.block_hashes, 0
    if isinstance(event, BlockStored):
        n_tokens = len(names) * event.block_size
        if len(event.tokens) != n_tokens or event.mm_hashes is not None:
            yield event
            return
    for start in range(0, max(1, len(names)), at_most):
        part = slice(start, start + at_most)
        if isinstance(event, BlockRemoved):
            yield replace(event, block_hashes=names[part])
            continue
        size, ahead = event.block_size, event.lookahead
        yield replace(
            event,
            block_hashes=names[part],
            parent=event.parent if start == 0 else int(names[start - 1]),
            tokens=event.tokens[start * size : (start + at_most) * size],
            lookahead=None if ahead is None else ahead[part],
            cache_salt=event.cache_salt if start == 0 else None,
        )


def hashable_blocks(event: BlockStored, block_size: int, is_eagle: bool = False) -> int:
    """Return the number of leading whole blocks; see `local_hashes`."""
    if event.block_size != block_size or block_size < 1:
        return 0
    return min(len(event.block_hashes), _filled_blocks(event, block_size, is_eagle))


def has_unnamed_blocks(event: BlockStored, block_size: int, is_eagle: bool = False) -> bool:
    """Return whether the tokens fill more blocks than the event names.

    Such an event names some of the blocks, and the position of a hash does not show the block.
    """
    if event.block_size != block_size or block_size < 1:
        return False
    return _filled_blocks(event, block_size, is_eagle) > len(event.block_hashes)


def lacks_next_tokens(event: BlockStored, block_size: int) -> bool:
    """Return whether blocks lack the next token, which EAGLE ranks hash as well."""
    n_tokens = len(event.block_hashes) * block_size
    return not event.is_bigram and event.lookahead is None and len(event.tokens) <= n_tokens


def local_hashes(
    event: BlockStored,
    block_size: int,
    is_eagle: bool = False,
    *,
    first: int = 0,
    at_most: int | None = None,
    inherited: int = 0,
) -> Hashes:
    """Return block hashes of the leading whole blocks of `event`.

    block_size: of the partition; an event of any other block size yields nothing
    is_eagle:   the rank is registered as EAGLE.  Then each block is hashed with the lookahead.  A
    publisher that flattened pairs is recognised by a single token behind the last block;
    an event without such a token is hashed as is.
    first, at_most: first block and largest number of blocks to hash
    inherited:  part of the seed from the parent's sequence; a salt of the event replaces that part
    Returns uint64 [at most len(event.block_hashes)]; surplus tokens are ignored.
    """
    stop = hashable_blocks(event, block_size, is_eagle)
    if at_most is not None:
        stop = min(stop, first + at_most)
    if first >= stop:
        return NO_HASHES
    if event.cache_salt is not None:
        inherited = salt_offset(event.cache_salt)
    seed = (SEED + lora_offset(event.lora_name) + inherited) & U64_MASK
    mm_hashes = event.mm_hashes and event.mm_hashes[first:stop]
    with_next = _has_next(event, block_size, is_eagle)
    tokens = event.tokens[first * block_size : stop * block_size + with_next]
    if event.lookahead is None or not is_eagle:
        return hash_blocks(tokens, block_size + with_next, block_size, seed, mm_hashes)
    rows = np.hstack((tokens.reshape(-1, block_size), event.lookahead[first:stop]))
    return hash_blocks(rows.reshape(-1), rows.shape[1], rows.shape[1], seed, mm_hashes)


def lookahead_of(event: BlockStored, is_eagle: bool) -> int:
    """Return the number of tokens behind a block that the block's content covers."""
    return int(is_eagle) if event.lookahead is None else is_eagle * event.lookahead.shape[1]


def _filled_blocks(event: BlockStored, block_size: int, is_eagle: bool) -> int:
    """Return the number of whole blocks, named or not."""
    return max(0, len(event.tokens) - _has_next(event, block_size, is_eagle)) // block_size


def _has_next(event: BlockStored, block_size: int, is_eagle: bool) -> bool:
    """Return whether each block comes with the first token of the next block."""
    if event.lookahead is not None:
        return False
    n_tokens = len(event.block_hashes) * block_size
    return event.is_bigram or (is_eagle and len(event.tokens) > n_tokens)
