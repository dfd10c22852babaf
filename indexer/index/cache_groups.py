"""Cache groups of a rank, learnt from its events, and the layout that the index needs of them.

Layers that share one block table are a group.  The first dense group is the rank's GPU tier; every
further group gets a lane of the same slot.  `KvCacheFacts` adds what events do not tell.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.hashing.engine_names import ALGORITHMS, DEFAULT_SEEDS, NameScheme, prove_scheme
from indexer.hashing.seeds import U64_MASK
from indexer.index import reuse_layout as kinds
from indexer.index.header_kernels import LANES_MAX
from indexer.index.kv_cache_facts import NO_FACTS, KvCacheFacts
from indexer.index.reuse_layouts import Lane, RankLayout
from indexer.tiers import N_TIERS

DENSE_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of attention for which all blocks of a prefix must be held.
Source: kv_cache_spec_kind of vLLM's KV events.
"""
DENSE_KIND = "full_attention"
UNKNOWN_KIND = "unknown"
"""Kind of a group beside the first one whose events do not tell it."""
WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
NARROW_KIND = "narrow_window"
"""Kind of a group with a smaller window than the widest one, of an engine that tells no kinds.
Its blocks are not followed, since nothing says how the engine reuses them.
"""
STATE_KINDS = frozenset({"mamba"})
CHUNKED_KINDS = frozenset({"chunked_local_attention"})
GROUPS_MAX = 32
"""Limit of groups of a rank; real engines have a handful."""
WAITING_MAX = 4096
"""Limit of names of a rank that wait for their place."""
OPEN_BLOCKS_MAX = 1024
"""Limit of unfinished blocks of a rank whose tokens are kept."""
SIZE_MAX = 1 << 20
"""Limit of tokens per block, and of copies of a block, in a record."""
U32_MAX = 2**32 - 1
POSITIONS_MAX = 1 << 31
"""Limit of lengths in a layout, far beyond any prompt, whatever an engine publishes."""
PROOFS_MAX = 8
"""Attempts to find out how an engine names prefixes, some milliseconds each."""

Name = tuple[int, int]
"""Group and engine hash of a block."""
Span = tuple[int | None, Hashes]
"""Name of the block before an event, None at the start of a sequence, and the event's blocks."""
OpenBlock = tuple[int | None, Tokens]
"""Name of the block before, None at the start of a sequence, and the first tokens of the block."""
FirstBlock = tuple[int, list[int], list[int]]
"""Name of a block that starts a sequence, its tokens, and those behind that the name covers."""


@dataclass(slots=True)
class CacheGroup:
    """Group of layers with one block table.

    size: tokens per block, the largest that was published
    tier: 0 for the dense group in the tree, else a lane; None without a lane
    """

    number: int
    kind: str
    window: int | None
    size: int
    tier: int | None

    @property
    def is_dense(self) -> bool:
        return self.kind in DENSE_KINDS

    @property
    def ends_inside_blocks(self) -> bool:
        """True for kinds with hits that may end inside a block."""
        return self.kind in DENSE_KINDS or self.kind in STATE_KINDS


def _count_lanes(tiers: Iterable[int | None]) -> int:
    """Return the number of lanes up to the highest of these tiers and lanes."""
    return max([0, *(tier - N_TIERS + 1 for tier in tiers if tier is not None)])


