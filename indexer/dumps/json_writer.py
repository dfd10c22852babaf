"""Writer of the /dump document of a partition, chunk by chunk from snapshots of its blocks.

A document is {"block_size": B, "watermarks": {...}, "events": [...]}: "stored" events that rebuild
the index when they are applied in order. Parents come before children; the device tier comes first,
then each lower tier. An unbranched run of blocks of an owner is one event. Every owner's events
use its own engine hashes; further hashes of the same block follow as events of one block.

An owner that has removed a block, but not those below it, has no hash for the block any more. If
its events must name such a block as a parent, the block is stored first, under a hash that the
owner does not use, and removed by the last events of the document: so every reader finds every
parent, and the blocks below the gap match again when the engine announces the block anew.

`residency_domain` is that of Dynamo 1.6, which has caches beside those of its workers.

Fields only for other instances of this service: a block announced several times has "copies";
"watermarks" maps "worker_id:dp_rank" to the sequence number of the last batch in the dump;
"digests" to the XXH3-64 of that batch, if it was seen, which identifies its engine's life;
"partial_batches" to the number of events of the next batch that are in the dump too; "keyed_roots"
the content hash of the first block of a sequence with a salt or an adapter to the parts that both
add to the seed; "has_images" is true if blocks had images or other keys of their own; "groups" the
cache groups of a rank with several; "lanes", behind the events, are events of the same form with
the blocks of the groups beside the dense one. They apply before the removals of "events", with the
storage tier "lane:1" for the first lane.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from indexer.dumps.block_runs import BlockRun, SnapshotRuns
from indexer.dumps.recovered_blocks import DumpedPartition, RankKey
from indexer.hashing.block_hashing import Hashes
from indexer.tiers import Tier

CHUNK_BLOCKS_MAX = 4096  # a chunk ends with the event that reaches this

STORAGE_TIERS = {
    Tier.GPU: "device",
    Tier.CPU: "host_pinned",
    Tier.DISK: "disk",
    Tier.EXTERNAL: "external",
}


def document_chunks(parts: Sequence[DumpedPartition]) -> Iterator[bytes]:
    """Yield the document in chunks of JSON, from parts with one block size and disjoint ranks.

    Memory beyond the snapshots: O(blocks of all parts); a chunk is at most some MB.
    """
    members = _position_members(parts) + _key_members(parts) + _group_members(parts)
    yield b'{"block_size":%d,%s"events":[' % (parts[0].block_size, members)
    owners = [_Owner(*owner) for part in parts for owner in _list_owners(part)]
    yield from _join_events(_owner_changes(owners))
    if any(part.snapshot.groups for part in parts):
        yield b'],"lanes":['
        yield from _join_events(_lane_changes(owners))
    yield b"]}"


def _join_events(
    changes_of: Iterator[tuple[int, RankKey, Sequence[BlockRun | Hashes]]],
) -> Iterator[bytes]:
    """Yield the elements of an array of events; their numbers count per tier."""
    event_ids: Counter[int] = Counter()
    separator = ""
    for tier, rank, changes in changes_of:
        first = event_ids[tier]
        events = [_event_text(each, rank, tier, first + i) for i, each in enumerate(changes)]
        event_ids[tier] += len(changes)
        yield (separator + ",".join(events)).encode()
        separator = ","


class _Owner(NamedTuple):
    rank: RankKey
    slot: int
    reading: SnapshotRuns


def _list_owners(part: DumpedPartition) -> Iterator[tuple[RankKey, int, SnapshotRuns]]:
    """Yield the complete slots with their ranks, by slot."""
    reading = SnapshotRuns(part.snapshot)
    ranks = {slot: rank for rank, slot in part.ranks.items()}
    for slot in sorted(set(ranks).intersection(part.snapshot.slots)):
        yield ranks[slot], slot, reading


def _owner_changes(
    owners: Sequence[_Owner],
) -> Iterator[tuple[int, RankKey, Sequence[BlockRun | Hashes]]]:
    """Yield batches of the owners' stores, tier by tier, and finally of their removals."""
    removed: dict[_Owner, Hashes] = {}
    for tier in Tier:
        for owner in owners:
            bridge = None
            # A bridge is computed again per tier rather than stored: it has one name per node.
            if tier == Tier.GPU or owner in removed:
                bridge = owner.reading.build_bridge(owner.slot)
            if bridge is not None and tier == Tier.GPU:
                removed[owner] = bridge.removed
            for batch in _batch_runs(owner.reading.read_runs(owner.slot, tier, bridge)):
                yield tier, owner.rank, batch
    for owner, names in removed.items():
        for start in range(0, names.size, CHUNK_BLOCKS_MAX):
            yield Tier.GPU, owner.rank, [names[start : start + CHUNK_BLOCKS_MAX]]


