"""What a dump holds: the index of every partition, and recovered blocks that wait for their ranks.

A partition of the dump may come in parts: the living one, and what was recovered for ranks that
are not registered yet.  Parts of one name and block size belong together, and no rank is in two of
them.  The list is made at once, by whoever owns the selector; the copies are taken later, one by
one, on any thread.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from indexer.dumps.held_blocks import DumpedPartition, narrowed
from indexer.index.slot_writer import SlotWriter
from indexer.index.snapshot import IndexSnapshot
from select_service.core.fleet.partition import Partition
from select_service.core.fleet.recovered import Recovered
from select_service.core.identity import PartitionKey, Rank


class DumpPart(NamedTuple):
    """`take` copies the living, O(blocks); what it gives is nobody else's."""

    name: str
    block_size: int
    take: Callable[[], DumpedPartition]


def dump_parts(
    partitions: Mapping[PartitionKey, Partition], recovered: Recovered
) -> list[DumpPart]:
    """The living by model and tenant, then what waits."""
    parts = []
    for key in sorted(partitions):
        partition, name = partitions[key], f"{key.model_name}:{key.tenant_id}"
        writers = partition.table.writers()
        take = partial(_copy, name, partition.block_size, writers, partition.index.snapshot)
        parts.append(DumpPart(name, partition.block_size, take))
    parts += [DumpPart(held.name, held.block_size, partial(narrowed, held)) for held in recovered]
    return parts


def by_name(parts: Iterable[DumpPart]) -> list[list[DumpPart]]:
    """Parts that belong together, in the order of the first of each."""
    groups: dict[tuple[str, int], list[DumpPart]] = {}
    for part in parts:
        groups.setdefault((part.name, part.block_size), []).append(part)
    return list(groups.values())


def _copy(
    name: str,
    block_size: int,
    writers: Mapping[Rank, SlotWriter],
    take_snapshot: Callable[[], IndexSnapshot],
) -> DumpedPartition:
    """The ranks that are whole in the copy and have not lost their slot to another since."""
    snapshot = take_snapshot()
    whole = set(snapshot.slots)
    ranks = {
        (rank.worker_id, rank.dp_rank): writer.slot
        for rank, writer in writers.items()
        if writer.slot in whole and writer.is_open
    }
    return DumpedPartition(name, block_size, ranks, snapshot)
