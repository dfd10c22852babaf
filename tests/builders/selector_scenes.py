"""Views of a selector that tests compare."""

import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import PartitionKey

KEY = PartitionKey("m", "default")


def load_of(selector, worker_id=1, dp_rank=0):
    (row,) = [
        row
        for loads in selector.inspection.partition_loads()
        for row in loads.loads
        if (row.worker_id, row.dp_rank) == (worker_id, dp_rank)
    ]
    return row.potential_prefill_tokens, row.potential_decode_blocks, row.active_requests


def store(selector, rank, tokens, tier=Tier.GPU):
    hashes = compute_block_hashes(np.arange(tokens, dtype=np.uint32), 4)
    engine_hashes = hashes + np.uint64(rank.worker_id * 1000)
    selector.fleet.partitions[KEY].table.writer_of(rank).store(tier, None, hashes, engine_hashes)