def _lane_changes(
    owners: Sequence[_Owner],
) -> Iterator[tuple[int, RankKey, Sequence[BlockRun | Hashes]]]:
    """Yield batches of the stores in the owners' lanes."""
    for owner in owners:
        lanes = owner.reading.tiers[len(Tier) :]
        bridge = owner.reading.build_bridge(owner.slot) if lanes else None
        for tier in lanes:
            for batch in _batch_runs(owner.reading.read_runs(owner.slot, tier, bridge)):
                yield tier, owner.rank, batch


def name_of_tier(tier: int) -> str:
    """Return the storage tier in dumps, of a tier or a lane."""
    lane = tier - len(Tier) + 1
    return f"lane:{lane}" if lane > 0 else STORAGE_TIERS[Tier(tier)]


def _position_members(parts: Sequence[DumpedPartition]) -> bytes:
    """Return the members with the position of each stream in the dump; empty if none is known."""
    watermarks, digests, partial = {}, {}, {}
    for part in parts:
        for (worker_id, dp_rank), slot in part.ranks.items():
            place, key = part.snapshot.positions.get(slot), f"{worker_id}:{dp_rank}"
            if place is None:
                continue
            if place.next_seq > 0:
                watermarks[key] = place.next_seq - 1
                if place.digest is not None:
                    digests[key] = place.digest
            if place.events > 0:
                partial[key] = place.events
    return _encode_members(
        {"watermarks": watermarks, "digests": digests, "partial_batches": partial}
    )


def _key_members(parts: Sequence[DumpedPartition]) -> bytes:
    """Return the members with the keys of sequences; empty if no block has any key."""
    found = [part.snapshot.keyed_roots for part in parts]
    tables = [table for table in found if table is not None]
    rows = {str(row[0]): row[1:] for table in tables for row in table.rows.tolist()}
    has_images = any(table.has_images for table in tables)
    return _encode_members({"keyed_roots": rows, "has_images": has_images})


def _group_members(parts: Sequence[DumpedPartition]) -> bytes:
    """Return the member with the cache groups of ranks with several; empty without any."""
    groups = {
        f"{worker_id}:{dp_rank}": msgspec.to_builtins(part.snapshot.groups[slot])
        for part in parts
        for (worker_id, dp_rank), slot in part.ranks.items()
        if slot in part.snapshot.groups
    }
    return _encode_members({"groups": groups})


def _encode_members(members: Mapping[str, object]) -> bytes:
    """Return the members that have a value."""
    return b"".join(
        f'"{name}":{json.dumps(member, separators=(",", ":"))},'.encode()
        for name, member in members.items()
        if member
    )


def _batch_runs(runs: Iterator[BlockRun]) -> Iterator[list[BlockRun]]:
    batch: list[BlockRun] = []
    blocks = 0
    for run in runs:
        batch.append(run)
        blocks += run.engine_hashes.size
        if blocks >= CHUNK_BLOCKS_MAX:
            yield batch
            batch, blocks = [], 0
    if batch:
        yield batch


def _event_text(change: BlockRun | Hashes, rank: RankKey, tier: int, event_id: int) -> str:
    data = _stored_text(change) if isinstance(change, BlockRun) else _removed_text(change)
    return (
        f'{{"worker_id":{rank[0]},"storage_tier":"{name_of_tier(tier)}",'
        f'"residency_domain":"worker",'
        f'"event":{{"event_id":{event_id},"data":{data},"dp_rank":{rank[1]}}}}}'
    )


def _stored_text(run: BlockRun) -> str:
    parent = "null" if run.parent is None else str(run.parent)
    names, contents = run.engine_hashes.tolist(), run.content_hashes.tolist()
    if run.copies is None:
        blocks = ",".join(map(_block_text, names, contents))
    else:
        blocks = ",".join(map(_counted_block_text, names, contents, run.copies))
    return f'{{"stored":{{"parent_hash":{parent},"start_position":null,"blocks":[{blocks}]}}}}'


def _removed_text(names: Hashes) -> str:
    return f'{{"removed":{{"block_hashes":[{",".join(map(str, names.tolist()))}]}}}}'


def _block_text(name: int, local: int) -> str:
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null}}'


def _counted_block_text(name: int, local: int, copies: int) -> str:
    extra = "" if copies == 1 else f',"copies":{copies}'
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null{extra}}}'
