"""Dumps of one part, and one adoption, in the words of the tests."""

from collections.abc import Iterator, Mapping

from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, RankKey, adopt_blocks
from indexer.index.index_snapshot import IndexSnapshot
from indexer.index.slot_writer import SlotWriter


def dump_chunks(
    snapshot: IndexSnapshot, block_size: int, ranks: Mapping[int, RankKey]
) -> Iterator[bytes]:
    """`ranks`: slot -> (worker_id, dp_rank), others are left out"""
    named = {rank: slot for slot, rank in ranks.items()}
    return document_chunks([DumpedPartition("", block_size, named, snapshot)])


def attach(held: DumpedPartition, rank: RankKey, writer: SlotWriter) -> int:
    """The blocks recorded."""
    return adopt_blocks([Adoption(held, rank, writer)])
