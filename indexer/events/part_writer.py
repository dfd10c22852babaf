"""Blocks of a lane that are finer than the blocks of the tree: finding places, and storing.

A part of a block is a child of the block before, by the part's tokens.  An event of a window lists
tails only: runs of blocks that end where a block of the tree ends.  So unknown names belong right
before the next known name, provided that the rank's dense group holds every block of the span: then
each name at the end of a block is known.  Names without an explanation are tried again at the end
of the batch, since the dense group's event may come later in the batch, and wait thereafter.
"""

from collections.abc import Generator, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.events.event_types import BlockStored
from indexer.events.store_identity import hash_continuation
from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.index.block_tree import BlockTree, holder_of
from indexer.index.cache_group import CacheGroup
from indexer.index.cache_groups import CacheGroups
from indexer.index.groups_record import OPEN_BLOCKS_MAX
from indexer.index.lane_kernels import UNKNOWN_NAME
from indexer.index.reuse_keys import part_key
from indexer.index.slot_writer import SlotWriter

LATE_PARTS_MAX = 256
"""Limit of events tried again at the end of a batch; names of further events wait at once."""
PARTS_AT_ONCE = 128
"""Names placed singly per step."""
_NO_TOKENS: Tokens = np.empty(0, np.uint32)


class _Span(NamedTuple):
    """Tokens of an event from the start of a block of the tree on.

    start:  name of the block before, None at the start of a sequence
    before: the tokens before the event's own, less than a block
    path:   content hashes of the whole blocks
    ends:   last token of each block of the event, counted from the span's start
    bounds: known names, by the number of the tree's block that ends there
    """

    start: int | None
    before: Tokens
    tokens: Tokens
    path: Hashes
    lists_all: bool
    ends: list[int]
    bounds: dict[int, int]


