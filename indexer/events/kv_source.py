"""What a listener must know of one rank's KV events: stated by the core, used by the ingest."""

from collections.abc import Mapping

import msgspec

from indexer.index.slot_writer import SlotWriter


class KvSource(msgspec.Struct, frozen=True, eq=False):
    """One rank's event stream.  `writers` holds the index slot of every rank of the same worker,
    because a batch may name a sibling rank."""

    worker_id: int
    dp_rank: int
    endpoint: str
    replay_endpoint: str | None
    block_size: int
    is_eagle: bool
    counted: bool
    """Duplicate stores are counted and removed one by one; otherwise a store is idempotent."""
    writers: Mapping[int, SlotWriter]
    server_key: str | None = None
    """Public key, in Z85, that has to answer at both endpoints; None: plain."""
    total_blocks: int | None = None
    """Blocks of the rank's KV cache, where that is known: it never holds more copies."""
