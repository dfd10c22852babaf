"""Application of decoded batches to the index, for the ranks of a worker.

Decides which rank a batch belongs to, which attention groups count as prefix cache, and what is
not indexed and why.  Elsewhere: sequence numbers and replays (feed), decoding (kv_events).
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

from indexer.events.common_forms import CommonForms
from indexer.events.event_decoder import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    local_hashes,
)
from indexer.events.event_types import EVENT_COST, hashable_blocks
from indexer.hashing.block_hashing import Hashes
from indexer.index.block_tree import ChangeBuffer
from indexer.index.change_kernels import COUNT, HOLDER, IS_STORE, REMOVED, STORED
from indexer.index.index_snapshot import StreamPosition
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import Tier, tier_of_medium

FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of attention with blocks that prove a cached prefix.  Sliding windows and state spaces
keep only the tail.
Source: kv_cache_spec_kind of vLLM's KV events.
"""
STEP_BLOCKS_MAX = 4096
"""Limit of blocks of an event per step."""
MM_STEP_BLOCKS_MAX = 256
"""Limit for blocks with images, which are hashed one by one."""
SMALL_EVENTS_MAX = 64
"""Limit of events of a batch that is applied at once."""
LOGGED_CHARS_MAX = 64
"""Limit of characters shown of a name chosen by an engine."""
GROUPS_MAX = 1024
"""Limit of attention groups stored over all ranks of a worker; real engines have a handful."""


class SkippedEvent(NamedTuple):
    """Event that was not indexed.

    block_size: tokens per block in the event; None for an event without a size
    n_tokens:   number of tokens in the event
    """

    n_blocks: int
    block_size: int | None
    n_tokens: int
    medium: str | None
    group: int | None
    kind: str | None

    def describe(self) -> str:
        """Return a description for operators."""
        size = "" if self.block_size is None else f" of {self.block_size} tokens"
        plural = "" if self.n_blocks == 1 else "s"
        text = f"{self.n_blocks} block{plural}{size} on {(self.medium or 'GPU')[:LOGGED_CHARS_MAX]}"
        if self.group is not None:
            text += f", group {self.group}"
        if self.kind is not None:
            text += f" ({self.kind[:LOGGED_CHARS_MAX]})"
        if self.block_size is not None and self.n_tokens < self.block_size:
            text += f", with {self.n_tokens} tokens"
        return text


