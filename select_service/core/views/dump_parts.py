"""Parts of a dump: the index of every partition, and recovered blocks waiting for their ranks.

A partition of the dump may consist of several parts: the live one, and blocks recovered for ranks
that are not registered yet. Parts with the same name and block size belong together, and no rank is
in two of them. The owner of the selector creates the list in one step; the copies are taken later,
one by one, on any thread.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from indexer.dumps.recovered_blocks import DumpedPartition, narrow_to_ranks
from indexer.index.index_snapshot import IndexSnapshot
from indexer.index.slot_writer import SlotWriter
from select_service.core.identity import PartitionKey, Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.registry.fleet.recovered_blocks import RecoveredBlocks


class DumpPart(NamedTuple):
    """Part of a dump; `take` copies a live index, O(blocks), and the result is not shared."""

    name: str
    block_size: int
    take: Callable[[], DumpedPartition]


def list_dump_parts(
    partitions: Mapping[PartitionKey, Partition], recovered: RecoveredBlocks
) -> list[DumpPart]:
    """Return the live parts by model and tenant, then the waiting parts."""
    parts = []
    for key in sorted(partitions):
        partition, name = partitions[key], f"{key.model_name}:{key.tenant_id}"
        writers = partition.table.writers_by_rank()
        take = partial(_copy_ranks, name, partition.block_size, writers, partition.index.snapshot)
        parts.append(DumpPart(name, partition.block_size, take))
    parts += [
        DumpPart(held.name, held.block_size, partial(narrow_to_ranks, held)) for held in recovered
    ]
    return parts


def group_by_name(parts: Iterable[DumpPart]) -> list[list[DumpPart]]:
    """Group parts that belong together, in the order of their first part."""
    groups: dict[tuple[str, int], list[DumpPart]] = {}
    for part in parts:
        groups.setdefault((part.name, part.block_size), []).append(part)
    return list(groups.values())


def _copy_ranks(
    name: str,
    block_size: int,
    writers: Mapping[Rank, SlotWriter],
    take_snapshot: Callable[[], IndexSnapshot],
) -> DumpedPartition:
    """Copy the ranks that are complete in the snapshot and still own their slot."""
    snapshot = take_snapshot()
    whole = set(snapshot.slots)
    ranks = {
        (rank.worker_id, rank.dp_rank): writer.slot
        for rank, writer in writers.items()
        # A slot may have been cleared or assigned to another rank while the copy was taken.
        if writer.slot in whole and writer.is_open
    }
    return DumpedPartition(name, block_size, ranks, snapshot)
