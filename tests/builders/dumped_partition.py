"""A partition with blocks of some workers, as a dump contains."""

import numpy as np

from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.index.index_snapshot import StreamPosition
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier


def a_dump(*worker_ids, name="llama3:8b:t", block_size=4, blocks=2):
    index = PrefixIndex(100)
    ranks = {}
    for worker_id in worker_ids:
        writer = index.open_slot()
        names = np.arange(10, 10 + blocks, dtype=np.uint64)
        writer.store(Tier.GPU, None, names, names)
        writer.position = StreamPosition(7)
        ranks[worker_id, 0] = writer.slot
    return DumpedPartition(name, block_size, ranks, index.snapshot())
