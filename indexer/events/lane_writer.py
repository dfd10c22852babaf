"""Blocks of a rank's sparse cache groups: from events to lanes of the rank's slot.

A name means the same prefix in all groups of a rank.  So a block of a lane is placed by name: at
the node with this name in the slot.  Where no block has the name yet:

* an event that lists every block shows the tokens of every name, as a dense event does;
* blocks finer than the tree's are placed by `part_writer`;
* other names wait for the end of the batch, since groups are published by number; a single state
that is still unknown then ends the event's tokens;
* the end of a prompt inside a block shows only the last unit.

A block without a place makes the lane unknown: a match takes the lane as held, and the answer is an
upper bound.  Once the engine's names can be computed (`engine_names`), lanes of ranks with ends
inside blocks are placed by names alone.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from indexer.events.event_types import BlockRemoved, BlockStored, local_hashes, lookahead_of
from indexer.events.part_writer import LATE_PARTS_MAX, PARTS_AT_ONCE, PartWriter
from indexer.events.store_identity import hash_continuation, inherited_salt
from indexer.hashing.block_hashing import Hashes, Tokens, compute_block_hashes
from indexer.index.block_tree import BlockTree, add_lane_step, holder_of
from indexer.index.cache_group import STATE_KINDS, CacheGroup
from indexer.index.cache_group_status import describe_groups
from indexer.index.cache_groups import CacheGroups
from indexer.index.lane_kernels import UNKNOWN_NAME
from indexer.index.rank_groups import Name
from indexer.index.reuse_keys import name_key
from indexer.index.slot_writer import SlotWriter

NAMES_AT_ONCE = 256
"""Names placed singly per step."""
WAITING_AT_ONCE = 1024
"""Waiting names that are looked up per step."""


class LaneWriter:
    """Writer of the lanes of a rank, with all state in the groups and the index.

    Not thread-safe; the slot's writer takes the index's lock.
    """

    def __init__(self, groups: CacheGroups, writer: SlotWriter, is_eagle: bool) -> None:
        self.groups = groups
        self._writer = writer
        self._is_eagle = is_eagle
        self._parts = PartWriter(groups, writer, is_eagle)

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
        """Give the index the groups as known now."""
        slot = self._writer.slot
        self._compare_placing()
        self.groups.unknown_lanes = {number for number, _ in self.groups.waiting}
        layout, size = self.groups.layout(), self.groups.block_size
        fits = self._writer.change_tree(lambda tree: tree.layouts.set_layout(slot, layout, size))
        self.groups.overflowed |= not fits and self._writer.is_open
        self._writer.groups_record = self.groups.to_record()
        self._writer.group_status = describe_groups(self.groups, layout)

    # Events.

    def store(self, event: BlockStored, group: CacheGroup, *, counted: bool) -> int:
        """Store the blocks of a lane's event; return the number recorded, without waiting blocks.

        The caller splits long events, and `needs_lanes` must be False.
        """
        names = event.block_hashes
        if group.tier is None or not len(names):
            return 0
        if self.groups.keeps_names:
            self.groups.note_names(group.tier, names.tolist())
        if self.groups.is_by_name:
            return self._store_names(group.tier, names, counted)
        if self._is_end(event, group):
            if group.size <= self.groups.block_size or self._find_names(names)[-1]:
                return self._store_end(event, group.tier, counted)
            # The dense group may publish a whole block of this name later in the batch.
            if len(self.groups.late_parts) < LATE_PARTS_MAX:
                self.groups.late_parts.append(event)
            self.groups.add_waiting((group.number, int(names[-1])))
            return 0
        if event.block_size < self.groups.block_size and group.kind in STATE_KINDS:
            # Only states at the ends of the tree's blocks matter, and such ends have known names.
            return self._store_known(group, names, counted)
        if event.block_size < self.groups.block_size:
            for _ in self._parts.store_in_steps(event, group, counted=counted):
                pass
            return 0
        n_blocks = len(event.tokens) // event.block_size
        if n_blocks == len(names) and event.block_size == self.groups.block_size:
            salt = inherited_salt(self._writer.keys, event)
            hashes = local_hashes(event, event.block_size, self._is_eagle, inherited=salt)
            return self._writer.store(
                group.tier, event.parent, hashes, names[: len(hashes)], counted=counted
            )
        stored = self._store_known(group, names, counted)
        if n_blocks and len(names) == 1 and self.groups.waiting[group.number, int(names[0])]:
            # A single block of a long span is the last block, unless another group has the name.
            size = self.groups.block_size
            span = event.tokens[: n_blocks * event.block_size]
            tokens, keys = self._with_next(event, span), self._writer.keys
            path = hash_continuation(keys, event, tokens, size, self._is_eagle)
            self.groups.spans[group.number, int(names[0])] = event.parent, path
        return stored

    def lists_parts(self, event: BlockStored, group: CacheGroup) -> bool:
        """Return whether an event's blocks are parts of blocks of the tree, placed singly."""
        is_finer = 0 < event.block_size < self.groups.block_size and group.tier not in (None, 0)
        return is_finer and not (self.groups.is_by_name or group.ends_inside_blocks)

    def store_parts_in_steps(
        self, event: BlockStored, group: CacheGroup, *, counted: bool
    ) -> Iterator[int]:
        """Store blocks that are parts of blocks of the tree; yield the names of each step."""
        if self.groups.keeps_names and group.tier is not None:
            self.groups.note_names(group.tier, event.block_hashes.tolist())
        yield from self._parts.store_in_steps(event, group, counted=counted)

    def store_dense_end(self, event: BlockStored, *, counted: bool) -> int:
        """Store the end of a prompt inside a block of the dense group."""
        tier, late = self.groups.ends_tier, self.groups.late_parts
        if tier is None and len(late) < LATE_PARTS_MAX:
            # A state at the same end is published later, and makes the end matter.
            late.append(event)
        if tier is None:
            return 0
        if self.groups.is_by_name:
            return self._store_names(tier, event.block_hashes, counted)
        self.groups.note_names(tier, event.block_hashes.tolist())
        return self._store_end(event, tier, counted)

    def remove(self, event: BlockRemoved, group: CacheGroup) -> int:
        """Undo announcements of a lane's blocks; return how many were known."""
        if group.tier is None:
            return 0
        removed = self._writer.remove(group.tier, event.block_hashes, sweep=False)
        if self.groups.keeps_names:
            self.groups.note_names(group.tier, event.block_hashes.tolist(), -1)
        if self.groups.waiting:
            forgotten = sum(
                self._forget_waiting((group.number, name)) for name in event.block_hashes.tolist()
            )
            if forgotten:
                self.update_layout()
            removed += forgotten
        return removed

    def remove_dense_ends(self, names: Hashes) -> int:
        """Undo announcements of ends inside blocks of the dense group."""
        tier, late = self.groups.ends_tier, self.groups.late_parts
        if late:
            self.groups.late_parts = [
                event
                for event in late
                if len(event.block_hashes) > 1 or event.block_hashes[0] not in names
            ]
        if tier is None:
            return 0
        self.groups.note_names(tier, names.tolist(), -1)
        return self._writer.remove(tier, names, sweep=False)

    def finish_batch(self, *, counted: bool) -> Iterator[int]:
        """Place what a later event of the batch has explained; yield the cost of each step."""
        try:
            yield from self._explain_waiting(counted)
        finally:
            # Also after a failed step: what is kept here explains blocks of this batch only.
            self.groups.late_parts.clear()
            self.groups.spans.clear()
            self.update_layout()

    def _explain_waiting(self, counted: bool) -> Iterator[int]:
        """Place waiting blocks: by known names, by the kept events, and again by known names."""
        groups = self.groups
        if groups.is_by_name:
            yield from self._name_waiting(counted)
        late, groups.late_parts = groups.late_parts, []
        parts = [event for event in late if not self._store_late_end(event, counted)]
        yield len(late)
        yield from self._place_waiting(counted)
        for event in parts:
            group = groups.groups.get(event.group_idx or 0)
            if group is not None:
                yield from self._parts.store_late_in_steps(event, group, counted=counted)
            yield len(event.block_hashes) % PARTS_AT_ONCE
        spans, groups.spans = groups.spans, {}
        for key, (parent, path) in spans.items():
            if groups.waiting[key]:
                self._place_late(key, parent, path, counted)
            yield 1
        if late or spans:
            yield from self._place_waiting(counted)

    def prove_names(self) -> None:
        """Find out how the engine names prefixes, if ends inside blocks make that useful."""
        self.groups.prove_names()
        if self.groups.is_by_name != self.groups.lanes_are_named:
            self.update_layout()

    def _compare_placing(self) -> None:
        """Let all lanes be placed in the same way: by names, or in the tree."""
        groups, slot = self.groups, self._writer.slot
        if groups.is_by_name == groups.lanes_are_named:
            return
        has_blocks = self._writer.change_tree(lambda tree: tree.count_lane_blocks(slot)) > 0
        if has_blocks and groups.is_by_name and groups.unnamed is not None:
            self._move_to_names(groups.unnamed)
        elif has_blocks and groups.is_by_name:
            groups.scheme, groups.proofs_left = None, 0
        elif has_blocks:
            # A new group, or another fact, ended hits inside blocks: the blocks are not found now.
            groups.is_incomplete = True
        groups.lanes_are_named = groups.is_by_name

    def _move_to_names(self, held: Counter[tuple[int, int]]) -> None:
        """Place the blocks of all lanes by name, now that names can be computed."""
        for lane in {tier for tier, _ in held}:
            rows = [(name, copies) for (tier, name), copies in held.items() if tier == lane]
            names = np.array([name for name, _ in rows], np.uint64)
            copies = np.array([copies for _, copies in rows], np.int64)
            self._writer.remove(lane, np.repeat(names, copies), sweep=False)
            self._store_names(lane, names, counted=True)
            # `_store_names` has announced each name once.
            self._writer.add_copies(lane, names, copies - 1)
        self.groups.waiting.clear()
        self.groups.unnamed = Counter()

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
        """Store blocks by name alone, each as a child of the root."""
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
            self.groups.add_waiting((group.number, name))
        return self._writer.store_known(tier, names[known], counted=counted)

    def _is_end(self, event: BlockStored, group: CacheGroup) -> bool:
        """Return whether an event is about the end of a prompt inside a block of the group."""
        whole = min(group.size, self.groups.block_size)
        return group.ends_inside_blocks and event.block_size < whole

    def _store_late_end(self, event: BlockStored, counted: bool) -> bool:
        """Store a postponed end, now that dense blocks are known; return False for other events.

        Names of other groups do not place an end, because parts of those groups are elsewhere.
        """
        group = self.groups.groups.get(event.group_idx or 0)
        if group is None or not self._is_end(event, group):
            return False
        if group.tier == 0:
            self.store_dense_end(event, counted=counted)
        elif group.tier is not None and (group.number, int(event.block_hashes[-1])) in (
            self.groups.waiting
        ):
            self._store_end(event, group.tier, counted)
            self._take_waiting(group, event.block_hashes[-1:], counted)
        return True

    def _store_end(self, event: BlockStored, tier: int, counted: bool) -> int:
        """Store the end of a prompt inside a block, of which the event shows only the last unit."""
        name, size = int(event.block_hashes[-1]), event.block_size
        # The name search below would find a window's part, but ends are matched elsewhere.
        is_beside_parts = any(map(self.groups.has_hidden_parts, self.groups))
        if self._is_dense(name) or (
            not is_beside_parts and self._find_names(event.block_hashes)[-1]
        ):
            return self._writer.store_known(tier, event.block_hashes[-1:], counted=counted)
        unit = compute_block_hashes(
            self._with_next(event, event.tokens[-size:]),
            size,
            lora_name=event.lora_name,
            lookahead=lookahead_of(event, self._is_eagle),
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
        """Return the last tokens of an event with the tokens behind that the last name covers."""
        if event.lookahead is None or not self._is_eagle:
            return tokens
        return np.concatenate([tokens, event.lookahead[-1]])

    def _name_waiting(self, counted: bool) -> Iterator[int]:
        """Store the waiting blocks by name alone; yield the cost of each step."""
        for number, group in self.groups.groups.items():
            names = [name for held_by, name in self.groups.waiting if held_by == number]
            for start in range(0, len(names), NAMES_AT_ONCE):
                part = np.array(names[start : start + NAMES_AT_ONCE], np.uint64)
                if group.tier is not None:
                    self._store_names(group.tier, part, counted)
                    self._take_waiting(group, part, counted)
                yield len(part)
        self.groups.waiting.clear()

    def _place_waiting(self, counted: bool) -> Iterator[int]:
        """Place waiting names that are known by now; yield the cost of each step."""
        keys = list(self.groups.waiting)
        for start in range(0, len(keys), WAITING_AT_ONCE):
            part = keys[start : start + WAITING_AT_ONCE]
            names = np.array([name for _, name in part], np.uint64)
            numbers = np.array([number for number, _ in part], np.int64)
            known = self._find_names(names)
            for number in np.unique(numbers[known]).tolist():
                group = self.groups.groups.get(number)
                if group is not None and group.tier is not None:
                    placed = names[known & (numbers == number)]
                    self._writer.store_known(group.tier, placed, counted=counted)
                    self._take_waiting(group, placed, counted)
            yield len(part)

    def _take_waiting(self, group: CacheGroup, names: Hashes, counted: bool) -> None:
        """Let names wait no longer that have been stored once; count further copies."""
        assert group.tier is not None
        waiting = self.groups.waiting
        copies = [waiting.pop((group.number, name)) for name in names.tolist()]
        if counted:
            self._writer.add_copies(group.tier, names, np.array(copies, np.int64) - 1)

    def _place_late(self, key: Name, parent: int | None, path: Hashes, counted: bool) -> None:
        group = self.groups.groups.get(key[0])
        if group is None or group.tier is None or not len(path):
            return
        holder = holder_of(self._writer.slot, group.tier, counted=counted)
        hold = partial(
            BlockTree.hold_descendant, holder=holder, parent=parent, path=path, name=key[1]
        )
        if self._writer.change_tree(hold) not in (0, UNKNOWN_NAME):
            self._take_waiting(group, np.array([key[1]], np.uint64), counted)

    def _find_names(self, names: Hashes) -> NDArray[np.bool_]:
        return self._writer.keys.find_names(names)

    # Waiting.

    def _forget_waiting(self, key: Name) -> int:
        if key not in self.groups.waiting:
            return 0
        self.groups.waiting[key] -= 1
        if self.groups.waiting[key] <= 0:
            del self.groups.waiting[key]
            self.groups.spans.pop(key, None)
        return 1
