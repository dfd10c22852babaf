"""Contents of parts of blocks, and of blocks known by name alone, as children in the tree."""

from xxhash import xxh3_64_intdigest

from indexer.hashing.block_hashing import Tokens
from indexer.hashing.seeds import U64_MASK

PART_SEED = 0x9FB21C651E98DF25
NAME_KEY = 0xD6E8FEB86659FD93
_MULTIPLIER = 0x9E3779B97F4A7C15


def part_key(tokens: Tokens) -> int:
    """Return the content of the first tokens of a block, a child of the block before."""
    return xxh3_64_intdigest(tokens.astype("<u4", copy=False).tobytes(), PART_SEED)


def name_key(name: int) -> int:
    """Return the content of a block placed by name, or by the last unit, as a child of the root.

    Equal to the function of this name in `reuse_kernels`.
    """
    mixed = (name ^ NAME_KEY) * _MULTIPLIER & U64_MASK
    return mixed ^ mixed >> 32
