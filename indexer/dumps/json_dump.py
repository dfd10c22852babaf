"""The /dump document of one partition, encoded chunk by chunk from snapshots of its blocks.

A document is {"block_size": B, "watermarks": {...}, "events": [...]}: "stored" events that rebuild
the index when they are applied in order. Parents come before children; the device tier comes first,
then each lower tier. An unbranched run of blocks of one owner is one event. Every owner's events
use its own engine hashes; further hashes of the same block follow as events of one block.

An owner that has removed a block, but not those below it, has no hash for it any more. Where its
events must name such a block as a parent, it is stored first, under a hash that the owner does not
use, and removed by the last events of the document: so every reader finds every parent, and what is
below the gap is found again when the engine announces the block anew.

Fields that are only for another service of this kind: a block announced several times has "copies";
"watermarks" maps "worker_id:dp_rank" to the sequence number of the last batch that is in the dump;
"digests" to the XXH3-64 of that batch, where it was seen, by which its engine is known again;
"partial_batches" to the number of events of the next batch that are in it too.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from indexer.dumps.held_blocks import DumpedPartition, RankKey
from indexer.dumps.runs import Run, SnapshotRuns
from indexer.hashing.hashes import Hashes
from indexer.tiers import Tier

CHUNK_BLOCKS_MAX = 4096  # a chunk ends with the event that reaches this

STORAGE_TIERS = {
    Tier.GPU: "device",
    Tier.CPU: "host_pinned",
    Tier.DISK: "disk",
    Tier.EXTERNAL: "external",
}


def document_chunks(parts: Sequence[DumpedPartition]) -> Iterator[bytes]:
    """The document in chunks of JSON, of parts that have one block size and no rank in common.

    Memory beyond the snapshots: O(blocks of all parts); a chunk is at most some MB.
    """
    yield b'{"block_size":%d,%s"events":[' % (parts[0].block_size, _places(parts))
    owners = [_Owner(*owner) for part in parts for owner in _owners(part)]
    event_ids = dict.fromkeys(Tier, 0)
    separator = ""
    for tier, rank, changes in _changes(owners):
        first = event_ids[tier]
        events = [_event(each, rank, tier, first + i) for i, each in enumerate(changes)]
        event_ids[tier] += len(changes)
        yield (separator + ",".join(events)).encode()
        separator = ","
    yield b"]}"


class _Owner(NamedTuple):
    rank: RankKey
    slot: int
    reading: SnapshotRuns


def _owners(part: DumpedPartition) -> Iterator[tuple[RankKey, int, SnapshotRuns]]:
    """By slot, all that are whole."""
    reading = SnapshotRuns(part.snapshot)
    ranks = {slot: rank for rank, slot in part.ranks.items()}
    for slot in sorted(set(ranks).intersection(part.snapshot.slots)):
        yield ranks[slot], slot, reading


def _changes(
    owners: Sequence[_Owner],
) -> Iterator[tuple[Tier, RankKey, Sequence[Run | Hashes]]]:
    """Batches of what owners store, tier by tier, and at last remove."""
    removed: dict[_Owner, Hashes] = {}
    for tier in Tier:
        for owner in owners:
            bridge = None
            if tier == Tier.GPU or owner in removed:
                bridge = owner.reading.bridge(owner.slot)
            if bridge is not None and tier == Tier.GPU:
                removed[owner] = bridge.removed
            for batch in _batches(owner.reading.runs(owner.slot, tier, bridge)):
                yield tier, owner.rank, batch
    for owner, names in removed.items():
        for start in range(0, names.size, CHUNK_BLOCKS_MAX):
            yield Tier.GPU, owner.rank, [names[start : start + CHUNK_BLOCKS_MAX]]


def _places(parts: Sequence[DumpedPartition]) -> bytes:
    """The members that say how far each stream is in the dump; nothing when none is known."""
    watermarks, digests, partial = {}, {}, {}
    for part in parts:
        for (worker_id, dp_rank), slot in part.ranks.items():
            place, key = part.snapshot.places.get(slot), f"{worker_id}:{dp_rank}"
            if place is None:
                continue
            if place.next_seq > 0:
                watermarks[key] = place.next_seq - 1
                if place.digest is not None:
                    digests[key] = place.digest
            if place.events > 0:
                partial[key] = place.events
    members = {"watermarks": watermarks, "digests": digests, "partial_batches": partial}
    return b"".join(
        f'"{name}":{json.dumps(member, separators=(",", ":"))},'.encode()
        for name, member in members.items()
        if member
    )


def _batches(runs: Iterator[Run]) -> Iterator[list[Run]]:
    batch: list[Run] = []
    blocks = 0
    for run in runs:
        batch.append(run)
        blocks += run.names.size
        if blocks >= CHUNK_BLOCKS_MAX:
            yield batch
            batch, blocks = [], 0
    if batch:
        yield batch


def _event(change: Run | Hashes, rank: RankKey, tier: Tier, event_id: int) -> str:
    data = _stored(change) if isinstance(change, Run) else _removed(change)
    return (
        f'{{"worker_id":{rank[0]},"storage_tier":"{STORAGE_TIERS[tier]}",'
        f'"event":{{"event_id":{event_id},"data":{data},"dp_rank":{rank[1]}}}}}'
    )


def _stored(run: Run) -> str:
    parent = "null" if run.parent is None else str(run.parent)
    names, contents = run.names.tolist(), run.locals.tolist()
    if run.copies is None:
        blocks = ",".join(map(_block, names, contents))
    else:
        blocks = ",".join(map(_counted_block, names, contents, run.copies))
    return f'{{"stored":{{"parent_hash":{parent},"start_position":null,"blocks":[{blocks}]}}}}'


def _removed(names: Hashes) -> str:
    return f'{{"removed":{{"block_hashes":[{",".join(map(str, names.tolist()))}]}}}}'


def _block(name: int, local: int) -> str:
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null}}'


def _counted_block(name: int, local: int, copies: int) -> str:
    extra = "" if copies == 1 else f',"copies":{copies}'
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null{extra}}}'
