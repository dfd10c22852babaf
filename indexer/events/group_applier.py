"""Application of events to the cache groups of ranks: learns them, and feeds the lanes.

`batch_applier` decides what an event is about; this module decides which group it belongs to, and
applies what is not about the rank's dense blocks in the tree.
"""

from collections.abc import Callable, Iterator
from typing import TypeGuard

from indexer.events.dropped_events import DroppedEvents
from indexer.events.event_types import BlockRemoved, BlockStored, split_names
from indexer.events.lane_writer import NAMES_AT_ONCE, LaneWriter
from indexer.hashing.block_hashing import Hashes
from indexer.index.cache_groups import CacheGroup, CacheGroups
from indexer.index.kv_cache_facts import KvCacheFacts
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier, tier_of_medium

PART_COST = 4096
"""Cost of a part of an event of a lane, whose names are placed one by one, in blocks."""


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
        """on_new_group: called when an event tells something new about the groups of a rank"""
        self._block_size = block_size
        self._is_eagle = is_eagle
        self._facts = facts
        self._drops = drops
        self._on_new_group = on_new_group
        self.inside_block_events = 0
        """Stored events of the end of a prompt inside a block."""

    def forget_groups(self, writer: SlotWriter) -> None:
        """Return to what the registration says about the cache groups of a rank."""
        writer.cache_groups = writer.groups_record = None
        writer.lacks_groups = False
        self.begin_groups(writer)

    def begin_groups(self, writer: SlotWriter) -> None:
        """Take over the facts of the registration; the blocks of the rank stay."""
        groups = writer.cache_groups
        if groups is None:
            groups = CacheGroups(self._block_size)
        groups.replace_facts(self._facts)
        if groups.is_plain and not groups.groups:
            # Facts without effect on plain ranks must not cost them anything.
            writer.cache_groups = writer.groups_record = writer.group_status = None
            writer.change_tree(lambda tree: tree.layouts.set_layout(writer.slot, None))
            return
        writer.cache_groups = groups
        self.lanes_of(groups, writer).update_layout()

    def lanes_of(self, groups: CacheGroups, writer: SlotWriter) -> LaneWriter:
        """Return the writer of a rank's lanes."""
        return LaneWriter(groups, writer, self._is_eagle)

    def learn_groups(
        self, writer: SlotWriter, event: BlockStored | BlockRemoved
    ) -> LaneWriter | None:
        """Learn the cache group of an event; return the rank's lanes, None while it is plain."""
        groups = writer.cache_groups
        has_group = event.kind is not None or event.group_idx is not None
        n_names = len(event.block_hashes)
        is_stored = isinstance(event, BlockStored) and n_names > 0
        if groups is None:
            if not has_group or not is_stored or tier_of_medium(event.medium) is not Tier.GPU:
                return None
            groups = writer.cache_groups = CacheGroups(self._block_size, self._facts)
            groups.is_incomplete = writer.lacks_groups
        lanes = self.lanes_of(groups, writer)
        if isinstance(event, BlockStored) and is_stored and event.block_size:
            if has_group and tier_of_medium(event.medium) is Tier.GPU:
                number, window = event.group_idx or 0, event.sliding_window
                kind = event.kind or groups.guess_kind(number, window)
                ahead = 0 if event.lookahead is None else event.lookahead.shape[1]
                is_new, groups.lookahead = ahead > groups.lookahead, max(ahead, groups.lookahead)
                is_new |= groups.learn(number, kind, window, event.block_size)
                if is_new:
                    self._on_new_group()
                    lanes.update_layout()
            if event.parent is None and len(event.tokens) // event.block_size == n_names:
                lanes.note_first_block(event)
            lanes.prove_names()
        return lanes

    @staticmethod
    def is_for_lanes(lanes: LaneWriter, event: BlockStored | BlockRemoved) -> bool:
        """Return whether an event is about blocks beside the dense ones of the tree."""
        groups = lanes.groups
        group = groups.groups.get(event.group_idx or 0)
        if group is None:
            return event.group_idx is not None and bool(groups.groups)
        if event.group_idx is None and event.kind is None:
            return False
        if group.tier != 0:
            return True
        return isinstance(event, BlockStored) and 0 < event.block_size < group.size

    @staticmethod
    def _is_inside_block(
        event: BlockStored | BlockRemoved, group: CacheGroup
    ) -> TypeGuard[BlockStored]:
        """Return whether a stored event has blocks smaller than those of its group."""
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
        parts = list(split_names(event, NAMES_AT_ONCE))
        for part in parts:
            stream = own if part is parts[-1] else None
            self.apply_event(lanes, writer, part, stream, counted=counted)
            yield PART_COST

    def end_first_batch(
        self, writer: SlotWriter, own: SlotWriter | None, *, counted: bool
    ) -> Iterator[int]:
        """Apply the lanes' events of a rank's first batch, now that its groups are known."""
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
        if groups is not None and groups.ends_tier is not None:
            self.lanes_of(groups, writer).remove_dense_ends(names)

    def finish_batch(self, writer: SlotWriter, *, counted: bool) -> None:
        """Place what later events of a batch have explained."""
        groups = writer.cache_groups
        if groups is not None and groups.waiting:
            self.lanes_of(groups, writer).finish_batch(counted=counted)
