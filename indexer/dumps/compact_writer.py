"""Writer of the compact dump format: columns of a snapshot, in frames with checksums.

A stream is a sequence of frames. A frame is a msgpack `bin` value (so any msgpack library can walk
the stream): 8 bytes XXH3-64 of the rest, little-endian, and the rest, a msgpack map. The maps:

    {"format": FORMAT, "version": VERSION, "salt_rule": SALT_RULE}            first
    {"partition": "model:tenant", "block_size", "nodes", "sets", "words", "records",
     "ranks": [[slot, worker_id, dp_rank, next_seq | nil, events], ...],
     "digests": [u64 | nil, ...],
     "taken_at": unix seconds, "ages": [seconds | nil, ...]}                  begins a partition
    {"local", "engine": u64 little-endian, "depth", "holders": zlib of u32}   CHUNK_NODES rows
    {"sets": zlib of u64 [sets, 8, words]}                                    pieces, in order
    {"records": zlib of RECORD rows}                                          pieces, in order
    {"orphans": [[slot, tier, engine_hash, parent, local, copies], ...]}      pieces
    {"keyed_roots": u64 little-endian [n, 3], "has_images": bool}             at most one
    {"end": {"partitions", "blocks"}}                                         last

Nodes are numbered from 1 in depth-first order, parents before children; `depth` of a node is its
number minus the parent's, where the root has number 0. So `depth` is 1 along a chain, which is why
the columns beside the hashes shrink to almost nothing.

`ages` has an item for each of `ranks`: the seconds from the last applied live batch of its stream
to `taken_at`; nil without such a batch since the rank's place is known. Both members are optional.
Of ranks with several cache groups, `planes` is the number of planes of a set where it is more than
8, two for each lane, and `groups` has the groups of each slot (`groups_record.GroupsRecord`).
So is `digests`, with an item for each of `ranks`: the XXH3-64 of the batch before `next_seq`.

`keyed_roots` are the first blocks of sequences with a salt or an adapter: content hash, and the
parts that salt and adapter add to the seed.  `has_images` is true if blocks had images or other
keys of their own.  A dump without `salt_rule` comes from a version that salted first blocks only.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from indexer.dumps import tree_order_kernels
from indexer.dumps.dump_time import DumpTime
from indexer.dumps.recovered_blocks import DumpedPartition
from indexer.index.header_kernels import PLANES
from indexer.index.index_snapshot import ANCHOR_RECORD, IndexSnapshot

FORMAT = "select-service-dump"
VERSION = 1
SALT_RULE = 2
"""Rule of block hashes for salts: every block of a salted prompt has the salt in its seed."""
MEDIA_TYPE = "application/msgpack"

CHUNK_NODES = 16_384
PIECE_BYTES = 1 << 20  # bytes of sets and records per frame, before compression
ORPHANS_PER_FRAME = 4096
COMPRESSION = 1
"""Level of zlib: chains compress to nothing at any level; more effort only costs time."""
BIN32 = b"\xc6"
CHECKSUM_BYTES = 8
AGE_S_MAX = 1e9
"""Largest age in seconds, three decades; older streams get this age."""


def compact_chunks(
    partitions: Iterable[DumpedPartition], clock: Callable[[], DumpTime] | None = None
) -> Iterator[bytes]:
    """Yield the whole stream, frame by frame. A partition's snapshot is released before the next.

    Without a clock the stream omits the times of the last live batches.
    Memory beyond the snapshot: O(nodes) index arrays and one frame.
    """
    yield _encode_frame({"format": FORMAT, "version": VERSION, "salt_rule": SALT_RULE})
    count = blocks = 0
    for partition in partitions:
        count += 1
        blocks += partition.blocks
        yield from _partition_frames(
            partition, {} if clock is None else _rank_ages(partition, clock())
        )
    yield _encode_frame({"end": {"partitions": count, "blocks": blocks}})


def _encode_frame(content: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode(content)
    size = CHECKSUM_BYTES + len(body)
    checksum = xxhash.xxh3_64_intdigest(body)
    return BIN32 + size.to_bytes(4, "big") + checksum.to_bytes(CHECKSUM_BYTES, "little") + body


def _partition_frames(partition: DumpedPartition, ages: dict[str, Any]) -> Iterator[bytes]:
    snapshot = partition.snapshot
    order = np.empty(snapshot.parent.size, np.int32)
    order = order[: tree_order_kernels.preorder_nodes(snapshot.parent, order)]
    number = np.zeros(snapshot.parent.size, np.uint32)
    # Numbers follow the order of writing, so a reader knows every parent before its children.
    number[order] = np.arange(1, order.size + 1, dtype=np.uint32)
    records = _renumber_records(snapshot, number)
    yield _encode_frame(
        {
            "partition": partition.name,
            "block_size": partition.block_size,
            "nodes": order.size,
            "sets": snapshot.sets.shape[0],
            "words": snapshot.sets.shape[2],
            "records": records.size,
            "ranks": _rank_rows(partition),
            "digests": _rank_digests(partition),
        }
        | ages
        | _lane_members(snapshot)
    )
    for start in range(0, order.size, CHUNK_NODES):
        nodes = order[start : start + CHUNK_NODES]
        mine = np.arange(start + 1, start + 1 + nodes.size, dtype=np.uint32)
        yield _encode_frame(
            {
                "local": snapshot.local[nodes].tobytes(),
                "engine": snapshot.engine[nodes].tobytes(),
                "depth": _compress(mine - number[snapshot.parent[nodes]]),
                "holders": _compress(snapshot.holders[nodes]),
            }
        )
    yield from _piece_frames("sets", snapshot.sets)
    yield from _piece_frames("records", records)
    orphans = [[slot, *orphan] for slot, orphan in snapshot.orphans]
    for start in range(0, len(orphans), ORPHANS_PER_FRAME):
        yield _encode_frame({"orphans": orphans[start : start + ORPHANS_PER_FRAME]})
    roots = snapshot.keyed_roots
    if roots is not None:
        yield _encode_frame(
            {"keyed_roots": roots.rows.astype("<u8").tobytes(), "has_images": roots.has_images}
        )


def _lane_members(snapshot: IndexSnapshot) -> dict[str, Any]:
    """Return the members about cache groups; none if every rank has only a dense one."""
    members: dict[str, Any] = {}
    if snapshot.sets.shape[1] != PLANES:
        members["planes"] = snapshot.sets.shape[1]
    if snapshot.groups:
        members["groups"] = [[slot, record] for slot, record in snapshot.groups.items()]
    return members


def _rank_rows(partition: DumpedPartition) -> list[list[int | None]]:
    rows: list[list[int | None]] = []
    for (worker_id, dp_rank), slot in partition.ranks.items():
        place = partition.snapshot.positions.get(slot)
        next_seq, events = (None, 0) if place is None else place.sort_key
        rows.append([slot, worker_id, dp_rank, next_seq, events])
    return rows


def _rank_digests(partition: DumpedPartition) -> list[int | None]:
    places = map(partition.snapshot.positions.get, partition.ranks.values())
    return [None if place is None else place.digest for place in places]


def _rank_ages(partition: DumpedPartition, now: DumpTime) -> dict[str, Any]:
    """Return the members with times; none if the snapshot's own source did not record times."""
    live_at = partition.snapshot.live_at
    if live_at is None:
        return {}
    ages = [
        None if slot not in live_at else min(max(0.0, now.monotonic - live_at[slot]), AGE_S_MAX)
        for slot in partition.ranks.values()
    ]
    return {"taken_at": now.unix, "ages": ages}


def _renumber_records(snapshot: IndexSnapshot, number: NDArray[np.uint32]) -> NDArray[np.void]:
    """Return the records with new node numbers: in the key of an anchor, in `node` of an alias."""
    records = snapshot.records.copy()
    anchors = records["kind"] == ANCHOR_RECORD
    records["key"][anchors] = number[records["key"][anchors].astype(np.int64)]
    records["node"][~anchors] = number[records["node"][~anchors]]
    return records


def _piece_frames(name: str, array: NDArray[Any]) -> Iterator[bytes]:
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    for start in range(0, raw.size, PIECE_BYTES):
        yield _encode_frame(
            {name: zlib.compress(raw[start : start + PIECE_BYTES].tobytes(), COMPRESSION)}
        )


def _compress(column: NDArray[np.uint32]) -> bytes:
    return zlib.compress(column.tobytes(), COMPRESSION)
