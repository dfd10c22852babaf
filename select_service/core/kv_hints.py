"""Hints for bookings: another worker of the same type that holds more of the prompt.

Only blocks that engines announced count. Partitions without a worker type cost nothing.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.tiers import Tier
from select_service.core.array_types import Mask
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.kv_hint import KvFetch, KvHint, KvHintAction

HintOutcome: TypeAlias = Literal["given", "none", "unnamed"]
SOURCES_MAX = 64
"""Maximum number of ranks that are tried as a source."""
HINT_BLOCKS_MAX = 65_536
"""Maximum number of hashes in a hint; some milliseconds of work."""


class KvHints:
    """Maker of the hints of a process."""

    def __init__(self, free_ranks: Callable[[Partition], Mask]) -> None:
        """free_ranks: returns bool[n_slots], the ranks that are not busy"""
        self._free_ranks = free_ranks

    def make_hint(
        self, partition: Partition, slot: int, block_hashes: Hashes, message_id: str
    ) -> KvHint | None:
        """Return the hint for a booking on a slot, or None.

        block_hashes: uint64[n_blocks] of the prompt
        O(blocks + slots) in a partition with worker types
        """
        if slot not in partition.hint_slots:
            return None
        hint, outcome = self._find_hint(partition, slot, block_hashes, message_id)
        partition.hint_outcomes[outcome] += 1
        return hint

    def _find_hint(
        self, partition: Partition, slot: int, block_hashes: Hashes, message_id: str
    ) -> tuple[KvHint | None, HintOutcome]:
        outcome: HintOutcome = "none"
        blocks = partition.index.match(block_hashes)[:, Tier.GPU]
        for source in self._sources_by_preference(partition, slot, blocks):
            row = partition.table.row_at(source)
            endpoint = row.worker.control_endpoint(row.rank.dp_rank)
            if endpoint is None:
                continue
            path = block_hashes[: min(int(blocks[source]), HINT_BLOCKS_MAX)]
            names = partition.index.name_prefix(source, path)
            if names is None:
                outcome = "unnamed"
            # Events may have changed the index since the match.
            elif len(names) > blocks[slot]:
                fetch = KvFetch(block_hashes=names.tolist(), source_control_endpoint=endpoint)
                action = KvHintAction(payload=fetch)
                return KvHint(message_id=message_id, actions=[action]), "given"
        return None, outcome

    def _sources_by_preference(
        self, partition: Partition, slot: int, blocks: np.ndarray[tuple[int], np.dtype[np.int32]]
    ) -> list[int]:
        """Return slots of other workers of the same type with more blocks: free ranks first, then
        by number of blocks.
        """
        table, worker = partition.table, partition.table.row_at(slot).worker
        kind = worker.registration.router_hint_worker_type

        def may_send(source: int) -> bool:
            other = table.row_at(source).worker
            is_same_type = other.registration.router_hint_worker_type == kind
            return is_same_type and other.worker_id != worker.worker_id

        ahead = partition.hint_slots.intersection(np.flatnonzero(blocks > blocks[slot]).tolist())
        others = np.array(list(filter(may_send, ahead)), np.int64)
        if not len(others):
            return []
        is_busy = ~self._free_ranks(partition)[others]
        order = np.lexsort((others, -blocks[others], is_busy))
        found: list[int] = others[order[:SOURCES_MAX]].tolist()
        return found