class GroupsRecord(msgspec.Struct, frozen=True, gc=False):
    """Cache groups of a rank in snapshots and dumps.

    groups:  number, kind, window, size and tier of each
    scheme:  how the engine names prefixes, if known
    waiting: group, name and copies of the blocks of unknown place
    open_blocks: by name of the end of a part of a block, the name of the block before and the part
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

    @property
    def lanes(self) -> int:
        """Number of lanes in use."""
        return _count_lanes([*(tier for *_, tier in self.groups), self.ends_tier])

    def is_valid(self) -> bool:
        """Return whether the numbers are in their ranges, as of a file that may be foreign."""
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
    """Return the record with the unfinished blocks of its rank."""
    blocks = {name: (start, tokens.tolist()) for name, (start, tokens) in open_blocks.items()}
    return msgspec.structs.replace(record, open_blocks=blocks)


@dataclass
class CacheGroups:
    """Groups of a rank.  Not thread-safe: of the thread that applies the rank's events."""

    block_size: int
    facts: KvCacheFacts = NO_FACTS
    groups: dict[int, CacheGroup] = field(default_factory=dict)
    lookahead: int = 0
    scheme: NameScheme | None = None
    """How the engine names prefixes, once proven; then lanes are placed by names alone."""
    sizes: set[int] = field(default_factory=set)
    """All block sizes that were published on the GPU."""
    unknown_lanes: set[int] = field(default_factory=set)
    """Groups with blocks of unknown place, which a match takes as held."""
    ends_tier: int | None = None
    """Lane of the dense group's ends inside blocks; None while they do not matter."""
    waiting: Counter[Name] = field(default_factory=Counter)
    """Copies of blocks, by group and name, whose place is unknown so far."""
    spans: dict[Name, Span] = field(default_factory=dict)
    """Parent and path of the events of single states, until the end of their batch."""
    open_blocks: dict[int, OpenBlock] = field(default_factory=dict)
    """Beginnings of unfinished blocks, by the name of the end of their last known part."""
    first_block: FirstBlock | None = None
    """First block of a sequence, to find out how the engine names prefixes."""
    proofs_left: int = PROOFS_MAX
    is_incomplete: bool = False
    """True if lanes may lack blocks from before, as of a dump that does not know them."""
    lanes_are_named: bool = False
    """True once lanes have been placed by names alone."""
    is_new: bool = True
    """True until the end of the first batch, whose later events may tell of further groups."""
    held_back: list[Any] = field(default_factory=list)
    """Events of lanes in the first batch, until its end."""
    overflowed: bool = False
    """True once a group found no lane, or more names wait for their place than are kept."""

    def clear(self) -> None:
        """Forget what waits for its place, since the rank holds nothing any more."""
        self.waiting.clear()
        self.spans.clear()
        self.open_blocks.clear()
        self.unknown_lanes.clear()
        self.held_back.clear()
        self.lanes_are_named = False
        self.is_incomplete = False

    def to_record(self) -> GroupsRecord:
        """Return what snapshots and dumps keep."""
        return GroupsRecord(
            groups=[(g.number, g.kind, g.window, g.size, g.tier) for g in self],
            sizes=sorted(self.sizes),
            lookahead=self.lookahead,
            scheme=self.scheme,
            ends_tier=self.ends_tier,
            waiting=[(number, name, n) for (number, name), n in self.waiting.items()],
            overflowed=self.overflowed,
            is_incomplete=self.is_incomplete or bool(self.held_back),
        )

    def copy_open_blocks(self) -> dict[int, OpenBlock]:
        """Return a copy, on any thread."""
        return self.open_blocks.copy()

    @classmethod
    def from_record(cls, record: GroupsRecord, block_size: int) -> "CacheGroups":
        """Return the groups of a snapshot or dump; a valid record is the caller's duty."""
        groups = cls(
            block_size,
            groups={row[0]: CacheGroup(*row) for row in record.groups},
            lookahead=record.lookahead,
            scheme=record.scheme,
            sizes=set(record.sizes),
            ends_tier=record.ends_tier,
            waiting=Counter({(number, name): n for number, name, n in record.waiting}),
            overflowed=record.overflowed,
            is_incomplete=record.is_incomplete,
            is_new=False,
            open_blocks={
                name: (start, np.array(tokens, np.uint32))
                for name, (start, tokens) in record.open_blocks.items()
            },
        )
        groups.lanes_are_named = groups.is_by_name
        return groups

    def replace_facts(self, facts: KvCacheFacts) -> None:
        """Take other facts of the registration, which may make names provable."""
        if facts.hash != self.facts.hash:
            self.proofs_left = PROOFS_MAX
        self.facts = facts

    def prove_names(self) -> bool:
        """Try to find out how the engine names prefixes; return whether it is known since now.

        Only ranks with ends inside blocks need it.
        """
        first = self.first_block
        if first is None or self.scheme is not None or not self.may_be_fine or not self.proofs_left:
            return False
        self.first_block = None
        algorithm, seed = self._registered_hash
        if algorithm is not None and algorithm not in ALGORITHMS:
            self.proofs_left = 0
            return False
        self.proofs_left -= 1
        seeds = DEFAULT_SEEDS if seed is None else tuple(dict.fromkeys((seed, *DEFAULT_SEEDS)))
        self.scheme = prove_scheme(*first, seeds)
        return self.scheme is not None

    @property
    def _registered_hash(self) -> tuple[str | None, str | None]:
        """Algorithm and seed of the registration, each None if not given."""
        hashing = self.facts.hash
        return (None, None) if hashing is None else (hashing.algorithm, hashing.seed)

    def __iter__(self) -> Iterator[CacheGroup]:
        return iter(self.groups.values())

    @property
    def is_in_first_batch(self) -> bool:
        """True from the first event of a group to the end of its batch."""
        return self.is_new and bool(self.groups)

    @property
    def dense(self) -> CacheGroup | None:
        """The dense group that is the rank's GPU tier; None if no group is dense so far."""
        return next((group for group in self if group.tier == 0), None)

    @property
    def lanes(self) -> int:
        """Number of lanes in use."""
        return _count_lanes([*(group.tier for group in self), self.ends_tier])

    @property
    def is_plain(self) -> bool:
        """True while the tree alone decides: at most one group, dense, whose matches all count."""
        limits = self.facts.eagle_drop or self.facts.replay > 0 or bool(self._rank_reasons())
        return not limits and all(group.tier == 0 for group in self)

    def guess_kind(self, number: int, window: int | None) -> str:
        """Return the kind of a group whose events tell none.

        TensorRT-LLM gives a window to every group: the widest is taken as dense, and an earlier
        one that is narrower is not followed any more.
        """
        group, dense = self.groups.get(number), self.dense
        if group is not None:
            return group.kind
        if window is None:
            return DENSE_KIND if number == 0 else UNKNOWN_KIND
        if dense is None or dense.window is None:
            return DENSE_KIND if dense is None else NARROW_KIND
        if window <= dense.window:
            return NARROW_KIND
        dense.kind, dense.tier = NARROW_KIND, None
        return DENSE_KIND

    def learn(self, number: int, kind: str, window: int | None, size: int) -> bool:
        """Learn from a stored event; return whether something about the groups is new."""
        group = self.groups.get(number)
        if group is not None:
            is_new = size > group.size or size not in self.sizes
            group.size = max(group.size, size)
            self.sizes.add(size)
            return is_new
        if len(self.groups) == GROUPS_MAX:
            self.overflowed = True
            return False
        group = CacheGroup(number, kind, window, size, None)
        if group.ends_inside_blocks and size < self.block_size:
            group.size = self.block_size
        is_first_dense = group.is_dense and self.dense is None
        if kind != NARROW_KIND:
            group.tier = 0 if is_first_dense else self._take_lane()
        self.groups[number] = group
        self.sizes.add(size)
        # Engines without states end hits at whole blocks, and make no use of other ends.
        if self.ends_tier is None and self.may_be_fine and self.dense is not None:
            self.ends_tier = self._take_lane()
        return True

    def _take_lane(self) -> int | None:
        if self.lanes == LANES_MAX:
            self.overflowed = True
            return None
        return N_TIERS + self.lanes

    # Rule.

    @property
    def unit(self) -> int:
        """Tokens of the unit by which the engine names prefixes, as far as known."""
        if self.scheme is not None:
            return self.scheme.unit
        return math.gcd(*self.sizes) if self.sizes else self.block_size

    @property
    def is_fine(self) -> bool:
        """True if reusable prefixes may end inside blocks."""
        unit = self.unit
        has_states = any(
            group.kind in STATE_KINDS and (group.size > unit or self.facts.context_parallel)
            for group in self
        )
        others = (group for group in self if not group.ends_inside_blocks)
        return len(self.groups) > 1 and has_states and all(g.size == unit for g in others)

    @property
    def is_by_name(self) -> bool:
        """True if lanes are placed by the engine's names alone."""
        return self.scheme is not None and self.is_fine and self.unit < self.block_size

    def _drops(self, group: CacheGroup) -> bool:
        """Return whether the engine drops the last match of a group."""
        facts = self.facts
        if not facts.eagle_drop:
            return False
        if facts.eagle_groups is None:
            return True
        equal = (g.number for g in self if self._spec(g) == self._spec(group))
        return any(number in facts.eagle_groups for number in equal)

    def _spec(self, group: CacheGroup) -> tuple[object, ...]:
        """Return what groups that are looked up together have in common."""
        drafts = self.facts.eagle_groups or ()
        is_apart = self.facts.eagle_apart and group.number in drafts
        return group.kind, group.window, group.size, is_apart

    def layout(self) -> RankLayout | None:
        """Return the layout for the index; None if the tree alone decides."""
        if self.is_plain:
            return None
        is_fine = self.is_fine
        units = self.block_size // self.unit if is_fine else 1
        position = self.block_size // units
        sizes = [group.size for group in self] or [self.block_size]
        align = position if is_fine else math.lcm(*sizes)
        dense = self.dense
        lanes = [self._lane(group, position) for group in self if group.tier not in (0, None)]
        bound = kinds.ALWAYS if self.bound_reasons() or align % position else kinds.NEVER
        if self.is_incomplete and lanes:
            bound = kinds.BLIND
        return RankLayout(
            align=min(max(1, align // position), POSITIONS_MAX),
            units=units,
            drop=self._dense_drop(),
            has_dense=dense is not None or not self.groups,
            is_single=len(self.groups) <= 1,
            replay=self.facts.replay,
            bound=bound,
            ends_tier=self.ends_tier or 0,
            scheme=self.scheme if self.is_by_name else None,
            lanes=tuple(lanes),
        )

    def _dense_drop(self) -> int:
        """Return the positions that must be held behind a hit, whatever the lanes are."""
        dense = self.dense
        if dense is None and len(self.groups) == 1:
            # A window that is the only group looks no further than the last token.
            return int(any(g.kind in WINDOW_KINDS and self._drops(g) for g in self))
        if dense is None:
            return int(self.facts.eagle_drop and not self.groups)
        return int(self._drops(dense))

    def _lane(self, group: CacheGroup, position: int) -> Lane:
        tier = group.tier
        assert tier is not None
        drop = int(self._drops(group))
        size = group.size // position
        if group.number in self.unknown_lanes or self.is_incomplete:
            return Lane(tier, kinds.UNKNOWN)
        if group.kind in STATE_KINDS:
            return Lane(tier, kinds.STATE)
        if group.is_dense:
            size = max(1, size)
            return Lane(tier, kinds.DENSE, size, 0, drop if self.is_fine else drop * size)
        if group.kind in CHUNKED_KINDS and self.facts.chunk and group.size == position:
            return Lane(tier, kinds.CHUNKED, 1, max(1, self.facts.chunk // position))
        if group.kind in WINDOW_KINDS and group.window and not self.has_hidden_parts(group):
            need = min(max(1, -(-(group.window - 1) // group.size)), POSITIONS_MAX)
            if group.size % position == 0:
                return Lane(tier, kinds.WINDOW, size, need, drop)
            if position % group.size == 0:
                parts = position // group.size
                return Lane(tier, kinds.WINDOW, 1, need, 0, parts, self.lookahead)
        return Lane(tier, kinds.UNKNOWN)

    def has_hidden_parts(self, group: CacheGroup) -> bool:
        """Return whether a window's blocks inside blocks of the tree cannot be matched."""
        is_finer = group.size < self.block_size and not group.ends_inside_blocks
        return is_finer and self.is_fine and self.scheme is None

    @property
    def may_be_fine(self) -> bool:
        """True if reusable prefixes may turn out to end inside blocks."""
        return any(group.kind in STATE_KINDS for group in self)

    def bound_reasons(self) -> tuple[str, ...]:
        """Return why the reusable prefix is an upper bound; empty if it is exact."""
        reasons = self._rank_reasons()
        for group in self:
            reasons += self._group_reasons(group) or self._size_reasons(group)
        return tuple(reasons)

    def _rank_reasons(self) -> list[str]:
        reasons = []
        if self.facts.certainty == "at_most":
            reasons.append("the registration says that events do not show all that limits a hit")
        if self.facts.may_drop and self.lookahead == 0:
            reasons.append(
                "the engine speculates and its events have no lookahead, so it may drop a block: "
                "give kv_cache.eagle_drop"
            )
        if self.overflowed:
            reasons.append("more groups or unplaced blocks than the index keeps")
        return reasons

    def _size_reasons(self, group: CacheGroup) -> list[str]:
        """Return why the sizes of a group's blocks leave it out of the rule."""
        position = self.unit if self.is_fine else self.block_size
        if group.tier == 0 or self._lane(group, position).kind != kinds.UNKNOWN:
            return []
        text = f"group {group.number} ({group.kind})"
        return [f"{text}: blocks of {group.size} tokens do not fit blocks of {self.block_size}"]

    def _group_reasons(self, group: CacheGroup) -> list[str]:
        text = f"group {group.number} ({group.kind})"
        if group.kind == NARROW_KIND:
            return [f"group {group.number}: how hits use its window of {group.window} is unknown"]
        if group.tier is None:
            return [f"{text} has no lane"]
        if self.is_incomplete and group.tier != 0:
            return [f"{text} may have blocks from before, which the recovered dump does not show"]
        if group.number in self.unknown_lanes:
            return [f"{text} has blocks that no event places"]
        if group.kind in CHUNKED_KINDS and not self.facts.chunk:
            return [f"{text}: the size of a chunk is unknown, give kv_cache.chunk"]
        if group.kind in WINDOW_KINDS:
            if not group.window:
                return [f"{text}: the size of the window is unknown"]
            if self._drops(group) and group.size < self.block_size:
                return [f"{text} drops its last match inside a block"]
            if self.has_hidden_parts(group):
                return [f"{text} ends inside blocks, and the engine's names are unknown"]
        elif not group.ends_inside_blocks and group.kind not in CHUNKED_KINDS:
            return [f"{text}: the kind is unknown"]
        shows_salts = self.dense is not None or self.scheme is not None or not self.facts.salted
        if group.kind in STATE_KINDS and not shows_salts:
            return [f"{text}: its events do not show salts"]
        return []
