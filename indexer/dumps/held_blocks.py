"""Blocks of a partition that were read from a dump, and their attachment to a living index.

A dumped partition is a snapshot that nobody changes any more. When one of its ranks gets a slot in
the index of a partition, its blocks are announced there in its name, chunk by chunk, and the slot's
writer takes over the place of the rank's stream, so that the stream goes on from there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps import dump_kernels
from indexer.dumps.runs import Run, SnapshotRuns
from indexer.index.slot_writer import SlotWriter
from indexer.index.snapshot import IndexSnapshot
from indexer.tiers import Tier

COPIES_MAX = 4096
"""Announcements of one block that are believed."""

RankKey = tuple[int, int]


class DumpedPartition(NamedTuple):
    """`name` is "model:tenant"; which colon is the border is not known."""

    name: str
    block_size: int
    ranks: Mapping[RankKey, int]  # (worker_id, dp_rank) -> slot of the snapshot
    snapshot: IndexSnapshot

    @property
    def blocks(self) -> int:
        """Distinct blocks that somebody holds."""
        return int(np.count_nonzero(self.snapshot.holders))


def narrowed(held: DumpedPartition) -> DumpedPartition:
    """The same without the blocks that only slots hold whose ranks it does not name.

    O(nodes), and copies of three columns, unless all slots are named.
    """
    snapshot = held.snapshot
    slots = set(held.ranks.values())
    if slots >= set(snapshot.slots):
        return held
    mask = np.zeros(snapshot.sets.shape[2], np.uint64)
    for slot in slots:
        mask[slot >> 6] |= np.uint64(1 << (slot & 63))
    sets = snapshot.sets & mask
    is_held: NDArray[np.bool_] = np.asarray(sets.any(axis=(1, 2)))
    holders = np.where(is_held[snapshot.holders], snapshot.holders, np.uint32(0))
    needed = _with_ancestors(snapshot.parent, holders != 0)
    records = snapshot.records
    narrow = IndexSnapshot(
        local=snapshot.local,
        engine=snapshot.engine,
        parent=np.where(needed, snapshot.parent, np.int32(-1)),
        holders=holders,
        sets=sets,
        records=records[np.isin(records["slot"], list(slots))],
        slots=tuple(slot for slot in snapshot.slots if slot in slots),
        places={slot: place for slot, place in snapshot.places.items() if slot in slots},
        orphans=tuple(row for row in snapshot.orphans if row[0] in slots),
        live_at=snapshot.live_at,
    )
    return held._replace(snapshot=narrow)


def _with_ancestors(parent: NDArray[np.int32], held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[nodes] the held ones and all above them."""
    order = np.empty(parent.size, np.int32)
    order = order[: dump_kernels.preorder(parent, order)]
    needed = np.zeros(parent.size, np.bool_)
    dump_kernels.mark_ancestors(parent, order, held, needed)
    return needed | held


class Adoption(NamedTuple):
    """A rank that has blocks in a dump, and the empty slot that is to have them."""

    held: DumpedPartition
    rank: RankKey
    writer: SlotWriter


def never() -> bool:
    return False


def adopt(adoptions: Iterable[Adoption], is_over: Callable[[], bool] = never) -> int:
    """Carry them out.  Returns the blocks recorded.

    is_over: asked before each run of blocks; when it says so, the rest stays where it is, and the
    slots stay marked as being filled, since the process ends.
    """
    recorded = 0
    readings: dict[int, SnapshotRuns] = {}
    for held, rank, writer in adoptions:
        if id(held.snapshot) not in readings:
            readings[id(held.snapshot)] = SnapshotRuns(held.snapshot)
        recorded += _attach(held, rank, writer, readings[id(held.snapshot)], is_over)
        if is_over():
            break
        writer.filling = False
    return recorded


def _attach(
    held: DumpedPartition,
    rank: RankKey,
    writer: SlotWriter,
    readings: SnapshotRuns,
    is_over: Callable[[], bool],
) -> int:
    """O(nodes of the dump); the index is locked for one run of blocks at a time."""
    slot = held.ranks[rank]
    bridge = readings.bridge(slot)
    recorded = 0
    for tier in Tier:
        for run in readings.runs(slot, tier, bridge):
            recorded += writer.store(tier, run.parent, run.locals, run.names, counted=False)
            _repeat(writer, tier, run)
            if is_over():
                return recorded
    if bridge:
        recorded -= writer.remove(Tier.GPU, bridge.removed)
    for owner, orphan in held.snapshot.orphans:
        if owner == slot:
            local = np.array([orphan.local], np.uint64)
            name = np.array([orphan.engine_hash], np.uint64)
            writer.store(Tier(orphan.tier), orphan.parent, local, name, counted=False)
            further = np.array([min(orphan.copies, COPIES_MAX) - 1], np.int64)
            writer.add_copies(Tier(orphan.tier), name, further)
    writer.place = held.snapshot.places.get(slot)
    writer.live_at = (held.snapshot.live_at or {}).get(slot)
    writer.unplaced_blocks = writer.place is None and recorded > 0
    return recorded


def _repeat(writer: SlotWriter, tier: Tier, run: Run) -> None:
    """Announce again what was announced more than once."""
    if run.copies is None:
        return
    copies = np.minimum(np.array(run.copies, np.int64), COPIES_MAX)
    writer.add_copies(tier, run.names, copies - 1)
