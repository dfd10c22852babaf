"""The /dump document of one partition, encoded chunk by chunk from snapshots of its blocks.

A document is {"block_size": B, "watermarks": {...}, "events": [...]}: "stored" events that rebuild
the index when they are applied in order. Parents come before children; the device tier comes first,
then each lower tier. An unbranched run of blocks of one owner is one event. Every owner's events
use its own engine hashes; further hashes of the same block follow as events of one block.

Fields that are only for another service of this kind: a block announced several times has "copies";
"watermarks" maps "worker_id:dp_rank" to the sequence number of the last batch that is in the dump;
"partial_batches" maps it to the number of events of the next batch that are in it too.
"""

import json
from collections.abc import Iterator, Sequence

from indexer.dumps.held_blocks import DumpedPartition, RankKey
from indexer.dumps.runs import Run, SnapshotRuns
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
    readings = [SnapshotRuns(part.snapshot) for part in parts]
    separator = ""
    for tier in Tier:
        event_id = 0
        for rank, run_batch in _batches_of(parts, readings, tier):
            events = [_event(run, rank, tier, event_id + i) for i, run in enumerate(run_batch)]
            event_id += len(run_batch)
            yield (separator + ",".join(events)).encode()
            separator = ","
    yield b"]}"


def _batches_of(
    parts: Sequence[DumpedPartition], readings: Sequence[SnapshotRuns], tier: Tier
) -> Iterator[tuple[RankKey, list[Run]]]:
    """Owners by part and slot, each with everything it holds in the tier."""
    for part, reading in zip(parts, readings, strict=True):
        ranks = {slot: rank for rank, slot in part.ranks.items()}
        for slot in sorted(set(ranks).intersection(part.snapshot.slots)):
            for batch in _batches(reading.runs(slot, tier)):
                yield ranks[slot], batch


def _places(parts: Sequence[DumpedPartition]) -> bytes:
    """The members that say how far each stream is in the dump; nothing when none is known."""
    watermarks, partial = {}, {}
    for part in parts:
        for (worker_id, dp_rank), slot in part.ranks.items():
            place = part.snapshot.places.get(slot)
            if place is not None and place.next_seq > 0:
                watermarks[f"{worker_id}:{dp_rank}"] = place.next_seq - 1
            if place is not None and place.events > 0:
                partial[f"{worker_id}:{dp_rank}"] = place.events
    members = {"watermarks": watermarks, "partial_batches": partial}
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


def _event(run: Run, rank: RankKey, tier: Tier, event_id: int) -> str:
    parent = "null" if run.parent is None else str(run.parent)
    names, contents = run.names.tolist(), run.locals.tolist()
    if run.copies is None:
        blocks = ",".join(map(_block, names, contents))
    else:
        blocks = ",".join(map(_counted_block, names, contents, run.copies))
    return (
        f'{{"worker_id":{rank[0]},"storage_tier":"{STORAGE_TIERS[tier]}",'
        f'"event":{{"event_id":{event_id},"data":{{"stored":{{"parent_hash":{parent},'
        f'"start_position":null,"blocks":[{blocks}]}}}},"dp_rank":{rank[1]}}}}}'
    )


def _block(name: int, local: int) -> str:
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null}}'


def _counted_block(name: int, local: int, copies: int) -> str:
    extra = "" if copies == 1 else f',"copies":{copies}'
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null{extra}}}'
