"""Checks of dumps of the index and of snapshots."""

import functools

import numpy as np
import xxhash

from indexer.dumps.compact_reader import CompactReader, DumpError, LoadLimits
from indexer.dumps.compact_writer import _encode_frame, compact_chunks
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.json_writer import document_chunks
from indexer.dumps.recovered_blocks import Adoption, DumpedPartition, adopt_blocks
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier

LIMITS = LoadLimits(2048, full_partitions=2, partitions=4, ranks=64, sets_bytes=1 << 20)
FRAMES_MAX = 64


def check_json_dumps(data: bytes) -> None:
    """Require that a dump reads the same in one and in two pieces, and adopt its blocks."""
    if not data:
        return
    content = data[1:]
    middle = len(content) * data[0] // 256
    whole, read = _read_dump(JsonReader(LIMITS), [content])
    split, _ = _read_dump(JsonReader(LIMITS), [content[:middle], content[middle:]])
    assert whole == split, (whole, split)
    _adopt(read)


def check_compact_dumps(data: bytes) -> None:
    """Read frames, each with a size of two bytes before it in the input, under valid checksums."""
    frames, at = list[bytes](), 0
    while at + 2 <= len(data) and len(frames) < FRAMES_MAX:
        size = int.from_bytes(data[at : at + 2], "big")
        frames.append(_frame_of(data[at + 2 : at + 2 + size]))
        at += 2 + size
    content = b"".join(frames)
    whole, read = _read_dump(CompactReader(LIMITS), [content])
    split, _ = _read_dump(CompactReader(LIMITS), [content[:9], content[9:]])
    assert whole == split, (whole, split)
    _adopt(read)


def check_raw_compact_dumps(data: bytes) -> None:
    _read_dump(CompactReader(LIMITS), [data])


def _frame_of(body: bytes) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    return b"\xc6" + (len(body) + 8).to_bytes(4, "big") + checksum + body


def _read_dump(
    reader: CompactReader | JsonReader, pieces: list[bytes]
) -> tuple[object, list[DumpedPartition]]:
    """Return the compared values, and the partitions of a complete dump."""
    try:
        for piece in pieces:
            reader.feed(piece)
        reader.finish()
    except DumpError:
        return "error", []
    parts = reader.partitions
    return [(part.name, part.block_size, dict(part.ranks), part.blocks) for part in parts], parts


def _adopt(partitions: list[DumpedPartition]) -> None:
    """Adopt all ranks of each partition in an index, as recovery does, and check the index."""
    for part in partitions:
        index = PrefixIndex(LIMITS.blocks)
        adopt_blocks([Adoption(part, rank, index.open_slot()) for rank in part.ranks])
        index.check_invariants()


@functools.cache
def _parts() -> list[DumpedPartition]:
    index = PrefixIndex(LIMITS.blocks)
    writers = [index.open_slot(), index.open_slot()]
    hashes = np.arange(1, 7, dtype=np.uint64)
    for writer in writers:
        writer.store(Tier.GPU, None, hashes, hashes * np.uint64(7))
    ranks = {(1, 0): writers[0].slot, (2, 1): writers[1].slot}
    return [DumpedPartition("m:t", 16, ranks, index.snapshot())]


def json_dump_seeds() -> list[bytes]:
    return [b"\x80" + b"".join(document_chunks(_parts())), b"\x10{}", b'\0{"m:t":{"events":[]}}']


def compact_dump_seeds() -> list[bytes]:
    bodies = [chunk[13:] for chunk in compact_chunks(_parts())]
    return [b"".join(len(body).to_bytes(2, "big") + body for body in bodies)]


def raw_compact_dump_seeds() -> list[bytes]:
    return [b"".join(compact_chunks(_parts())), _encode_frame({"format": "x"})]
