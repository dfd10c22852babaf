"""Application of decoded batches to the index, for the ranks of a worker.

Decides which rank a batch belongs to, which attention groups count as prefix cache, and what is
not indexed and why.  Elsewhere: sequence numbers and replays (feed), decoding (kv_events).
"""

from collections.abc import Generator, Iterator, Mapping
from itertools import pairwise

import numpy as np

from indexer.events.common_forms import CommonForms
from indexer.events.copy_counts import CopyCounts
from indexer.events.dropped_events import DroppedEvents
from indexer.events.event_decoder import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    local_hashes,
)
from indexer.events.event_types import (
    EVENT_COST,
    has_unnamed_blocks,
    hashable_blocks,
    lacks_next_tokens,
)
from indexer.events.group_applier import GroupApplier
from indexer.events.lane_writer import NAMES_AT_ONCE
from indexer.events.step_runner import run_or_keep
from indexer.events.store_identity import inherited_parts, inherited_salt, record_keys
from indexer.hashing.block_hashing import Hashes
from indexer.index.block_tree import ChangeBuffer, tier_of_holder
from indexer.index.change_kernels import COUNT, HOLDER, IS_STORE, REMOVED, STORED
from indexer.index.index_snapshot import StreamPosition
from indexer.index.kv_cache_facts import NO_FACTS, KvCacheFacts
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier, tier_of_medium

STEP_BLOCKS_MAX = 4096
"""Limit of blocks of an event per step."""
MM_STEP_BLOCKS_MAX = 256
"""Limit for blocks with images, which are hashed singly."""
SMALL_EVENTS_MAX = 64
"""Limit of events of a batch that is applied at once."""


def has_unfinished_work(writer: SlotWriter, own: SlotWriter | None) -> bool:
    """Return whether an earlier stream has left unfinished work."""
    return writer.is_half_cleared or (own is not None and own.pending_steps is not None)


def _step_blocks(event: BlockStored | BlockRemoved) -> int:
    has_images = isinstance(event, BlockStored) and event.mm_hashes is not None
    return MM_STEP_BLOCKS_MAX if has_images else STEP_BLOCKS_MAX


def settle_in_steps(writer: SlotWriter, own: SlotWriter | None) -> Iterator[int]:
    if own is not None:
        yield from own.settle_in_steps()
    yield from writer.settle_in_steps()


