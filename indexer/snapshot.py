"""The /dump document of one partition, encoded chunk by chunk from a snapshot of its index.

A document is {"block_size": B, "watermarks": {...}, "events": [...]}: "stored" events that rebuild
the index when they are applied in order. Parents come before children; the device tier comes first,
then each lower tier. An unbranched run of blocks of one owner is one event. Every owner's events
use its own engine hashes; further hashes of the same block follow as events of one block.

Fields that are only for another service of this kind: a block announced several times has "copies";
"watermarks" maps "worker_id:dp_rank" to the sequence number of the last batch that is in the dump;
"partial_batches" maps it to the number of events of the next batch that are in it too.
"""

import json
from collections.abc import Iterator, Mapping

from indexer.index_snapshot import IndexSnapshot
from indexer.snapshot_runs import Run, SnapshotRuns
from indexer.tiers import Tier

CHUNK_BLOCKS_MAX = 4096  # a chunk ends with the event that reaches this

STORAGE_TIERS = {
    Tier.GPU: "device",
    Tier.CPU: "host_pinned",
    Tier.DISK: "disk",
    Tier.EXTERNAL: "external",
}


def dump_chunks(
    snapshot: IndexSnapshot, block_size: int, ranks: Mapping[int, tuple[int, int]]
) -> Iterator[bytes]:
    """The document in chunks of JSON. `ranks`: slot -> (worker_id, dp_rank), others are left out.

    Memory beyond the snapshot: O(blocks of the index); a chunk is at most some MB.
    """
    yield b'{"block_size":%d,%s"events":[' % (block_size, _places(snapshot, ranks))
    readings = SnapshotRuns(snapshot)
    separator = ""
    for tier in Tier:
        event_id = 0
        for slot in sorted(set(ranks).intersection(snapshot.slots)):
            for batch in _batches(readings.runs(slot, tier)):
                events = [
                    _event(run, ranks[slot], tier, event_id + i) for i, run in enumerate(batch)
                ]
                event_id += len(batch)
                yield (separator + ",".join(events)).encode()
                separator = ","
    yield b"]}"


def _places(snapshot: IndexSnapshot, ranks: Mapping[int, tuple[int, int]]) -> bytes:
    """The members that say how far each stream is in the dump; nothing when none is known."""
    watermarks, partial = {}, {}
    for slot, (worker_id, dp_rank) in ranks.items():
        place = snapshot.places.get(slot)
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


def _event(run: Run, rank: tuple[int, int], tier: Tier, event_id: int) -> str:
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
