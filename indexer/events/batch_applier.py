"""Decoded batches -> changes of the index, for the ranks of one worker.

Knows which rank a batch belongs to, which attention groups count as prefix cache and what is not
indexed and why.  Not here: sequence numbers and replays (feed), decoding (kv_events).
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

from indexer.events.event_types import EVENT_COST, hashable_blocks
from indexer.events.kv_events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    local_hashes,
)
from indexer.events.usual import Usual
from indexer.hashing.hashes import Hashes
from indexer.index.block_tree import Changes
from indexer.index.change_kernels import COUNT, HOLDER, IS_STORE
from indexer.index.slot_writer import SlotWriter
from indexer.index.snapshot import Place
from indexer.tiers import Tier, tier_of_medium

FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Groups whose blocks prove a cached prefix.  Sliding windows and state spaces keep the tail only.
Source: kv_cache_spec_kind of vLLM's KV events."""
STEP_BLOCKS_MAX = 4096
"""Blocks of one event that are changed at once."""
MM_STEP_BLOCKS_MAX = 256
"""The same where blocks hold images: their hashes are made one by one."""
SMALL_EVENTS_MAX = 64
"""Events of a batch that are applied at once, if they are short."""
SHOWN_CHARS_MAX = 64
"""Of names that an engine has chosen."""
GROUPS_MAX = 1024
"""Attention groups remembered over all ranks of a worker; real engines have a handful."""


class LeftOut(NamedTuple):
    """An event that was not indexed.

    block_size: in tokens, as the event says; None: it says none
    n_tokens: that came with it
    """

    n_blocks: int
    block_size: int | None
    n_tokens: int
    medium: str | None
    group: int | None
    kind: str | None

    def text(self) -> str:
        """Describe it in words."""
        size = "" if self.block_size is None else f" of {self.block_size} tokens"
        plural = "" if self.n_blocks == 1 else "s"
        text = f"{self.n_blocks} block{plural}{size} on {(self.medium or 'GPU')[:SHOWN_CHARS_MAX]}"
        if self.group is not None:
            text += f", group {self.group}"
        if self.kind is not None:
            text += f" ({self.kind[:SHOWN_CHARS_MAX]})"
        if self.block_size is not None and self.n_tokens < self.block_size:
            text += f", with {self.n_tokens} tokens"
        return text


def _left_out_of(event: BlockStored | BlockRemoved) -> LeftOut:
    size, n_tokens = None, 0
    if isinstance(event, BlockStored):
        size, n_tokens = event.block_size, len(event.tokens)
    n_blocks = len(event.block_hashes)
    return LeftOut(n_blocks, size, n_tokens, event.medium, event.group_idx, event.kind)


def is_unsettled(writer: SlotWriter, own: SlotWriter | None) -> bool:
    """Is there anything that a stream before this one has left undone?"""
    return writer.is_half_cleared or (own is not None and own.rest is not None)


def _step_blocks(event: BlockStored | BlockRemoved) -> int:
    has_images = isinstance(event, BlockStored) and event.mm_hashes is not None
    return MM_STEP_BLOCKS_MAX if has_images else STEP_BLOCKS_MAX


def settling(writer: SlotWriter, own: SlotWriter | None) -> Iterator[int]:
    if own is not None:
        yield from own.settling()
    yield from writer.settling()


