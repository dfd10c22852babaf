"""Record of a rank's cache groups, for snapshots and dumps."""

from collections.abc import Iterable

import msgspec

from indexer.hashing.block_hashing import Tokens
from indexer.hashing.engine_names import ALGORITHMS, NameScheme
from indexer.hashing.seeds import U64_MASK
from indexer.index.header_kernels import LANES_MAX
from indexer.tiers import N_TIERS

GROUPS_MAX = 32
"""Limit of groups of a rank; real engines have a handful."""
WAITING_MAX = 4096
"""Limit of names of a rank that wait for a place."""
OPEN_BLOCKS_MAX = 1024
"""Limit of the unfinished blocks of a rank that keep their tokens."""
SIZE_MAX = 1 << 20
"""Limit of tokens per block, and of copies of a block, in a record."""
U32_MAX = 2**32 - 1

OpenBlock = tuple[int | None, Tokens]
"""Name of the block before, None at the start of a sequence, and the first tokens of the block."""


def count_lanes(tiers: Iterable[int | None]) -> int:
    """Return the number of lanes up to the highest of these tiers and lanes."""
    return max([0, *(tier - N_TIERS + 1 for tier in tiers if tier is not None)])


class GroupsRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Cache groups of a rank in snapshots and dumps.

    groups:  number, kind, window, size and tier of each
    scheme:  how the engine names prefixes, if known
    waiting: group, name and copies of the blocks of unknown place
    open_blocks: by name of the end of a part of a block, the name of the block before and the part
    unsized: groups of events that may all have been ends inside blocks
    lanes_are_named: lanes are placed by names alone; None in records without this field
    """

    groups: list[tuple[int, str, int | None, int, int | None]]
    sizes: list[int]
    lookahead: int = 0
    scheme: NameScheme | None = None
    ends_tier: int | None = None
    waiting: list[tuple[int, int, int]] = []
    overflowed: bool = False
    is_incomplete: bool = False
    open_blocks: dict[int, tuple[int | None, list[int]]] = {}
    unsized: list[int] = []
    lanes_are_named: bool | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes in use."""
        return count_lanes([*(tier for *_, tier in self.groups), self.ends_tier])

    def is_valid(self) -> bool:
        """Return whether all numbers are in range; the record may come from a foreign file."""
        tiers = [*(tier for *_, tier in self.groups), self.ends_tier]
        known = self.scheme is None or (
            self.scheme.algorithm in ALGORITHMS
            and 0 < self.scheme.unit <= SIZE_MAX
            and 0 <= self.scheme.lookahead <= SIZE_MAX
        )
        return (
            known
            and len(self.groups) <= GROUPS_MAX
            and len(self.waiting) <= WAITING_MAX
            and all(0 <= name <= U64_MASK and 0 < n <= SIZE_MAX for _, name, n in self.waiting)
            and len(self.open_blocks) <= OPEN_BLOCKS_MAX
            and all(0 <= (start or 0) <= U64_MASK for start, _ in self.open_blocks.values())
            and all(min(part, default=0) >= 0 for _, part in self.open_blocks.values())
            and all(max(part, default=0) <= U32_MAX for _, part in self.open_blocks.values())
            and all(len(tokens) <= SIZE_MAX for _, tokens in self.open_blocks.values())
            and all(0 < size <= SIZE_MAX for size in self.sizes)
            and all(0 < size <= SIZE_MAX for *_, size, _ in self.groups)
            and all(tier is None or 0 <= tier < N_TIERS + LANES_MAX for tier in tiers)
        )


def complete_record(record: GroupsRecord, open_blocks: dict[int, OpenBlock]) -> GroupsRecord:
    """Return the record with the unfinished blocks of the rank."""
    blocks = {name: (start, tokens.tolist()) for name, (start, tokens) in open_blocks.items()}
    return msgspec.structs.replace(record, open_blocks=blocks)
