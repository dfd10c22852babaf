"""Hashing of tokens to block hashes, and of block hashes to sequence hashes.

KV events of engines and prompts of clients share these functions: two blocks are the same block
exactly if their hashes are equal.  `kernels` computes XXH3.

A block hash is the content hash of a block on its own:

    XXH3-64(le32(token) for every token of the window || le64(m) for m in sorted(mm hashes), seed)

The window is the block; on EAGLE ranks the window is the block and one more token, because the
KV of a position depends on the next token there, or as many more as the engine's events show.
The seed is SEED; a LoRA adapter adds XXH3-64 of its name, and a cache salt, which separates
prompts that must not share KV, adds XXH3-64 of the salt.  The latter is computed with a seed of
its own, so that a salt never equals a LoRA name.  Both apply to every block of a prompt.  An
engine sends a salt with the first block of a sequence; later blocks continue the salt of their
sequence.

Source: Dynamo's compute_block_hash_for_seq and its sequence hashes (1.6 line):
https://github.com/ai-dynamo/dynamo/tree/main/lib/kv-router
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from indexer.hashing import xxh3_kernels as hash_kernels
from indexer.hashing.seeds import prompt_seed

Hashes: TypeAlias = npt.NDArray[np.uint64]
Tokens: TypeAlias = npt.NDArray[np.uint32]

BLOCKS_AT_ONCE = 16_384
"""Blocks hashed per kernel call, in a millisecond or less for usual block sizes."""


def compute_block_hashes(
    tokens: Tokens,
    block_size: int,
    *,
    lora_name: str | None = None,
    lookahead: int = 0,
    mm_hashes: Sequence[Sequence[int]] | None = None,
    cache_salt: str | None = None,
) -> Hashes:
    """Hash every full block of a sequence that starts at the first of `tokens`.

    tokens:    uint32 [n_tokens]; an unfinished last block is left out
    mm_hashes: per block the u64 hashes of the images, sounds, ... in it, in any order; blocks
               beyond the end of the list have none
    lora_name, cache_salt: None and "" both mean none
    lookahead: tokens behind a block that the content hash covers; 1 on most EAGLE ranks
    Returns uint64 [n_blocks].  Raises ValueError for a block_size under 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    seed = prompt_seed(lora_name, cache_salt)
    return hash_blocks(tokens, block_size + lookahead, block_size, seed, mm_hashes)


def hash_blocks(
    tokens: Tokens,
    window: int,
    stride: int,
    seed: int,
    mm_hashes: Sequence[Sequence[int]] | None = None,
) -> Hashes:
    """Hash every complete window of tokens[0:], tokens[stride:], ...

    mm_hashes: per window, as in `compute_block_hashes`.  Returns uint64 [n_windows].
    """
    hashes: Hashes = np.empty(max(0, (len(tokens) - window) // stride + 1), np.uint64)
    if not len(hashes):
        return hashes
    tokens = np.ascontiguousarray(tokens, np.uint32)
    _hash_windows(tokens, window, stride, seed, hashes)
    if mm_hashes:
        for block, extra in enumerate(mm_hashes[: len(hashes)]):
            if extra:
                hashes[block] = _hash_window(tokens, block * stride, window, extra, seed)
    return hashes


def compute_sequence_hashes(block_hashes: Hashes) -> Hashes:
    """Chain block hashes: s[0] = b[0], s[i] = XXH3-64(le64(s[i-1]) || le64(b[i]), seed SEED).

    block_hashes: uint64 [n_blocks].  Returns uint64 [n_blocks].
    """
    chained: Hashes = np.empty(len(block_hashes), np.uint64)
    blocks = np.ascontiguousarray(block_hashes, np.uint64)
    if len(blocks) <= BLOCKS_AT_ONCE:
        hash_kernels.chain_hashes(blocks, chained)
        return chained
    hash_kernels.chain_hashes(blocks[:BLOCKS_AT_ONCE], chained[:BLOCKS_AT_ONCE])
    for at in range(BLOCKS_AT_ONCE, len(blocks), BLOCKS_AT_ONCE):
        # Each piece begins with the last hash of the piece before, which a chain leaves unchanged.
        link = np.concatenate([chained[at - 1 : at], blocks[at : at + BLOCKS_AT_ONCE]])
        rest = np.empty_like(link)
        hash_kernels.chain_hashes(link, rest)
        chained[at : at + BLOCKS_AT_ONCE] = rest[1:]
    return chained


def _hash_windows(tokens: Tokens, window: int, stride: int, seed: int, out: Hashes) -> None:
    """Hash windows in pieces: the kernel holds the interpreter lock, and a prompt may be long."""
    if len(out) <= BLOCKS_AT_ONCE:
        hash_kernels.hash_windows(tokens, window, stride, seed, out)
        return
    for at in range(0, len(out), BLOCKS_AT_ONCE):
        piece = out[at : at + BLOCKS_AT_ONCE]
        begin = at * stride
        end = begin + (len(piece) - 1) * stride + window
        hash_kernels.hash_windows(tokens[begin:end], window, stride, seed, piece)


def _hash_window(tokens: Tokens, at: int, window: int, mm_hashes: Iterable[int], seed: int) -> int:
    extra = b"".join(mm_hash.to_bytes(8, "little") for mm_hash in sorted(mm_hashes))
    message = tokens[at : at + window].astype("<u4", copy=False).tobytes() + extra
    return xxh3_64_intdigest(message, seed)