class BatchApplier:
    """Applies one stream's batches.  Not thread-safe; the writers take the index's lock."""

    def __init__(self, dp_rank: int, block_size: int, is_eagle: bool, counted: bool) -> None:
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._is_eagle = is_eagle
        self.is_counted = counted
        self.usual = Usual(dp_rank, block_size, is_eagle)
        self.total_blocks: int | None = None
        """Blocks of the GPU tier of each rank, where that is known."""
        self.inflated_rank: int | None = None
        """A rank with more copies announced than it has blocks: they are no copies, then."""
        self._copies: Counter[int] = Counter()
        """By rank, of the GPU tier; never more than are counted in the index."""
        self.takes_duplicates = True
        """False while events may be told again that the index holds already: then none counts."""
        self._groups: dict[tuple[int, int], str] = {}
        self._fed_ranks = {dp_rank}
        self.stored_blocks = 0
        self.removed_blocks = 0
        self.dropped: Counter[str] = Counter()
        """What was not indexed: events by reason, except "rank", which counts batches."""
        self._misfit: str | None = None
        self._size_fits = False
        """Whether a block of the registered size has come since the engine started."""
        self._other_size: LeftOut | None = None
        """The last event of another size, while none has come of the registered one."""
        self._left_out: LeftOut | None = None

    @property
    def misfit(self) -> str | None:
        """Say, for operators, what was dropped as the worker is probably registered wrongly."""
        if self._other_size is None:
            return self._misfit
        return (
            f"dropped: {self._other_size.text()}, while block_size is {self._block_size}, and "
            "nothing of that size has come; is it the engine's?"
        )

    @property
    def is_size_wrong(self) -> bool:
        """Return whether the registered block size is probably not the engine's."""
        return self._other_size is not None

    @property
    def left_out(self) -> str | None:
        """Say, for operators, what was dropped last though the worker is registered well."""
        found = self._left_out
        if found is None:
            return None
        if tier_of_medium(found.medium) is None:
            return f"not indexed: {found.text()}, a medium that is not known"
        return (
            f"not indexed: {found.text()}; only whole blocks of {self._block_size} tokens are, and "
            "this is a chunk of a KV connector, or the end of a prompt inside a block"
        )

    def applying(
        self,
        batch: Batch,
        writers: Mapping[int, SlotWriter],
        before: Place | None = None,
        skip: int = 0,
    ) -> Generator[int, None, bool]:
        """Change the index step by step.  Yields what each step has cost, in blocks or so.

        before: the place of the stream before this batch, None when it has no place in it.
        skip: events at its beginning that are in the index already.
        Returns whether the stream's own rank was emptied on the way.
        """
        rank = self._dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
        writer, own = writers.get(rank), writers.get(self._dp_rank)
        if writer is None:
            self._drop_batch(rank)
            return False
        self._fed_ranks.add(rank)
        cleared = False
        if is_unsettled(writer, own):
            yield from settling(writer, own)
        for done, event in enumerate(batch.events, 1):
            if done <= skip:
                continue
            if own is not None and before is not None:
                own.upcoming = Place(before.next_seq, done, before.digest)
            if isinstance(event, AllBlocksCleared):
                self._copies[rank] = 0
                yield from writer.clearing(stream=own)
                cleared = rank == self._dp_rank
            elif self._apply(writer, rank, event, own):
                yield EVENT_COST + len(event.block_hashes)
                if writer.is_half_cleared:
                    yield from writer.clearing()
            else:
                yield from self._applying_large(writer, rank, event, own)
        return cleared

    def apply_small(
        self,
        batch: Batch,
        writers: Mapping[int, SlotWriter],
        seq: int,
        digest: int | None,
        after: Place,
    ) -> int | None:
        """As `applying` at Place(seq, 0, digest), at once.  None: all is done.  Else what is left
        might take long, as a batch of many events or one that clears a rank does: so many of its
        events are done, and `applying` shall skip them.

        after: the place of the stream behind this batch, which comes with its last event.
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
        if is_unsettled(writer, own):
            return 0
        left = len(events)
        for event in events:
            assert not isinstance(event, AllBlocksCleared)
            left -= 1
            if own is not None:
                own.upcoming = Place(seq, len(events) - left, digest) if left else after
            if not self._apply(writer, rank, event, own):
                return len(events) - left - 1
            if writer.is_half_cleared:
                return len(events) - left
        return None

    def _apply(
        self,
        writer: SlotWriter,
        rank: int,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> bool:
        """At once; False, and nothing is done, when that takes several steps."""
        if len(event.block_hashes) > _step_blocks(event):
            return False
        tier = self._tier(rank, event)
        if tier is None:
            return True
        if rank == self._dp_rank:
            self.usual.learn(event, writer.slot, tier, counted=self.is_counted)
        if not self.total_blocks or tier is not Tier.GPU:
            return self._change(writer, tier, event, own)
        before_blocks = self.stored_blocks - self.removed_blocks
        is_done = self._change(writer, tier, event, own)
        self._count(rank, self.stored_blocks - self.removed_blocks - before_blocks)
        return is_done

    def _applying_large(
        self,
        writer: SlotWriter,
        rank: int,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """Whoever stops in between leaves the rest to the next stream of the same rank."""
        tier, before_blocks = self._tier(rank, event), self.stored_blocks - self.removed_blocks
        if tier is None:
            return
        changing = self._changing(writer, tier, event, own)
        try:
            for cost in changing:  # noqa: UP028 - `yield from` would close it as well
                yield cost
        except GeneratorExit:
            (own or writer).rest = changing
            raise
        if tier is Tier.GPU and self.total_blocks:
            self._count(rank, self.stored_blocks - self.removed_blocks - before_blocks)

    def count_usual(self, changes: Changes, done: int) -> None:
        """So many changes of the stream's own rank were carried out elsewhere."""
        removed, stored = changes.totals.tolist()
        self.removed_blocks += removed
        self.stored_blocks += stored
        if self.total_blocks:
            for is_store, holder, count in changes.rows[:done, [IS_STORE, HOLDER, COUNT]].tolist():
                if holder >> 1 & 3 == Tier.GPU:
                    self._count(self._dp_rank, count if is_store else -count)

    def stop_counting(self) -> None:
        """Duplicate stores are no copies, from now on."""
        self.is_counted, self.inflated_rank = False, None
        self.usual.forget()

    def forgetting(self, writers: Mapping[int, SlotWriter]) -> Iterator[int]:
        """The engine restarted: empty every rank this stream has fed, step by step."""
        own = writers.get(self._dp_rank)
        self._size_fits = False
        if own is not None:
            own.upcoming, own.live_at, own.unplaced_blocks = None, None, False
        self._groups.clear()
        self.usual.forget()
        self._copies.clear()
        for rank in self._fed_ranks:
            if rank in writers:
                yield from writers[rank].clearing(stream=own)

    def _change(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> bool:
        """At once; False, and nothing is done, when that takes several steps."""
        if isinstance(event, BlockRemoved):
            self.removed_blocks += writer.remove(tier, event.block_hashes, stream=own, sweep=False)
        elif not len(event.tokens):
            self.stored_blocks += writer.store_known(
                tier, event.block_hashes, counted=self._counts, stream=own
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
            stored = writer.store_at_once(
                tier,
                event.parent,
                hashes,
                names,
                counted=self.is_counted and self.takes_duplicates,
                stream=own,
            )
            if stored < 0:
                return False
            self.stored_blocks += stored
        return True

    def _count(self, rank: int, change: int) -> None:
        """So many more copies, or fewer.  Those of before this stream was opened are not known."""
        assert self.total_blocks is not None
        self._copies[rank] = max(0, self._copies[rank] + change)
        if self.is_counted and self._copies[rank] > self.total_blocks:
            self.inflated_rank = rank

    @property
    def _counts(self) -> bool:
        return self.is_counted and self.takes_duplicates

    def _changing(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """An event in parts.  Its place comes with the last of them.

        Meanwhile the slot is no use to a dump: it has half of an event.
        """
        writer.filling = True
        try:
            yield from self._parts(writer, tier, event, own)
        finally:
            writer.filling = False

    def _parts(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> Iterator[int]:
        """As `_change`, at most `_step_blocks` blocks each time something is asked of it."""
        names, counted = event.block_hashes, self._counts
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
                hashes = self._hashes(event, start)
                stored = yield from writer.storing(
                    tier, parent, hashes, names[part], counted=counted, stream=stream
                )
                self.stored_blocks += stored
                if stored < len(names[part]):
                    return  # the index is full: what follows has no parent there
            yield STEP_BLOCKS_MAX

    def _hashes(self, event: BlockStored, start: int) -> Hashes:
        return local_hashes(
            event, self._block_size, self._is_eagle, first=start, at_most=_step_blocks(event)
        )

    def drop_frames(self) -> None:
        """A message has not the form of a batch of KV events."""
        self.dropped["frames"] += 1
        self._misfit = (
            "dropped: messages that are no KV events; is kv_events_endpoint that of the engine's "
            "publisher of KV events, and not another port of it?"
        )

    def _drop_batch(self, rank: int) -> None:
        self.dropped["rank"] += 1
        self._misfit = (
            f"dropped: events of dp_rank {rank}, which the worker does not have; are its "
            "data_parallel_start_rank and data_parallel_size right?"
        )

    def drop_replayed(self, rank: int | None) -> None:
        """A batch of another rank came from the replay endpoint."""
        self.dropped["replay_of_other_rank"] += 1
        self._misfit = f"dropped: a replay of dp_rank {rank} from the replay endpoint of this one"

    def _note_fitting_size(self) -> None:
        """The engine has blocks of the registered size, whatever others it has."""
        self._size_fits = True
        if self._other_size is not None:
            self._left_out, self._other_size = self._other_size, None

    def _drop_unhashable(self, event: BlockStored, tier: Tier) -> None:
        """Count an event none of whose blocks can be hashed, and note what it was.

        Connectors announce chunks of a size of their own, and engines the end of a prompt inside a
        block: only another size on the GPU, and never the registered one, looks like a mistake.
        """
        found = _left_out_of(event)
        if event.block_size == self._block_size:
            self.dropped["partial_block"] += 1
            self._left_out = found
        elif tier is not Tier.GPU or self._size_fits:
            self.dropped["other_size"] += 1
            self._left_out = found
        else:
            self.dropped["block_size"] += 1
            self._other_size = found

    def _tier(self, rank: int, event: BlockStored | BlockRemoved) -> Tier | None:
        """Where the event takes place; None, and counted, when it is not to be indexed."""
        has_group = event.kind is not None or event.group_idx is not None
        if has_group and not self._is_prefix_cache(rank, event):
            self.dropped["attention_group"] += 1
            return None
        tier = tier_of_medium(event.medium)
        if tier is None:
            self.dropped["medium"] += 1
            self._left_out = _left_out_of(event)
        return tier

    def _is_prefix_cache(self, rank: int, event: BlockStored | BlockRemoved) -> bool:
        group, kind = event.group_idx, event.kind
        if kind is None:
            if group is None:
                return True
            kind = self._groups.get((rank, group))
            return group == 0 if kind is None else kind in FULL_ATTENTION_KINDS
        if group is not None and isinstance(event, BlockStored):
            self._learn((rank, group), kind)
        return kind in FULL_ATTENTION_KINDS

    def _learn(self, group: tuple[int, int], kind: str) -> None:
        if group in self._groups or len(self._groups) < GROUPS_MAX:
            self._groups[group] = kind
            self.usual.forget()
