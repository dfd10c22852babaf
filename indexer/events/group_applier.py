"""Application of events to the cache groups of ranks: learns groups, and feeds the lanes.

`batch_applier` decides the tier of an event; this module decides the cache group, and applies
everything beside the rank's dense blocks in the tree.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeGuard

from msgspec.structs import replace

from indexer.events.dropped_events import DroppedEvents
from indexer.events.event_types import BlockRemoved, BlockStored, split_names
from indexer.events.lane_writer import NAMES_AT_ONCE, LaneWriter
from indexer.events.part_writer import PARTS_AT_ONCE
from indexer.hashing.block_hashing import Hashes
from indexer.index.block_tree import BlockTree
from indexer.index.cache_group import CacheGroup
from indexer.index.cache_groups import CacheGroups
from indexer.index.kv_cache_facts import KvCacheFacts
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier, tier_of_medium

SHORT_END_NAMES_MAX = 64
"""Limit of names without a place for which a batch ends in the step of the last event."""
PART_COST = 4096
"""Cost of a part of a lane's event, with names that are placed singly, in blocks."""


class GroupApplier:
    """Applier of a stream's events to cache groups.  Not thread-safe."""

    def __init__(
        self,
        block_size: int,
        is_eagle: bool,
        facts: KvCacheFacts,
        drops: DroppedEvents,
        on_new_group: Callable[[], None],
    ) -> None:
        """on_new_group: called when an event shows something new about the groups of a rank"""
        self._block_size = block_size
        self._is_eagle = is_eagle
        self._facts = facts
        self._drops = drops
        self._on_new_group = on_new_group
        self.inside_block_events = 0
        """Stored events of the end of a prompt inside a block."""
        self.shown_doubt: str | None = None
        """Why events of the rank may be missing, as shown by the groups; None if none are."""

    def forget_groups(self, writer: SlotWriter) -> None:
        """Reset the cache groups of a rank to the facts of the registration."""
        writer.cache_groups = writer.groups_record = None
        writer.lacks_groups = False
        self.begin_groups(writer)

    def begin_groups(self, writer: SlotWriter) -> None:
        """Take over the facts of the registration; the blocks of the rank stay."""
        groups = writer.cache_groups
        if groups is None:
            groups = CacheGroups(self._block_size)
        groups.replace_facts(self._facts)
        groups.doubt = self.shown_doubt
        self._judge_lookahead(groups, writer)
        if groups.is_plain and not groups.groups:
            # Facts without effect on plain ranks must cost plain ranks nothing.
            writer.cache_groups = writer.groups_record = writer.group_status = None
            writer.change_tree(lambda tree: tree.layouts.set_layout(writer.slot, None))
            return
        if not groups.groups and writer.lacks_groups:
            groups.is_incomplete = True
        writer.cache_groups = groups
        self.lanes_of(groups, writer).update_layout()

    def lanes_of(self, groups: CacheGroups, writer: SlotWriter) -> LaneWriter:
        """Return the writer of a rank's lanes."""
        return LaneWriter(groups, writer, self._is_eagle)

    def learn_groups(
        self, writer: SlotWriter, event: BlockStored | BlockRemoved
    ) -> LaneWriter | None:
        """Learn the cache group of an event; return the rank's lanes, None for a plain rank."""
        groups = writer.cache_groups
        has_group = event.kind is not None or event.group_idx is not None
        if isinstance(event, BlockStored) and event.lookahead is not None:
            has_group |= event.lookahead.shape[1] > 1
        n_names = len(event.block_hashes)
        # A span of which a group keeps no block shows the group as well.
        is_stored = isinstance(event, BlockStored) and (n_names > 0 or len(event.tokens) > 0)
        if groups is None:
            # After a dump without groups even a removal shows that the engine has some.
            is_first = is_stored or writer.lacks_groups
            if not has_group or not is_first or tier_of_medium(event.medium) is not Tier.GPU:
                return None
            groups = writer.cache_groups = CacheGroups(self._block_size, self._facts)
            groups.doubt = self.shown_doubt
            groups.is_incomplete = writer.lacks_groups
        lanes = self.lanes_of(groups, writer)
        if groups.is_incomplete and not groups.groups:
            lanes.update_layout()
        if isinstance(event, BlockStored) and is_stored and event.block_size:
            if has_group and tier_of_medium(event.medium) is Tier.GPU:
                number, window = event.group_idx or 0, event.sliding_window
                kind = event.kind or groups.guess_kind(number, window)
                is_new = self._learn_form(groups, writer, event)
                # A single block may be the end of a prompt inside a larger block.
                is_run = n_names > 1 or len(event.tokens) >= 2 * event.block_size
                is_new |= groups.learn(number, kind, window, event.block_size, is_run=is_run)
                if is_new:
                    self._on_new_group()
                    lanes.update_layout()
            if (
                n_names
                and event.parent is None
                and len(event.tokens) // event.block_size == n_names
            ):
                lanes.note_first_block(event)
            lanes.prove_names()
        return lanes

    def _learn_form(self, groups: CacheGroups, writer: SlotWriter, event: BlockStored) -> bool:
        """Learn from the form of an event; return whether something is new."""
        before = groups.lookahead, groups.differs_ahead, groups.is_array_form
        groups.is_array_form |= event.is_array
        if event.lookahead is not None:
            groups.lookahead = max(groups.lookahead, event.lookahead.shape[1])
        if event.lookahead is not None or groups.differs_ahead:
            self._judge_lookahead(groups, writer)
        return (groups.lookahead, groups.differs_ahead, groups.is_array_form) != before

    def _judge_lookahead(self, groups: CacheGroups, writer: SlotWriter) -> None:
        """Hash prompts with the tokens behind that names of the rank cover, where that is possible.

        Prompts are hashed once for all ranks of a scope.
        """
        groups.ignores_lookahead, ahead = not self._is_eagle, groups.lookahead
        if ahead and self._is_eagle and not writer.is_half_cleared:
            note = partial(BlockTree.note_lookahead, lookahead=ahead)
            groups.differs_ahead = not writer.change_tree(note)

    def set_doubt(self, writer: SlotWriter | None, doubt: str | None) -> None:
        """Take why events of a rank may be missing; None if none are."""
        if doubt == self.shown_doubt or (writer is not None and writer.is_half_cleared):
            return
        self.shown_doubt = doubt
        groups = None if writer is None else writer.cache_groups
        if writer is not None and groups is not None:
            groups.doubt = doubt
            if not groups.is_plain:
                self.lanes_of(groups, writer).update_layout()

    @staticmethod
    def is_for_lanes(lanes: LaneWriter, event: BlockStored | BlockRemoved) -> bool:
        """Return whether an event is about blocks beside the dense blocks of the tree."""
        groups = lanes.groups
        group = groups.groups.get(event.group_idx or 0)
        if group is None:
            is_among_others = bool(groups.groups) or groups.is_incomplete
            return event.group_idx is not None and is_among_others
        if event.group_idx is None and event.kind is None:
            return False
        if group.tier != 0:
            return True
        return isinstance(event, BlockStored) and 0 < event.block_size < group.size

    @staticmethod
    def _is_inside_block(
        event: BlockStored | BlockRemoved, group: CacheGroup
    ) -> TypeGuard[BlockStored]:
        """Return whether a stored event has smaller blocks than the cache group."""
        if not isinstance(event, BlockStored) or not len(event.block_hashes):
            return False
        return group.ends_inside_blocks and 0 < event.block_size < group.size

    def apply_event(
        self,
        lanes: LaneWriter,
        writer: SlotWriter,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
        *,
        counted: bool,
    ) -> None:
        """Apply an event of a lane.  Meanwhile a dump leaves the slot out."""
        group = lanes.groups.groups.get(event.group_idx or 0)
        if group is None or group.tier is None or tier_of_medium(event.medium) is not Tier.GPU:
            self._drops.counts["attention_group"] += 1
            return
        if self._is_inside_block(event, group):
            if group.tier == 0 and len(event.block_hashes) > 1:  # a prompt has one end
                self._drops.drop_unhashable(event, Tier.GPU)
                return
            self.inside_block_events += 1
        writer.is_filling = True
        try:
            if isinstance(event, BlockRemoved):
                lanes.remove(event, group)
            elif group.tier == 0:
                lanes.store_dense_end(event, counted=counted)
            else:
                lanes.store(event, group, counted=counted)
            if own is not None:
                own.position = own.next_position
        finally:
            writer.is_filling = False

    def apply_event_in_steps(
        self,
        lanes: LaneWriter,
        writer: SlotWriter,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
        *,
        counted: bool,
    ) -> Iterator[int]:
        """Apply an event of a lane in steps; yield the cost of each."""
        yield from lanes.open_lanes_in_steps()
        group = lanes.groups.groups.get(event.group_idx or 0)
        is_on_gpu = tier_of_medium(event.medium) is Tier.GPU
        parts = list(split_names(event, NAMES_AT_ONCE))
        if lanes.groups.is_by_name:
            names, at_once = event.block_hashes, NAMES_AT_ONCE
            cuts = range(0, max(1, len(names)), at_once)
            parts = [replace(event, block_hashes=names[at : at + at_once]) for at in cuts]
        try:
            if (
                isinstance(event, BlockStored)
                and group is not None
                and is_on_gpu
                and lanes.lists_parts(event, group)
            ):
                # The tokens place these blocks together, so that the event cannot be split.
                writer.is_filling = True
                for names_of_step in lanes.store_parts_in_steps(event, group, counted=counted):
                    yield PART_COST * names_of_step // PARTS_AT_ONCE
                if own is not None:
                    own.position = own.next_position
                return
            for part in parts:
                stream = own if part is parts[-1] else None
                self.apply_event(lanes, writer, part, stream, counted=counted)
                # Between parts a dump leaves the slot out, too.
                writer.is_filling = part is not parts[-1]
                yield PART_COST
        finally:
            writer.is_filling = False

    @staticmethod
    def hold_back(
        groups: CacheGroups, event: BlockStored | BlockRemoved, own: SlotWriter | None
    ) -> None:
        """Keep an event of a lane until the end of the rank's first batch."""
        # The place moves on at once; a snapshot in between marks the groups as incomplete.
        groups.held_back.append(event)
        if own is not None:
            own.position = own.next_position

    def end_first_batch(
        self, writer: SlotWriter, own: SlotWriter | None, *, counted: bool
    ) -> Iterator[int]:
        """Apply the lanes' events of a rank's first batch, now that all groups are known."""
        groups = writer.cache_groups
        if groups is None or not groups.is_in_first_batch:
            return
        groups.is_new, events = False, groups.held_back
        groups.held_back = []
        for event in events:
            lanes = self.lanes_of(groups, writer)
            yield from self.apply_event_in_steps(lanes, writer, event, None, counted=counted)
        self.lanes_of(groups, writer).update_layout()
        if own is not None and events:
            own.position = own.next_position

    def remove_dense_ends(self, writer: SlotWriter, names: Hashes) -> None:
        """Remove what the dense group announced inside blocks under these names."""
        groups = writer.cache_groups
        if groups is not None and (groups.ends_tier is not None or groups.late_parts):
            self.lanes_of(groups, writer).remove_dense_ends(names)

    @staticmethod
    def has_short_end(writer: SlotWriter) -> bool:
        """Return whether a batch ends in a single short step."""
        groups = writer.cache_groups
        if groups is None:
            return True
        n_late = sum(len(event.block_hashes) for event in groups.late_parts)
        return not groups.is_in_first_batch and len(groups.waiting) + n_late <= SHORT_END_NAMES_MAX

    def finish_batch(self, writer: SlotWriter, *, counted: bool) -> Iterator[int]:
        """Place what later events of a batch have explained; yield the cost of each step."""
        groups = writer.cache_groups
        if groups is not None and (groups.waiting or groups.late_parts):
            for names in self.lanes_of(groups, writer).finish_batch(counted=counted):
                yield PART_COST * names // NAMES_AT_ONCE
