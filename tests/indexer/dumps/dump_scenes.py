"""Helpers for dumps with one partition and for single adoptions."""

from collections.abc import Iterator, Mapping

from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, RankKey, adopt_blocks
from indexer.index.index_snapshot import IndexSnapshot
from indexer.index.slot_writer import SlotWriter


def dump_chunks(
    snapshot: IndexSnapshot, block_size: int, ranks: Mapping[int, RankKey]
) -> Iterator[bytes]:
    """Return the chunks of a dump.

    ranks: map from slot to (worker_id, dp_rank); other slots are left out
    """
    named = {rank: slot for slot, rank in ranks.items()}
    return document_chunks([DumpedPartition("", block_size, named, snapshot)])


def attach(held: DumpedPartition, rank: RankKey, writer: SlotWriter) -> int:
    """Adopt the blocks of a rank, and return the number of recorded blocks."""
    return adopt_blocks([Adoption(held, rank, writer)])