def _skipped_event(event: BlockStored | BlockRemoved) -> SkippedEvent:
    size, n_tokens = None, 0
    if isinstance(event, BlockStored):
        size, n_tokens = event.block_size, len(event.tokens)
    n_blocks = len(event.block_hashes)
    return SkippedEvent(n_blocks, size, n_tokens, event.medium, event.group_idx, event.kind)


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

    def __init__(self, dp_rank: int, block_size: int, is_eagle: bool, counted: bool) -> None:
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._is_eagle = is_eagle
        self.is_counted = counted
        self.common_forms = CommonForms(dp_rank, block_size, is_eagle)
        self.total_blocks: int | None = None
        """Blocks of the GPU tier of each rank; None if unknown."""
        self.inflated_rank: int | None = None
        """Rank with more announced copies than blocks, which proves that repeated stores are no
        copies.
        """
        self._copies: Counter[int] = Counter()
        """Copies per rank in the GPU tier; never more than the index counts."""
        self.counts_duplicates = True
        """False while events may repeat stores that the index has already: then none is counted."""
        self._groups: dict[tuple[int, int], str] = {}
        self._fed_ranks = {dp_rank}
        self.stored_blocks = 0
        self.removed_blocks = 0
        self.dropped: Counter[str] = Counter()
        """Events not indexed, by reason; the reason "rank" counts batches."""
        self._registration_fault: str | None = None
        self._size_fits = False
        """True once a block of the registered size has come since the engine's start."""
        self._last_other_size: SkippedEvent | None = None
        """Last event of another size, as long as none of the registered size has come."""
        self._last_skipped: SkippedEvent | None = None

    @property
    def registration_fault(self) -> str | None:
        """Description of dropped events that suggest a wrong registration, or None."""
        if self._last_other_size is None:
            return self._registration_fault
        return (
            f"dropped: {self._last_other_size.describe()}; the registered "
            f"block_size is {self._block_size}, "
            "but no block of that size has come: check it against the engine's block size"
        )

    @property
    def is_size_wrong(self) -> bool:
        """True if the registered block size probably differs from the engine's."""
        return self._last_other_size is not None

    @property
    def last_skipped(self) -> str | None:
        """Description of the last event dropped although the registration is right, or None."""
        found = self._last_skipped
        if found is None:
            return None
        if tier_of_medium(found.medium) is None:
            return f"not indexed: {found.describe()}: the medium is unknown"
        return (
            f"not indexed: {found.describe()}; the index takes whole blocks of {self._block_size} "
            "tokens, and this is a chunk of a KV connector or a partial block at a prompt's end"
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
            self._drop_batch(rank)
            return False
        self._fed_ranks.add(rank)
        cleared = False
        if has_unfinished_work(writer, own):
            yield from settle_in_steps(writer, own)
        for done, event in enumerate(batch.events, 1):
            if done <= skip:
                continue
            if own is not None and before is not None:
                own.next_position = StreamPosition(before.next_seq, done, before.digest)
            if isinstance(event, AllBlocksCleared):
                self._copies[rank] = 0
                yield from writer.clear_in_steps(stream=own)
                cleared = rank == self._dp_rank
            elif self._apply_event(writer, rank, event, own):
                yield EVENT_COST + len(event.block_hashes)
                if writer.is_half_cleared:
                    yield from writer.clear_in_steps()
            else:
                yield from self._apply_large_event(writer, rank, event, own)
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

        A number means that the rest might take long, as a batch of many events or one that
        clears a rank
        does: that many events are done, and `apply_in_steps` shall skip them.
        after: place of the stream behind this batch, set with the last event.
        """
        events = batch.events
        if len(events) > SMALL_EVENTS_MAX or AllBlocksCleared in map(type, events):
            return 0
        rank = self._dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
        writer, own = writers.get(rank), writers.get(self._dp_rank)
        if writer is None:
            self._drop_batch(rank)
            return None
        self._fed_ranks.add(rank)
        if has_unfinished_work(writer, own):
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
        tier = self._event_tier(rank, event)
        if tier is None:
            return True
        if rank == self._dp_rank:
            self.common_forms.learn_form(event, writer.slot, tier, counted=self.is_counted)
        if not self.total_blocks or tier is not Tier.GPU:
            return self._change_index(writer, tier, event, own)
        before_blocks = self.stored_blocks - self.removed_blocks
        is_done = self._change_index(writer, tier, event, own)
        self._count_copies(rank, self.stored_blocks - self.removed_blocks - before_blocks)
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
        tier, before_blocks = (
            self._event_tier(rank, event),
            self.stored_blocks - self.removed_blocks,
        )
        if tier is None:
            return
        changing = self._change_in_parts(writer, tier, event, own)
        try:
            # A restart must not lose half an event: the generator is stored and another stream
            # finishes it.
            for cost in changing:  # noqa: UP028 - `yield from` would close it as well
                yield cost
        except GeneratorExit:
            (own or writer).pending_steps = changing
            raise
        if tier is Tier.GPU and self.total_blocks:
            self._count_copies(rank, self.stored_blocks - self.removed_blocks - before_blocks)

    def count_run_changes(self, changes: ChangeBuffer, done: int) -> None:
        """Count changes of the stream's own rank that a compiled run carried out."""
        self.removed_blocks += changes.view[REMOVED]
        self.stored_blocks += changes.view[STORED]
        if self.total_blocks:
            for is_store, holder, count in changes.rows[:done, [IS_STORE, HOLDER, COUNT]].tolist():
                if holder >> 1 & 3 == Tier.GPU:
                    self._count_copies(self._dp_rank, count if is_store else -count)

    def stop_counting(self) -> None:
        """Treat repeated stores as no copies from now on."""
        self.is_counted, self.inflated_rank = False, None
        self.common_forms.forget_forms()

    def forget_in_steps(self, writers: Mapping[int, SlotWriter]) -> Iterator[int]:
        """Empty every rank fed by this stream, step by step, after a restart of the engine."""
        own = writers.get(self._dp_rank)
        self._size_fits = False
        if own is not None:
            own.next_position, own.live_at, own.has_unpositioned_blocks = None, None, False
        self._groups.clear()
        self.common_forms.forget_forms()
        self._copies.clear()
        for rank in self._fed_ranks:
            if rank in writers:
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
        elif not len(event.tokens):
            self.stored_blocks += writer.store_known(
                tier, event.block_hashes, counted=self._counts_copies, stream=own
            )
        else:
            hashes = local_hashes(event, self._block_size, self._is_eagle)
            if not len(hashes):
                self._drop_unhashable(event, tier)
                return True
            if not self._size_fits:
                self._note_fitting_size()
            names = event.block_hashes
            if len(hashes) < len(names):
                names = names[: len(hashes)]
            stored = writer.store_in_one_step(
                tier,
                event.parent,
                hashes,
                names,
                counted=self.is_counted and self.counts_duplicates,
                stream=own,
            )
            if stored < 0:
                return False
            self.stored_blocks += stored
        return True

    def _count_copies(self, rank: int, change: int) -> None:
        """Adjust the copies of a rank.  Copies from before this stream was opened are unknown."""
        assert self.total_blocks is not None
        self._copies[rank] = max(0, self._copies[rank] + change)
        # An engine cannot hold more copies than blocks, so its repeated stores must be idempotent.
        if self.is_counted and self._copies[rank] > self.total_blocks:
            self.inflated_rank = rank

    @property
    def _counts_copies(self) -> bool:
        return self.is_counted and self.counts_duplicates

    def _change_in_parts(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """Apply an event in parts; the place is set with the last one.

        Meanwhile a dump leaves the slot out, as it has half of an event.
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
        names, counted = event.block_hashes, self._counts_copies
        if isinstance(event, BlockStored) and len(event.tokens):
            names = names[: hashable_blocks(event, self._block_size, self._is_eagle)]
            if not len(names):
                self._drop_unhashable(event, tier)
            elif not self._size_fits:
                self._note_fitting_size()
        step_blocks = _step_blocks(event)
        for start in range(0, len(names), step_blocks):
            part = slice(start, start + step_blocks)
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
                hashes = self._part_hashes(event, start)
                stored = yield from writer.store_in_steps(
                    tier, parent, hashes, names[part], counted=counted, stream=stream
                )
                self.stored_blocks += stored
                if stored < len(names[part]):
                    return  # the index is full: the rest has no parent there
            yield STEP_BLOCKS_MAX

    def _part_hashes(self, event: BlockStored, start: int) -> Hashes:
        return local_hashes(
            event, self._block_size, self._is_eagle, first=start, at_most=_step_blocks(event)
        )

    def count_malformed_message(self) -> None:
        """Count a message that does not have the form of a batch of KV events."""
        self.dropped["frames"] += 1
        self._registration_fault = (
            "dropped: messages other than KV events; check that kv_events_endpoint is the port of "
            "the engine's KV event publisher"
        )

    def _drop_batch(self, rank: int) -> None:
        self.dropped["rank"] += 1
        self._registration_fault = (
            f"dropped: events of dp_rank {rank}, which the worker does not have; check its "
            "data_parallel_start_rank and data_parallel_size"
        )

    def count_foreign_replay(self, rank: int | None) -> None:
        """Count a batch of another rank from the replay endpoint."""
        self.dropped["replay_of_other_rank"] += 1
        self._registration_fault = (
            f"dropped: a replay of dp_rank {rank} from this rank's replay endpoint"
        )

    def _note_fitting_size(self) -> None:
        """Record that the engine has blocks of the registered size, besides any others."""
        self._size_fits = True
        if self._last_other_size is not None:
            self._last_skipped, self._last_other_size = self._last_other_size, None

    def _drop_unhashable(self, event: BlockStored, tier: Tier) -> None:
        """Count an event without any hashable block, and describe it.

        Connectors announce chunks of their own size, and engines the end of a prompt inside a
        block: only another size on the GPU, and never the registered one, looks like a mistake.
        """
        found = _skipped_event(event)
        if event.block_size == self._block_size:
            self.dropped["partial_block"] += 1
            self._last_skipped = found
        elif tier is not Tier.GPU or self._size_fits:
            self.dropped["other_size"] += 1
            self._last_skipped = found
        else:
            self.dropped["block_size"] += 1
            self._last_other_size = found

    def _event_tier(self, rank: int, event: BlockStored | BlockRemoved) -> Tier | None:
        """Return the tier of an event; None, and counted, if it is not to be indexed."""
        has_group = event.kind is not None or event.group_idx is not None
        if has_group and not self._is_prefix_cache(rank, event):
            self.dropped["attention_group"] += 1
            return None
        tier = tier_of_medium(event.medium)
        if tier is None:
            self.dropped["medium"] += 1
            self._last_skipped = _skipped_event(event)
        return tier

    def _is_prefix_cache(self, rank: int, event: BlockStored | BlockRemoved) -> bool:
        group, kind = event.group_idx, event.kind
        if kind is None:
            if group is None:
                return True
            kind = self._groups.get((rank, group))
            return group == 0 if kind is None else kind in FULL_ATTENTION_KINDS
        if group is not None and isinstance(event, BlockStored):
            self._learn_group((rank, group), kind)
        return kind in FULL_ATTENTION_KINDS

    def _learn_group(self, group: tuple[int, int], kind: str) -> None:
        # Beyond the limit a group is judged by its index, so a hostile engine cannot fill the
        # memory.
        if group in self._groups or len(self._groups) < GROUPS_MAX:
            self._groups[group] = kind
            self.common_forms.forget_forms()