class PartWriter:
    """Writer of a rank's blocks within blocks of the tree.  Not thread-safe."""

    def __init__(self, groups: CacheGroups, writer: SlotWriter, is_eagle: bool) -> None:
        self._groups = groups
        self._writer = writer
        self._is_eagle = is_eagle

    def store_in_steps(
        self, event: BlockStored, group: CacheGroup, *, counted: bool
    ) -> Iterator[int]:
        """Store an event's blocks, or let blocks wait; yield the names that each step placed."""
        groups, span = self._groups, (yield from self._place(event))
        if span is None and len(groups.late_parts) < LATE_PARTS_MAX:
            groups.late_parts.append(event)
        for i, name in enumerate(event.block_hashes.tolist(), 1):
            if span is None or not self._store_part(event, i - 1, group, span, counted):
                groups.add_waiting((group.number, name))
            if i % PARTS_AT_ONCE == 0:
                yield PARTS_AT_ONCE

    def store_late_in_steps(
        self, event: BlockStored, group: CacheGroup, *, counted: bool
    ) -> Iterator[int]:
        """Store the waiting blocks of an applied event that have a place now."""
        waiting, span = self._groups.waiting, (yield from self._place(event))
        if span is None or group.tier is None:
            return
        for i, name in enumerate(event.block_hashes.tolist()):
            if i % PARTS_AT_ONCE == 0:
                yield PARTS_AT_ONCE
            key = group.number, name
            if key in waiting and self._store_part(event, i, group, span, counted):
                further = np.array([waiting.pop(key) - 1], np.int64)
                if counted and further[0]:
                    self._writer.add_copies(group.tier, np.array([name], np.uint64), further)

    def _place(self, event: BlockStored) -> Generator[int, None, _Span | None]:
        """Return where an event's blocks are; None if that cannot be known so far."""
        begun = self._read_start(event)
        if begun is None:
            return None
        start, before = begun
        size, block = event.block_size, self._groups.block_size
        tokens = np.concatenate([before, event.tokens])
        names = event.block_hashes.tolist()
        lists_all = len(event.tokens) // size == len(names)
        where: list[int] | None = list(range(len(names)))
        if not lists_all:
            where = yield from self._find_tails(event, start, tokens)
        if where is None:
            return None
        ends = [len(before) + (at + 1) * size for at in where]
        known = self._find_names(event.block_hashes).tolist()
        bounds = {
            end // block: name
            for name, end, is_known in zip(names, ends, known, strict=True)
            if is_known and end % block == 0
        }
        content = tokens
        if lists_all and event.lookahead is not None and self._is_eagle:
            # EAGLE blocks are hashed with the tokens behind, which only the lookahead has.
            content = np.concatenate([tokens, event.lookahead[-1]])
        path = hash_continuation(self._writer.keys, event, content, block, self._is_eagle)
        return _Span(start, before, tokens, path, lists_all, ends, bounds)

    def _read_start(self, event: BlockStored) -> tuple[int | None, Tokens] | None:
        """Return the block before an event and the tokens between; None for an unknown block."""
        groups, parent = self._groups, event.parent
        if parent is None:
            return None, _NO_TOKENS
        if parent in groups.open_blocks:
            return groups.open_blocks[parent]
        if groups.dense is not None:
            # Another group's block of this name may end inside a block of the tree.
            find = partial(
                BlockTree.has_block_name_in_tier,
                slot=self._writer.slot,
                tier=0,
                engine_hash=parent,
            )
            is_end = self._writer.change_tree(find) == 1
        else:
            is_end = len(groups.open_blocks) < OPEN_BLOCKS_MAX
            is_end = is_end and bool(self._find_names(np.array([parent], np.uint64))[0])
        return (parent, _NO_TOKENS) if is_end else None

    def _find_tails(
        self, event: BlockStored, start: int | None, tokens: Tokens
    ) -> Generator[int, None, list[int] | None]:
        """Return the positions of the event's names among the blocks; None if not certain."""
        block, size = self._groups.block_size, event.block_size
        offset = len(tokens) - len(event.tokens)
        where: list[int | None] = []
        for name in event.block_hashes.tolist():
            if where and len(where) % PARTS_AT_ONCE == 0:
                yield PARTS_AT_ONCE
            find = partial(
                BlockTree.count_levels,
                slot=self._writer.slot,
                parent=start,
                name=name,
                levels_max=len(tokens) // block,
            )
            levels = self._writer.change_tree(find)
            where.append((levels * block - offset) // size - 1 if levels else None)
        return _fill_places(where)

    def _store_part(
        self, event: BlockStored, i: int, group: CacheGroup, span: _Span, counted: bool
    ) -> int:
        """Store a block of an event; return 0 if there is no place, else 1, even if refused."""
        assert group.tier is not None
        block, end, name = self._groups.block_size, span.ends[i], int(event.block_hashes[i])
        first = end // block
        holder = holder_of(self._writer.slot, group.tier, counted=counted)
        if end % block == 0:
            return self._store_end(holder, group.tier, name, first, span, counted)
        part = span.tokens[first * block : end]
        if i == len(span.ends) - 1 and (first == 0 or first in span.bounds):
            self._remember_open(name, span.bounds[first] if first else span.start, part)
        if event.lookahead is not None:
            part = np.concatenate([part, event.lookahead[i]])
        return self._hold_part(holder, span, first, part_key(part), name)

    def _store_end(
        self, holder: int, tier: int, name: int, block: int, span: _Span, counted: bool
    ) -> int:
        """Store a part that ends with a block of the tree."""
        names = np.array([name], np.uint64)
        if self._find_names(names)[0]:
            self._writer.store_known(tier, names, counted=counted)
            return 1
        if not self._shows_path(span) or block > len(span.path):
            return 0
        return self._hold(holder, parent=span.start, path=span.path[:block], name=name)

    def _shows_path(self, span: _Span) -> bool:
        """Return whether the span's tokens alone decide about the span's blocks.

        The salt of a sequence is only in the first event; later blocks are found by name.
        """
        return span.lists_all and (span.start is None or self._groups.dense is None)

    def _hold_part(self, holder: int, span: _Span, first: int, local: int, name: int) -> int:
        """Hold a part of the block at end `first` of the span; return 0 without a place."""
        if first == 0 or first in span.bounds:
            parent = span.bounds[first] if first else span.start
            return self._hold(holder, parent, np.array([local], np.uint64), name)
        later = [end for end in span.bounds if end > first]
        if later:
            anchor = min(later)
            hold = partial(
                BlockTree.hold_part,
                holder=holder,
                anchor=span.bounds[anchor],
                levels=anchor - first,
                local=local,
                name=name,
            )
            return int(self._writer.change_tree(hold) != UNKNOWN_NAME)
        if not self._shows_path(span):
            return 0
        path = np.append(span.path[:first], np.uint64(local))
        return self._hold(holder, span.start, path, name)

    def _hold(self, holder: int, parent: int | None, path: Hashes, name: int) -> int:
        hold = partial(
            BlockTree.hold_descendant, holder=holder, parent=parent, path=path, name=name
        )
        return int(self._writer.change_tree(hold) != UNKNOWN_NAME)

    def _remember_open(self, name: int, start: int | None, tokens: Tokens) -> None:
        """Remember the tokens of a block up to a part's end, for the event that continues there."""
        self._groups.open_blocks[name] = start, tokens.copy()
        if len(self._groups.open_blocks) > OPEN_BLOCKS_MAX:
            del self._groups.open_blocks[next(iter(self._groups.open_blocks))]

    def _find_names(self, names: Hashes) -> NDArray[np.bool_]:
        return self._writer.keys.find_names(names)


def _fill_places(where: list[int | None]) -> list[int] | None:
    """Fill the places of names directly before an anchor; None if that is not possible."""
    for i in range(len(where) - 2, -1, -1):
        following = where[i + 1]
        if where[i] is None and following is not None:
            where[i] = following - 1
    found = [at for at in where if at is not None]
    if len(found) < len(where) or found[0] < 0:
        return None
    return found if all(a < b for a, b in pairwise(found)) else None
