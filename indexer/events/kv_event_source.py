"""Description of a rank's KV event stream: made by the core, used by the ingest."""

from collections.abc import Mapping

import msgspec

from indexer.index.kv_cache_facts import NO_FACTS, KvCacheFacts
from indexer.index.slot_writer import SlotWriter


class KvSource(msgspec.Struct, frozen=True, eq=False):
    """Event stream of a rank.

    writers: index slot of every rank of the same worker, because a batch may name a sibling rank
    """

    worker_id: int
    dp_rank: int
    endpoint: str
    replay_endpoint: str | None
    block_size: int
    is_eagle: bool
    counted: bool
    """Repeated stores are counted and removed singly; if false, a store is idempotent."""
    writers: Mapping[int, SlotWriter]
    server_key: str | None = None
    """Required public key of both endpoints, in Z85; None means unencrypted."""
    facts: KvCacheFacts = NO_FACTS
    """Facts about the KV cache that events do not show."""
    total_blocks: int | None = None
    """Blocks of the rank's KV cache, never exceeded; None if unknown."""