class BatchApplier:
    """Applier of a stream's batches.  Not thread-safe; the writers take the index's lock."""

    def __init__(
        self,
        dp_rank: int,
        block_size: int,
        is_eagle: bool,
        counted: bool,
        facts: KvCacheFacts = NO_FACTS,
    ) -> None:
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._is_eagle = is_eagle
        self.common_forms = CommonForms(dp_rank, block_size, is_eagle)
        self.copies = CopyCounts(counted)
        self._fed_ranks = {dp_rank}
        self.stored_blocks = 0
        self.removed_blocks = 0
        self.drops = DroppedEvents(block_size)
        self.lookahead_events = 0
        """Stored events with another lookahead than the registration has: a token for EAGLE."""
        self.plain_eagle_events = 0
        """Stored events of blocks alone in a scope that is registered as EAGLE."""
        self.groups = GroupApplier(
            block_size, is_eagle, facts, self.drops, self.common_forms.forget_forms
        )

    def apply_in_steps(
        self,
        batch: Batch,
        writers: Mapping[int, SlotWriter],
        before: StreamPosition | None = None,
        skip: int = 0,
    ) -> Generator[int, None, bool]:
        """Change the index step by step; yield the cost of each step, roughly in blocks.

        before: place of the stream before this batch, None without a place
        skip: leading events that are in the index already
        Returns whether the stream's own rank was emptied on the way.
        """
        rank = self._dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
        writer, own = writers.get(rank), writers.get(self._dp_rank)
        if writer is None:
            self.drops.drop_batch(rank)
            return False
        self._fed_ranks.add(rank)
        cleared = False
        if has_unfinished_work(writer, own):
            yield from settle_in_steps(writer, own)
        for done, event in enumerate(batch.events, 1):
            if done <= skip:
                continue
            if own is not None and before is not None:
                # Every event moves the place, so that a listener closed midway resumes behind it.
                own.next_position = StreamPosition(before.next_seq, done, before.digest)
            if isinstance(event, AllBlocksCleared):
                self.copies.forget_rank(rank)
                writer.lacks_groups = False
                if writer.cache_groups is not None:
                    writer.cache_groups.clear()
                    self.groups.lanes_of(writer.cache_groups, writer).update_layout()
                yield from writer.clear_in_steps(stream=own)
                cleared = rank == self._dp_rank
            elif self._apply_event(writer, rank, event, own):
                yield EVENT_COST + len(event.block_hashes)
                if writer.is_half_cleared:
                    yield from writer.clear_in_steps()
            else:
                yield from self._apply_large_event(writer, rank, event, own)
        ending = self.groups.end_first_batch(writer, own, counted=self.copies.counts_now)
        yield from run_or_keep(ending, own or writer)
        yield from self.groups.finish_batch(writer, counted=self.copies.counts_now)
        return cleared

    def apply_small(
        self,
        batch: Batch,
        writers: Mapping[int, SlotWriter],
        seq: int,
        digest: int | None,
        after: StreamPosition,
    ) -> int | None:
        """Apply a batch as `apply_in_steps` at Place(seq, 0, digest), in one step.  Return None
        when done.

        A number means that the rest might take long, as for a batch of many events or a clear of a
        rank: that many events are done, and `apply_in_steps` shall skip these.
        after: place of the stream behind this batch, set with the last event.
        """
        events = batch.events
        if len(events) > SMALL_EVENTS_MAX or AllBlocksCleared in map(type, events):
            return 0
        rank = self._dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
        writer, own = writers.get(rank), writers.get(self._dp_rank)
        if writer is None:
            self.drops.drop_batch(rank)
            return None
        self._fed_ranks.add(rank)
        if has_unfinished_work(writer, own):
            return 0
        if writer.cache_groups is not None and writer.cache_groups.is_in_first_batch:
            return 0
        left = len(events)
        for event in events:
            assert not isinstance(event, AllBlocksCleared)
            left -= 1
            if own is not None:
                own.next_position = (
                    StreamPosition(seq, len(events) - left, digest) if left else after
                )
            if not self._apply_event(writer, rank, event, own):
                return len(events) - left - 1
            if writer.is_half_cleared:
                return len(events) - left
        if writer.cache_groups is None:
            return None
        if not self.groups.has_short_end(writer):
            return len(events)
        for _ in self.groups.finish_batch(writer, counted=self.copies.counts_now):
            pass
        return None

    def _apply_event(
        self,
        writer: SlotWriter,
        rank: int,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> bool:
        """Apply an event at once; return False, without effect, if several steps are needed."""
        if len(event.block_hashes) > _step_blocks(event):
            return False
        lanes = self.groups.learn_groups(writer, event)
        if lanes is not None and self.groups.is_for_lanes(lanes, event):
            if lanes.groups.is_new:
                self.groups.hold_back(lanes.groups, event, own)
                return True
            if lanes.needs_lanes or len(event.block_hashes) > NAMES_AT_ONCE:
                return False
            counted = self.copies.counts_now
            self.groups.apply_event(lanes, writer, event, own, counted=counted)
            return True
        tier = self._event_tier(rank, event)
        if tier is None:
            return True
        # Removals of a rank with ends inside blocks are looked up in a lane, too.
        has_form = lanes is None or lanes.groups.ends_tier is None or isinstance(event, BlockStored)
        if rank == self._dp_rank and has_form:
            self.common_forms.learn_form(event, writer.slot, tier, counted=self.copies.is_counted)
        if not self.copies.total_blocks or tier is not Tier.GPU:
            return self._change_index(writer, tier, event, own)
        before_blocks = self.stored_blocks - self.removed_blocks
        is_done = self._change_index(writer, tier, event, own)
        self.copies.add_copies(rank, self.stored_blocks - self.removed_blocks - before_blocks)
        return is_done

    def _apply_large_event(
        self,
        writer: SlotWriter,
        rank: int,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """Apply an event in steps.  A caller that stops early leaves the rest to the rank's next
        stream.
        """
        lanes = self.groups.learn_groups(writer, event)
        if lanes is not None and self.groups.is_for_lanes(lanes, event):
            if lanes.groups.is_new:
                self.groups.hold_back(lanes.groups, event, own)
            else:
                applying = self.groups.apply_event_in_steps(
                    lanes, writer, event, own, counted=self.copies.counts_now
                )
                yield from run_or_keep(applying, own or writer)
            return
        tier, before_blocks = (
            self._event_tier(rank, event),
            self.stored_blocks - self.removed_blocks,
        )
        if tier is None:
            return
        changing = self._change_in_parts(writer, tier, event, own)
        yield from run_or_keep(changing, own or writer)
        if tier is Tier.GPU and self.copies.total_blocks:
            self.copies.add_copies(rank, self.stored_blocks - self.removed_blocks - before_blocks)

    def count_run_changes(self, changes: ChangeBuffer, done: int) -> None:
        """Count changes of the stream's own rank that a compiled run carried out."""
        self.removed_blocks += changes.view[REMOVED]
        self.stored_blocks += changes.view[STORED]
        if self.copies.total_blocks:
            for is_store, holder, count in changes.rows[:done, [IS_STORE, HOLDER, COUNT]].tolist():
                if tier_of_holder(holder) == Tier.GPU:
                    self.copies.add_copies(self._dp_rank, count if is_store else -count)

    def stop_counting(self) -> None:
        """Treat repeated stores as no copies from now on."""
        self.copies.stop_counting()
        self.common_forms.forget_forms()

    def forget_in_steps(self, writers: Mapping[int, SlotWriter]) -> Iterator[int]:
        """Empty every rank fed by this stream, step by step, after a restart of the engine."""
        own = writers.get(self._dp_rank)
        # The new life may have another block size.
        self.drops.size_fits = False
        if own is not None:
            own.next_position, own.live_at, own.has_unpositioned_blocks = None, None, False
        self.common_forms.forget_forms()
        self.copies.forget_ranks()
        for rank in self._fed_ranks:
            if rank in writers:
                self.groups.forget_groups(writers[rank])
                yield from writers[rank].clear_in_steps(stream=own)

    def _change_index(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> bool:
        """Change the index at once; return False, without effect, if several steps are needed."""
        if isinstance(event, BlockRemoved):
            self.removed_blocks += writer.remove(tier, event.block_hashes, stream=own, sweep=False)
            if writer.cache_groups is not None and tier is Tier.GPU:
                self.groups.remove_dense_ends(writer, event.block_hashes)
        elif not len(event.tokens):
            self.stored_blocks += writer.store_known(
                tier, event.block_hashes, counted=self.copies.counts_now, stream=own
            )
        elif self._needs_known_names(writer, tier):
            return False
        else:
            hashes = self._hash_blocks(event, inherited_salt(writer.keys, event))
            if not self._is_storable(writer, tier, event, hashes):
                return True
            names = event.block_hashes
            if len(hashes) < len(names):
                names = names[: len(hashes)]
            stored = writer.store_in_one_step(
                tier,
                event.parent,
                hashes,
                names,
                counted=self.copies.counts_now,
                stream=own,
            )
            if stored < 0:
                return False
            self.stored_blocks += stored
        return True

    def _hash_blocks(
        self, event: BlockStored, inherited: int, first: int = 0, at_most: int | None = None
    ) -> Hashes:
        return local_hashes(
            event,
            self._block_size,
            self._is_eagle,
            first=first,
            at_most=at_most,
            inherited=inherited,
        )

    def _is_storable(
        self, writer: SlotWriter, tier: Tier, event: BlockStored, hashes: Hashes
    ) -> bool:
        """Return whether an event can be stored, else count it.  hashes: of its first blocks"""
        if not len(hashes):
            self.drops.drop_unhashable(event, tier)
            return False
        if not self.drops.size_fits:
            self.drops.note_fitting_size()
        if event.has_keys and not record_keys(writer.keys, event, int(hashes[0])):
            self.drops.skip_event(event, "salts")
            return False
        return True

    def _needs_known_names(self, writer: SlotWriter, tier: Tier) -> bool:
        """Return whether known names decide where blocks of this tier belong.

        Events of lower tiers may leave keys out.  Without any key in the index the content of the
        blocks is enough, unless the events with their keys may be missing.
        """
        if tier is Tier.GPU:
            return False
        return writer.keys.roots.has_keys or self.groups.shown_doubt is not None

    def _change_in_parts(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """Apply an event in parts; the place is set with the last part.

        Meanwhile a dump leaves the slot out, because the slot has half of an event.
        """
        writer.is_filling = True
        try:
            yield from self._apply_parts(writer, tier, event, own)
        finally:
            writer.is_filling = False

    def _apply_parts(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """Apply an event as `_change_index` does, at most `_step_blocks` blocks per step."""
        names, counted, inherited = event.block_hashes, self.copies.counts_now, 0
        if isinstance(event, BlockStored) and len(event.tokens):
            if self._needs_known_names(writer, tier):
                yield from self._store_lower_tier(writer, tier, event, own)
                return
            names = names[: hashable_blocks(event, self._block_size, self._is_eagle)]
            inherited = inherited_salt(writer.keys, event)
            first_hash = self._hash_blocks(event, inherited, at_most=1)
            if not self._is_storable(writer, tier, event, first_hash):
                return
        step_blocks = _step_blocks(event)
        for start in range(0, len(names), step_blocks):
            part = slice(start, start + step_blocks)
            # Only the last part moves the place: a restart in between repeats the whole event.
            stream = own if part.stop >= len(names) else None
            if isinstance(event, BlockRemoved):
                removed = writer.remove(tier, names[part], stream=stream, sweep=False)
                self.removed_blocks += removed
            elif not len(event.tokens):
                self.stored_blocks += writer.store_known(
                    tier, names[part], counted=counted, stream=stream
                )
            else:
                parent = event.parent if start == 0 else int(names[start - 1])
                hashes = self._hash_blocks(event, inherited, start, step_blocks)
                stored = yield from writer.store_in_steps(
                    tier, parent, hashes, names[part], counted=counted, stream=stream
                )
                self.stored_blocks += stored
                if stored < len(names[part]):
                    return  # the index is full: the rest has no parent there
            yield STEP_BLOCKS_MAX

    def _store_lower_tier(
        self, writer: SlotWriter, tier: Tier, event: BlockStored, own: SlotWriter | None
    ) -> Iterator[int]:
        """Store blocks where the slot has their names, and further blocks below these."""
        names = event.block_hashes[: hashable_blocks(event, self._block_size, self._is_eagle)]
        if not len(names):
            self.drops.drop_unhashable(event, tier)
        step_blocks = _step_blocks(event)
        for start in range(0, len(names), step_blocks):
            is_known = writer.keys.find_names(names[start : start + step_blocks])
            # Runs of known and of unknown names are stored in different ways.
            ends = np.flatnonzero(np.diff(is_known)) + 1
            for first, stop in pairwise([0, *ends.tolist(), len(is_known)]):
                part = slice(start + first, start + stop)
                stream = own if part.stop == len(names) else None
                if is_known[first]:
                    self.stored_blocks += writer.store_known(
                        tier, names[part], counted=self.copies.counts_now, stream=stream
                    )
                else:
                    yield from self._store_unknown_names(writer, tier, event, part, stream)
            yield STEP_BLOCKS_MAX

    def _store_unknown_names(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored,
        part: slice,
        stream: SlotWriter | None,
    ) -> Iterator[int]:
        """Store blocks of a lower tier with names that the slot does not have."""
        parent = int(event.block_hashes[part.start - 1]) if part.start else event.parent
        inherited = inherited_parts(writer.keys, event, parent)
        if inherited is None:
            self.drops.skip_event(event, "tier_identity")
            return
        hashes = self._hash_blocks(event, inherited, part.start, part.stop - part.start)
        # Keys are recorded, and faults counted, once per event.
        if part.start or self._is_storable(writer, tier, event, hashes):
            self.stored_blocks += yield from writer.store_in_steps(
                tier,
                parent,
                hashes,
                event.block_hashes[part],
                counted=self.copies.counts_now,
                stream=stream,
            )

    def _event_tier(self, rank: int, event: BlockStored | BlockRemoved) -> Tier | None:
        """Return the tier of an event; None, and counted, for an event that is not indexed."""
        tier = tier_of_medium(event.medium)
        if tier is None:
            self.drops.skip_event(event, "medium")
        elif isinstance(event, BlockStored) and len(event.tokens):
            if has_unnamed_blocks(event, self._block_size, self._is_eagle):
                self.drops.skip_event(event, "ambiguous_hashes")
                return None
            if tier is Tier.GPU:
                self._count_eagle_form(event)
        return tier

    def _count_eagle_form(self, event: BlockStored) -> None:
        """Count an event with a form that contradicts the registration of EAGLE."""
        if event.lookahead is not None:
            self.lookahead_events += not self._is_eagle
        elif self._is_eagle and lacks_next_tokens(event, self._block_size):
            self.plain_eagle_events += 1
