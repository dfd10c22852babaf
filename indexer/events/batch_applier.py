"""Decoded batches -> changes of the index, for the ranks of one worker.

Knows which rank a batch belongs to, which attention groups count as prefix cache and what is not
indexed and why.  Not here: sequence numbers and replays (event_feed), decoding (kv_events).
"""

from collections import Counter
from collections.abc import Mapping

from indexer.events.kv_events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    local_hashes,
)
from indexer.index.prefix_index import SlotWriter
from indexer.index.snapshot import Place
from indexer.tiers import Tier, tier_of_medium

FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Groups whose blocks prove a cached prefix.  Sliding windows and state spaces keep the tail only.
Source: kv_cache_spec_kind of vLLM's KV events."""
GROUPS_MAX = 1024
"""Attention groups remembered over all ranks of a worker; real engines have a handful."""


class BatchApplier:
    """Applies one stream's batches.  Not thread-safe; the writers take the index's lock."""

    def __init__(self, dp_rank: int, block_size: int, is_eagle: bool, counted: bool) -> None:
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._is_eagle = is_eagle
        self._counted = counted
        self.takes_duplicates = True
        """False while events may be told again that the index holds already: then none counts."""
        self._groups: dict[tuple[int, int], str] = {}
        self._fed_ranks = {dp_rank}
        self.stored_blocks = 0
        self.removed_blocks = 0
        self.dropped: Counter[str] = Counter()
        """What was not indexed: events by reason, except "rank", which counts batches."""

    def apply(
        self,
        batch: Batch,
        writers: Mapping[int, SlotWriter],
        seq: int | None = None,
        skip: int = 0,
    ) -> bool:
        """Change the index.  True when the stream's own rank was emptied on the way.

        seq: the batch's place in the stream, None when it has none.  skip: events at its beginning
        that are in the index already.
        """
        rank = self._dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
        writer, own = writers.get(rank), writers.get(self._dp_rank)
        if writer is None:
            self.dropped["rank"] += 1
            return False
        self._fed_ranks.add(rank)
        cleared = False
        for done, event in enumerate(batch.events, 1):
            if done <= skip:
                continue
            if own is not None and seq is not None:
                own.upcoming = Place(seq, done)
            if isinstance(event, AllBlocksCleared):
                writer.clear(stream=own)
                cleared = rank == self._dp_rank
            else:
                tier = self._tier(rank, event)
                if tier is not None:
                    self._change(writer, tier, event, own)
        return cleared

    def forget(self, writers: Mapping[int, SlotWriter]) -> None:
        """The engine restarted: empty every rank this stream has fed."""
        own = writers.get(self._dp_rank)
        if own is not None:
            own.upcoming, own.live_at, own.unplaced_blocks = None, None, False
        for rank in self._fed_ranks:
            if rank in writers:
                writers[rank].clear(stream=own)
        self._groups.clear()

    def _change(
        self,
        writer: SlotWriter,
        tier: Tier,
        event: BlockStored | BlockRemoved,
        own: SlotWriter | None,
    ) -> None:
        if isinstance(event, BlockRemoved):
            self.removed_blocks += writer.remove(tier, event.block_hashes, stream=own)
        else:
            self._store(writer, tier, event, own)

    def _store(
        self, writer: SlotWriter, tier: Tier, event: BlockStored, own: SlotWriter | None
    ) -> None:
        counted = self._counted and self.takes_duplicates
        if not len(event.tokens):
            self.stored_blocks += writer.store_known(
                tier, event.block_hashes, counted=counted, stream=own
            )
            return
        hashes = local_hashes(event, self._block_size, self._is_eagle)
        if not len(hashes):
            self.dropped["block_size"] += 1
            return
        self.stored_blocks += writer.store(
            tier,
            event.parent,
            hashes,
            event.block_hashes[: len(hashes)],
            counted=counted,
            stream=own,
        )

    def _tier(self, rank: int, event: BlockStored | BlockRemoved) -> Tier | None:
        """Where the event takes place; None, and counted, when it is not to be indexed."""
        if not self._is_prefix_cache(rank, event):
            self.dropped["attention_group"] += 1
            return None
        tier = tier_of_medium(event.medium)
        if tier is None:
            self.dropped["medium"] += 1
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
