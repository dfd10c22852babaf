"""Blocks of a partition read from a dump, and their attachment to a live index.

A dumped partition is a snapshot that no longer changes. When one of its ranks gets a slot in the
index of a partition, the rank's blocks are announced there chunk by chunk, and the slot's writer
takes over the place of the rank's stream, so that the stream continues from there.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps import tree_order_kernels
from indexer.dumps.block_runs import BlockRun, SnapshotRuns
from indexer.index.block_tree import BlockTree, add_lane_step
from indexer.index.cache_groups import CacheGroups
from indexer.index.groups_record import GroupsRecord
from indexer.index.index_snapshot import IndexSnapshot
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import N_TIERS, Tier

COPIES_MAX = 4096
"""Limit of announcements accepted for a block."""

RankKey = tuple[int, int]


class DumpedPartition(NamedTuple):
    """Partition of a dump; `name` is "model:tenant", and either part may contain further colons."""

    name: str
    block_size: int
    ranks: Mapping[RankKey, int]  # (worker_id, dp_rank) -> slot of the snapshot
    snapshot: IndexSnapshot

    @property
    def blocks(self) -> int:
        """Number of distinct blocks with a holder."""
        return int(np.count_nonzero(self.snapshot.holders))


def narrow_to_ranks(held: DumpedPartition) -> DumpedPartition:
    """Return the partition without blocks held only by slots of other ranks than its `ranks`.

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
        positions={slot: place for slot, place in snapshot.positions.items() if slot in slots},
        orphans=tuple(row for row in snapshot.orphans if row[0] in slots),
        live_at=snapshot.live_at,
        keyed_roots=snapshot.keyed_roots,
        groups={slot: record for slot, record in snapshot.groups.items() if slot in slots},
    )
    return held._replace(snapshot=narrow)


def _with_ancestors(parent: NDArray[np.int32], held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask [nodes] of the held nodes and all their ancestors."""
    order = np.empty(parent.size, np.int32)
    order = order[: tree_order_kernels.preorder_nodes(parent, order)]
    needed = np.zeros(parent.size, np.bool_)
    tree_order_kernels.mark_ancestors(parent, order, held, needed)
    return needed | held


class Adoption(NamedTuple):
    """Rank with blocks in a dump, and the empty slot for these blocks."""

    partition: DumpedPartition
    rank: RankKey
    writer: SlotWriter


def never_stop() -> bool:
    return False


def adopt_blocks(
    adoptions: Iterable[Adoption], should_stop: Callable[[], bool] = never_stop
) -> int:
    """Attach blocks to their slots.  Return the number of blocks recorded.

    should_stop: called before each run of blocks; True stops the work, and the slots stay marked as
    being filled, since the process ends.
    """
    recorded = 0
    readings: dict[int, SnapshotRuns] = {}
    for held, rank, writer in adoptions:
        # One reader per snapshot: making one costs O(nodes).
        if id(held.snapshot) not in readings:
            readings[id(held.snapshot)] = SnapshotRuns(held.snapshot)
        recorded += _attach_rank(held, rank, writer, readings[id(held.snapshot)], should_stop)
        if should_stop():
            break
        writer.is_filling = False
    return recorded


def _attach_rank(
    held: DumpedPartition,
    rank: RankKey,
    writer: SlotWriter,
    readings: SnapshotRuns,
    should_stop: Callable[[], bool],
) -> int:
    """Attach the blocks of a rank.  O(nodes of the dump); the index is locked per run of
    blocks.
    """
    slot = held.ranks[rank]
    bridge = readings.build_bridge(slot)
    recorded = 0
    if held.snapshot.keyed_roots is not None:
        writer.keys.merge_rows(held.snapshot.keyed_roots)
    record = held.snapshot.groups.get(slot)
    if record is not None:
        restore_groups(writer, record, held.block_size)
    for tier in held.snapshot.tiers:
        for run in readings.read_runs(slot, tier, bridge):
            recorded += writer.store(
                tier, run.parent, run.content_hashes, run.engine_hashes, counted=False
            )
            _add_copies(writer, tier, run)
            _note_names(writer, tier, run)
            if should_stop():
                return recorded
    # Bridges exist only to place the blocks below a gap; the engine has removed these blocks.
    if bridge:
        recorded -= writer.remove(Tier.GPU, bridge.removed)
    for owner, orphan in held.snapshot.orphans:
        if owner == slot:
            local = np.array([orphan.local], np.uint64)
            name = np.array([orphan.engine_hash], np.uint64)
            writer.store(orphan.tier, orphan.parent, local, name, counted=False)
            further = np.array([min(orphan.copies, COPIES_MAX) - 1], np.int64)
            writer.add_copies(orphan.tier, name, further)
    writer.position = held.snapshot.positions.get(slot)
    writer.live_at = (held.snapshot.live_at or {}).get(slot)
    # Without a place the stream may announce the same blocks again, which must not count twice.
    writer.lacks_groups = record is None and recorded > 0
    writer.has_unpositioned_blocks = writer.position is None and recorded > 0
    return recorded


def restore_groups(writer: SlotWriter, record: GroupsRecord, block_size: int) -> None:
    """Give a slot the cache groups of a dump, and the index planes for their lanes."""
    groups = CacheGroups.from_record(record, block_size)
    try:
        while writer.change_tree(partial(add_lane_step, record.lanes)):
            pass
    except MemoryError:
        groups.overflowed = True
        return
    writer.cache_groups, writer.groups_record = groups, record
    if record.lookahead:
        writer.change_tree(partial(BlockTree.note_lookahead, lookahead=record.lookahead))
    layout, slot = groups.layout(), writer.slot
    writer.change_tree(lambda tree: tree.layouts.set_layout(slot, layout, block_size))


def _note_names(writer: SlotWriter, tier: int, run: BlockRun) -> None:
    """Note the names of a lane's blocks, in case it turns out later how they are made."""
    groups = writer.cache_groups
    if groups is None or tier < N_TIERS or not groups.keeps_names:
        return
    names = run.engine_hashes.tolist()
    for name, copies in zip(names, run.copies or [1] * len(names), strict=True):
        groups.note_names(tier, [name], copies)


def _add_copies(writer: SlotWriter, tier: int, run: BlockRun) -> None:
    """Add the repeated announcements of a run."""
    if run.copies is None:
        return
    copies = np.minimum(np.array(run.copies, np.int64), COPIES_MAX)
    writer.add_copies(tier, run.engine_hashes, copies - 1)
