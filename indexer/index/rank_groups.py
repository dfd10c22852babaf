"""Cache groups of a rank, learnt from events.

Layers that share a block table are a group.  The first dense group is the rank's GPU tier; every
further group gets a lane of the same slot.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.hashing.engine_names import ALGORITHMS, DEFAULT_SEEDS, NameScheme, prove_scheme
from indexer.index.cache_group import (
    DENSE_KIND,
    NARROW_KIND,
    STATE_KINDS,
    UNKNOWN_KIND,
    CacheGroup,
)
from indexer.index.groups_record import (
    GROUPS_MAX,
    WAITING_MAX,
    GroupsRecord,
    OpenBlock,
    count_lanes,
)
from indexer.index.header_kernels import LANES_MAX
from indexer.index.kv_cache_facts import NO_FACTS, KvCacheFacts
from indexer.tiers import N_TIERS

UNNAMED_MAX = 512
"""Limit of names of a rank's lanes that are kept until the naming is proven."""
PROOFS_MAX = 8
"""Attempts to find out how an engine names prefixes, some milliseconds each."""

Name = tuple[int, int]
"""Group and engine hash of a block."""
Span = tuple[int | None, Hashes]
"""Name of the block before an event, None at the start of a sequence, and the event's blocks."""
FirstBlock = tuple[int, list[int], list[int]]
"""First block of a sequence: name, tokens, and the tokens behind that the name covers."""


