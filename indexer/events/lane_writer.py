"""Blocks of a rank's cache groups beside the dense one: from events to lanes of the rank's slot.

One name stands for one prefix in all groups of a rank.  So a block of a lane is placed by its name:
at the node that the slot knows by it.  Where no block has the name yet:

* an event that lists every block says which tokens its names stand for, as a dense event does;
* unknown names of a window with finer blocks than the tree's stand directly before the next known
  one; a part of a block is a child of the block before, by its tokens;
* other names wait for the end of the batch, since groups are published in the order of their
  numbers; a single state that is still unknown then ends its event's tokens;
* the end of a prompt inside a block shows its last unit only.

What stays without a place makes the lane an unknown one: a match takes it as held, and says that
the answer is a bound.  Once the engine's names can be computed (`engine_names`), lanes of ranks
with ends inside blocks are placed by names alone.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.events.event_types import BlockRemoved, BlockStored, local_hashes
from indexer.hashing.block_hashing import Hashes, Tokens, compute_block_hashes
from indexer.index.block_tree import BlockTree, add_lane_step, holder_of
from indexer.index.cache_group_status import describe_groups
from indexer.index.cache_groups import OPEN_BLOCKS_MAX, WAITING_MAX, CacheGroup, CacheGroups, Name
from indexer.index.lane_kernels import UNKNOWN_NAME
from indexer.index.reuse_keys import name_key, part_key
from indexer.index.slot_writer import SlotWriter

NAMES_AT_ONCE = 256
"""Names that are placed one by one per step."""


_NO_TOKENS: Tokens = np.empty(0, np.uint32)


class _Span(NamedTuple):
    """Tokens of an event from the start of a block of the tree on.

    start:  name of the block before, None at the start of a sequence
    before: the tokens before the event's own, less than a block
    path:   content hashes of the whole blocks
    """

    start: int | None
    before: Tokens
    tokens: Tokens
    path: Hashes
    lists_all: bool


class LaneWriter:
    """Writer of the lanes of a rank, whose state is in its groups and in the index.

    Not thread-safe; the slot's writer takes the index's lock.
    """

    def __init__(self, groups: CacheGroups, writer: SlotWriter, is_eagle: bool) -> None:
        self.groups = groups
        self._writer = writer
        self._is_eagle = is_eagle

    # Layout.

    def open_lanes_in_steps(self) -> Iterator[int]:
        """Give the index planes for all lanes; yield the cost of each step."""
        try:
            while self._writer.change_tree(partial(add_lane_step, self.groups.lanes)):
                yield NAMES_AT_ONCE
        except MemoryError:
            self.groups.overflowed = True
            for group in self.groups:
                if group.tier not in (None, 0):
                    group.tier = None
            self.groups.ends_tier = None
            self.update_layout()

    @property
    def needs_lanes(self) -> bool:
        """True if a group's lane has no planes in the index yet."""
        lanes = self.groups.lanes
        return lanes > 0 and self._writer.change_tree(lambda tree: tree.lanes < lanes) == 1

    def update_layout(self) -> None:
        """Tell the index the groups as they are known now."""
        self.groups.unknown_lanes = {number for number, _ in self.groups.waiting}
        layout, size = self.groups.layout(), self.groups.block_size
        slot = self._writer.slot
        fits = self._writer.change_tree(lambda tree: tree.layouts.set_layout(slot, layout, size))
        self.groups.overflowed |= not fits and self._writer.is_open
        self._writer.groups_record = self.groups.to_record()
        self._writer.group_status = describe_groups(self.groups, layout)

    # Events.

    def store(self, event: BlockStored, group: CacheGroup, *, counted: bool) -> int:
        """Store the blocks of a lane's event; return the number recorded, waiting ones excluded.

        The caller splits long events, and `needs_lanes` must be False.
        """
        names = event.block_hashes
        if group.tier is None or not len(names):
            return 0
        if self.groups.is_by_name:
            return self._store_names(group.tier, names, counted)
        is_end = event.block_size < min(group.size, self.groups.block_size)
        if is_end and group.ends_inside_blocks:
            return self._store_end(event, group.tier, group.number, counted)
        if event.block_size < self.groups.block_size:
            return self._store_parts(event, group, counted)
        n_blocks = len(event.tokens) // event.block_size
        if n_blocks == len(names) and event.block_size == self.groups.block_size:
            hashes = local_hashes(event, event.block_size, self._is_eagle)
            return self._writer.store(
                group.tier, event.parent, hashes, names[: len(hashes)], counted=counted
            )
        stored = self._store_known(group, names, counted)
        if n_blocks and len(names) == 1 and self.groups.waiting[group.number, int(names[0])]:
            # A single block of a long span is its last one, unless another group names it.
            size = self.groups.block_size
            span = event.tokens[: n_blocks * event.block_size]
            path = compute_block_hashes(
                self._with_next(event, span),
                size,
                lora_name=event.lora_name,
                cache_salt=event.cache_salt,
                is_eagle=self._is_eagle,
            )
            self.groups.spans[group.number, int(names[0])] = event.parent, path
        return stored

    def store_dense_end(self, event: BlockStored, *, counted: bool) -> int:
        """Store the end of a prompt inside a block of the dense group."""
        tier = self.groups.ends_tier
        if tier is None or not len(event.block_hashes):
            return 0
        if self.groups.is_by_name:
            return self._store_names(tier, event.block_hashes, counted)
        dense = self.groups.dense
        return self._store_end(event, tier, -1 if dense is None else dense.number, counted)

    def remove(self, event: BlockRemoved, group: CacheGroup) -> int:
        """Undo announcements of a lane's blocks; return how many were known."""
        if group.tier is None:
            return 0
        removed = self._writer.remove(group.tier, event.block_hashes, sweep=False)
        if self.groups.waiting:
            for name in event.block_hashes.tolist():
                removed += self._forget_waiting((group.number, name))
        return removed

    def remove_dense_ends(self, names: Hashes) -> int:
        """Undo announcements of ends inside blocks of the dense group."""
        tier = self.groups.ends_tier
        return 0 if tier is None else self._writer.remove(tier, names, sweep=False)

    def finish_batch(self, *, counted: bool) -> None:
        """Place the waiting names that a later event of the batch has explained."""
        if not self.groups.waiting:
            return
        if self.groups.is_by_name:
            self._name_waiting(counted)
        while self._place_waiting(counted):
            pass
        for key, (parent, path) in self.groups.spans.items():
            if self.groups.waiting[key]:
                self._place_late(key, parent, path, counted)
        self.groups.spans.clear()
        while self._place_waiting(counted):
            pass
        self.update_layout()

    def prove_names(self) -> None:
        """Find out how the engine names prefixes, if ends inside blocks make that useful."""
        groups, slot = self.groups, self._writer.slot
        groups.prove_names()
        if groups.is_by_name and not groups.lanes_are_named:
            # Lanes that have blocks in the tree stay there.
            if self._writer.change_tree(lambda tree: tree.count_lane_blocks(slot)):
                groups.scheme, groups.proofs_left = None, 0
            else:
                groups.lanes_are_named = True
            self.update_layout()

    def note_first_block(self, event: BlockStored) -> None:
        """Keep the first block of a sequence without keys, to find out how names are made."""
        groups, size = self.groups, event.block_size
        if groups.scheme is not None or not groups.proofs_left or event.has_keys:
            return
        if size > groups.block_size:
            return  # a proof takes time for every token
        if len(event.tokens) // size != len(event.block_hashes):
            return  # the first name of an event that leaves blocks out may be of a later block
        ahead = [] if event.lookahead is None else event.lookahead[0].tolist()
        groups.first_block = int(event.block_hashes[0]), event.tokens[:size].tolist(), ahead

    # Placing.

    def _store_names(self, tier: int, names: Hashes, counted: bool) -> int:
        """Store blocks by their names alone, each as a child of the root."""
        stored = 0
        for name in names.tolist():
            stored += self._store_at(tier, None, name_key(name), name, counted)
        return stored

    def _store_at(self, tier: int, parent: int | None, local: int, name: int, counted: bool) -> int:
        one, local_one = np.array([name], np.uint64), np.array([local], np.uint64)
        return self._writer.store(tier, parent, local_one, one, counted=counted)

    def _store_known(self, group: CacheGroup, names: Hashes, counted: bool) -> int:
        """Store the blocks with known names; the others wait."""
        tier = group.tier
        assert tier is not None
        known = self._find_names(names)
        for name in names[~known].tolist():
            self._wait((group.number, name))
        return self._writer.store_known(tier, names[known], counted=counted)

    def _store_end(self, event: BlockStored, tier: int, number: int, counted: bool) -> int:
        """Store the end of a prompt inside a block: its last unit is all that the event shows."""
        name, size = int(event.block_hashes[-1]), event.block_size
        # Below, a window's part with this name would be found, and ends are matched elsewhere.
        is_beside_parts = any(map(self.groups.has_hidden_parts, self.groups))
        if self._is_dense(name) or (
            not is_beside_parts and self._find_names(event.block_hashes)[-1]
        ):
            return self._writer.store_known(tier, event.block_hashes[-1:], counted=counted)
        unit = compute_block_hashes(
            self._with_next(event, event.tokens[-size:]),
            size,
            lora_name=event.lora_name,
            is_eagle=self._is_eagle,
        )
        if not len(unit):
            return 0
        # Below a whole block; the parent may be an end inside a block as well.
        parent = event.parent
        if parent is not None and self._is_dense(parent):
            return self._store_at(tier, parent, int(unit[0]), name, counted)
        return self._store_at(tier, None, name_key(int(unit[0])), name, counted)

    def _is_dense(self, name: int) -> bool:
        """Return whether the dense group has a whole block of this name."""
        slot = self._writer.slot
        find = partial(BlockTree.has_block_name_in_tier, slot=slot, tier=0, engine_hash=name)
        return self._writer.change_tree(find) == 1

    def _with_next(self, event: BlockStored, tokens: Tokens) -> Tokens:
        """Return the last tokens of an event with those behind that its last name covers."""
        if event.lookahead is None or not self._is_eagle:
            return tokens
        return np.concatenate([tokens, event.lookahead[-1]])

    def _store_parts(self, event: BlockStored, group: CacheGroup, counted: bool) -> int:
        """Store blocks that are finer than those of the tree, below the block before each."""
        span = self._read_span(event)
        where = None if span is None else self._find_places(event, span)
        if span is None or where is None:
            for name in event.block_hashes.tolist():
                self._wait((group.number, name))
            return 0
        assert group.tier is not None
        size, stored = self.groups.block_size, 0
        known = self._find_names(event.block_hashes)
        bounds: dict[int, int] = {}
        """Names of block ends of the span, by their number in it."""
        ends = [len(span.before) + (at + 1) * event.block_size for at in where]
        names = event.block_hashes.tolist()
        for name, end, is_known in zip(names, ends, known.tolist(), strict=True):
            if end % size == 0 and is_known:
                bounds[end // size] = name
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            if end % size == 0:
                stored += self._store_bound(group, name, end // size, span, counted)
                continue
            holder = holder_of(self._writer.slot, group.tier, counted=counted)
            first = end // size
            part = span.tokens[first * size : end]
            if event.lookahead is not None:
                part = np.concatenate([part, event.lookahead[i]])
            local = part_key(part)
            stored += self._hold_part(holder, span, bounds, first, local, name)
        if ends and ends[-1] % size:
            first = ends[-1] // size
            start = span.start if first == 0 else bounds.get(first)
            if first == 0 or start is not None:
                self._remember_open(names[-1], start, span.tokens[first * size : ends[-1]])
        return stored

    def _store_bound(
        self, group: CacheGroup, name: int, block: int, span: _Span, counted: bool
    ) -> int:
        """Store a part that ends with a block of the tree."""
        assert group.tier is not None
        names = np.array([name], np.uint64)
        if self._find_names(names)[0]:
            return self._writer.store_known(group.tier, names, counted=counted)
        if span.lists_all and block <= len(span.path):
            holder = holder_of(self._writer.slot, group.tier, counted=counted)
            hold = partial(
                BlockTree.hold_descendant,
                holder=holder,
                parent=span.start,
                path=span.path[:block],
                name=name,
            )
            if self._writer.change_tree(hold) == 1:
                return 1
        self._wait((group.number, name))
        return 0

    def _hold_part(
        self,
        holder: int,
        span: _Span,
        bounds: dict[int, int],
        first: int,
        local: int,
        name: int,
    ) -> int:
        """Hold a part whose block begins at end `first` of the span."""
        if first in bounds or first == 0:
            parent = bounds[first] if first else span.start
            path = np.array([local], np.uint64)
            hold = partial(
                BlockTree.hold_descendant, holder=holder, parent=parent, path=path, name=name
            )
        elif any(end > first for end in bounds):
            anchor = min(end for end in bounds if end > first)
            hold = partial(
                BlockTree.hold_part,
                holder=holder,
                anchor=bounds[anchor],
                levels=anchor - first,
                local=local,
                name=name,
            )
        else:
            path = np.append(span.path[:first], np.uint64(local))
            hold = partial(
                BlockTree.hold_descendant, holder=holder, parent=span.start, path=path, name=name
            )
        return int(self._writer.change_tree(hold) == 1)

    def _read_span(self, event: BlockStored) -> _Span | None:
        """Return the tokens of an event from the start of a block on; None if it is unknown."""
        start, before = event.parent, _NO_TOKENS
        if start is not None and start in self.groups.open_blocks:
            start, before = self.groups.open_blocks[start]
        elif start is not None and not self._find_names(np.array([start], np.uint64))[0]:
            return None
        tokens = np.concatenate([before, event.tokens])
        n_blocks = len(event.tokens) // event.block_size
        lists_all = n_blocks == len(event.block_hashes)
        path = compute_block_hashes(
            self._with_next(event, tokens) if lists_all else tokens,
            self.groups.block_size,
            lora_name=event.lora_name,
            cache_salt=event.cache_salt,
            is_eagle=self._is_eagle,
        )
        return _Span(start, before, tokens, path, lists_all)

    def _find_places(self, event: BlockStored, span: _Span) -> list[int] | None:
        """Return which of the event's blocks its names are; None if that cannot be known.

        A window keeps tails: runs of blocks that end at a block that the dense group names too, its
        anchor; of a group that drops its last match, one block more.
        """
        names, size = event.block_hashes.tolist(), event.block_size
        if span.lists_all:
            return list(range(len(names)))
        block, offset = self.groups.block_size, len(span.before)
        where: list[int | None] = []
        for name in names:
            find = partial(
                BlockTree.count_levels,
                slot=self._writer.slot,
                parent=span.start,
                name=name,
                levels_max=len(span.tokens) // block,
            )
            levels = self._writer.change_tree(find)
            where.append((levels * block - offset) // size - 1 if levels else None)
        return _fill_places(where)

    def _remember_open(self, name: int, start: int | None, tokens: Tokens) -> None:
        """Remember the tokens of a block up to a part's end, for the event that continues it."""
        self.groups.open_blocks[name] = start, tokens.copy()
        if len(self.groups.open_blocks) > OPEN_BLOCKS_MAX:
            del self.groups.open_blocks[next(iter(self.groups.open_blocks))]

    def _name_waiting(self, counted: bool) -> None:
        """Store the waiting blocks by their names alone."""
        for (number, name), copies in self.groups.waiting.items():
            group = self.groups.groups.get(number)
            if group is not None and group.tier is not None:
                names = np.array([name], np.uint64)
                self._store_names(group.tier, names, counted)
                self._add_copies(group.tier, names, copies, counted)
        self.groups.waiting.clear()

    def _place_waiting(self, counted: bool) -> bool:
        """Place waiting names that are known by now; return whether any was."""
        names = np.array([name for _, name in self.groups.waiting], np.uint64)
        if not len(names):
            return False
        known = self._find_names(names)
        keys = [key for key, is_known in zip(self.groups.waiting, known, strict=True) if is_known]
        placed = False
        for number, name in keys:
            group = self.groups.groups.get(number)
            if group is None or group.tier is None or (number, name) not in self.groups.waiting:
                continue
            one, copies = np.array([name], np.uint64), self.groups.waiting.pop((number, name))
            self._writer.store_known(group.tier, one, counted=counted)
            self._add_copies(group.tier, one, copies, counted)
            placed = True
        return placed

    def _add_copies(self, tier: int, names: Hashes, copies: int, counted: bool) -> None:
        """Count the announcements of a block after its first, made while it waited."""
        if counted and copies > 1:
            self._writer.add_copies(tier, names, np.array([copies - 1], np.int64))

    def _place_late(self, key: Name, parent: int | None, path: Hashes, counted: bool) -> None:
        group = self.groups.groups.get(key[0])
        if group is None or group.tier is None or not len(path):
            return
        holder = holder_of(self._writer.slot, group.tier, counted=counted)
        hold = partial(
            BlockTree.hold_descendant, holder=holder, parent=parent, path=path, name=key[1]
        )
        if self._writer.change_tree(hold) not in (0, UNKNOWN_NAME):
            copies = self.groups.waiting.pop(key)
            self._add_copies(group.tier, np.array([key[1]], np.uint64), copies, counted)

    def _find_names(self, names: Hashes) -> NDArray[np.bool_]:
        return self._writer.keys.find_names(names)

    # Waiting.

    def _wait(self, key: Name) -> None:
        if len(self.groups.waiting) >= WAITING_MAX and key not in self.groups.waiting:
            self.groups.overflowed = True
            return
        self.groups.waiting[key] += 1

    def _forget_waiting(self, key: Name) -> int:
        if key not in self.groups.waiting:
            return 0
        self.groups.waiting[key] -= 1
        if self.groups.waiting[key] <= 0:
            del self.groups.waiting[key]
            self.groups.spans.pop(key, None)
            self.update_layout()
        return 1


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