@dataclass
class RankGroups:
    """Groups of a rank as shown by events, and blocks and events that wait for a place.

    Not thread-safe: of the thread that applies the rank's events.
    """

    block_size: int
    facts: KvCacheFacts = NO_FACTS
    groups: dict[int, CacheGroup] = field(default_factory=dict)
    lookahead: int = 0
    ignores_lookahead: bool = False
    """True if blocks are registered without the tokens behind that the names cover."""
    differs_ahead: bool = False
    """True if names cover more or fewer tokens behind a block than prompts are hashed with."""
    doubt: str | None = None
    """Why events may be missing; None if none are."""
    is_array_form: bool = False
    """True if events are arrays, as of older versions of vLLM."""
    scheme: NameScheme | None = None
    """How the engine names prefixes, once proven; then lanes are placed by names alone."""
    sizes: set[int] = field(default_factory=set)
    """All block sizes that were published on the GPU."""
    unknown_lanes: set[int] = field(default_factory=set)
    """Groups with blocks of unknown place, which a match takes as held."""
    ends_tier: int | None = None
    """Lane of the dense group's ends inside blocks; None while such ends do not matter."""
    waiting: Counter[Name] = field(default_factory=Counter)
    """Copies of blocks of unknown place, by group and name."""
    late_parts: list[Any] = field(default_factory=list)
    """Events of blocks finer than the tree's, and of ends inside blocks, until the batch ends."""
    spans: dict[Name, Span] = field(default_factory=dict)
    """Parent and path of the events of single states, until the end of the batch."""
    open_blocks: dict[int, OpenBlock] = field(default_factory=dict)
    """Beginnings of unfinished blocks, by the name of the end of the last known part."""
    first_block: FirstBlock | None = None
    """First block of a sequence, to find out how the engine names prefixes."""
    proofs_left: int = PROOFS_MAX
    is_incomplete: bool = False
    """True if lanes may lack earlier blocks, such as blocks missing in a dump."""
    unnamed: Counter[tuple[int, int]] | None = field(default_factory=Counter)
    """Copies of all blocks of lanes, by lane and name, until names are proven, so that the blocks
    can then be placed by name.  None if there are too many, or some earlier blocks are missing.
    """
    lanes_are_named: bool = False
    """True once lanes have been placed by names alone."""
    is_new: bool = True
    """True until the end of the first batch: its later events may show further groups."""
    held_back: list[Any] = field(default_factory=list)
    """Events of lanes in the first batch, until the end of the batch."""
    overflowed: bool = False
    """True once a group found no lane, or more names wait for a place than are kept."""

    def clear(self) -> None:
        """Forget everything that waits for a place, since the rank holds nothing any more."""
        self.waiting.clear()
        self.spans.clear()
        self.late_parts.clear()
        self.open_blocks.clear()
        self.unknown_lanes.clear()
        self.unnamed = Counter()
        self.held_back.clear()
        self.lanes_are_named = self.is_by_name
        self.is_incomplete = False

    def add_waiting(self, key: Name) -> None:
        """Note a block of unknown place, or a further copy."""
        if len(self.waiting) >= WAITING_MAX and key not in self.waiting:
            self.overflowed = True
            return
        self.waiting[key] += 1

    @property
    def keeps_names(self) -> bool:
        """True while names of lanes are kept, since a later prompt may prove the naming."""
        may_prove = self.scheme is not None or self.proofs_left > 0
        return self.unnamed is not None and self.may_be_fine and may_prove and not self.is_by_name

    def note_names(self, tier: int, names: Iterable[int], copies: int = 1) -> None:
        """Note blocks that were announced in a lane, or removed from the lane (-1), by name."""
        if self.unnamed is None or not self.keeps_names:
            return
        for name in names:
            self.unnamed[tier, name] += copies
            if self.unnamed[tier, name] <= 0:
                del self.unnamed[tier, name]
        if len(self.unnamed) > UNNAMED_MAX:
            self.unnamed = None

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
            unsized=[group.number for group in self if not group.is_sized],
            lanes_are_named=self.lanes_are_named,
        )

    def copy_open_blocks(self) -> dict[int, OpenBlock]:
        """Return a copy, on any thread."""
        return self.open_blocks.copy()

    @classmethod
    def from_record(cls, record: GroupsRecord, block_size: int) -> Self:
        """Return the groups of a snapshot or dump; a valid record is the caller's duty."""
        groups = cls(
            block_size,
            groups={
                row[0]: CacheGroup(*row, is_sized=row[0] not in record.unsized)
                for row in record.groups
            },
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
        for (number, name), copies in groups.waiting.items():
            group = groups.groups.get(number)
            if group is not None and group.tier is not None:
                groups.note_names(group.tier, [name], copies)
        named = record.lanes_are_named
        groups.lanes_are_named = groups.is_by_name if named is None else named
        return groups

    def replace_facts(self, facts: KvCacheFacts) -> None:
        """Take other facts of the registration, which may make names provable."""
        if facts.hash != self.facts.hash:
            self.proofs_left = PROOFS_MAX
        self.facts = facts

    def prove_names(self) -> bool:
        """Try to find out how the engine names prefixes; return whether this call proved it.

        Only ranks with ends inside blocks need the naming.
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
        """True from the first event of a group to the end of the batch."""
        return self.is_new and bool(self.groups)

    @property
    def dense(self) -> CacheGroup | None:
        """The dense group that is the rank's GPU tier; None if no group is dense so far."""
        return next((group for group in self if group.tier == 0), None)

    @property
    def lanes(self) -> int:
        """Number of lanes in use."""
        return count_lanes([*(group.tier for group in self), self.ends_tier])

    def guess_kind(self, number: int, window: int | None) -> str:
        """Return the kind of a group with events that show no kind.

        TensorRT-LLM gives a window to every group: the widest is taken as dense, and a narrower
        group found earlier is not followed any more.
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

    def learn(
        self, number: int, kind: str, window: int | None, size: int, *, is_run: bool = True
    ) -> bool:
        """Learn from a stored event; return whether something about the groups is new.

        is_run: the event has the tokens of several blocks, so that it is no end inside a block
        """
        group = self.groups.get(number)
        if group is not None:
            return self._learn_size(group, size, is_run)
        if len(self.groups) == GROUPS_MAX:
            self.overflowed = True
            return False
        group = CacheGroup(number, kind, window, size, None)
        # A first event of this size may be an end inside a larger block: the size stays open.
        if group.ends_inside_blocks and size < self.block_size and not is_run:
            group.size, group.is_sized = self.block_size, False
        self.groups[number] = group
        self.sizes.add(size)
        self._free_tree()
        if kind != NARROW_KIND:
            group.tier = 0 if group.is_dense and self.dense is None else self._take_lane()
        # Engines without states end hits at whole blocks, and make no use of other ends.
        if self.ends_tier is None and self.may_be_fine and self.dense is not None:
            self.ends_tier = self._take_lane()
        return True

    def _learn_size(self, group: CacheGroup, size: int, is_run: bool) -> bool:
        """Learn from an event of a known group; return whether something is new."""
        is_new = size > group.size or size not in self.sizes
        self.sizes.add(size)
        if not group.is_sized and (is_run or size >= self.block_size):
            group.size, group.is_sized = size, True
            self._free_tree()
            return True
        group.size = max(group.size, size)
        if is_new:
            self._free_tree()
        return is_new

    def _free_tree(self) -> None:
        """Take the tree from a dense group of other blocks, if another group fits the tree's size.

        Nothing of the group was stored there.
        """
        dense, size = self.dense, self.block_size
        if dense is None or dense.size == size:
            return
        if any(group.is_dense and group.size == size for group in self):
            dense.tier = None

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

    @property
    def may_be_fine(self) -> bool:
        """True if reusable prefixes may turn out to end inside blocks."""
        return any(group.kind in STATE_KINDS for group in self)
