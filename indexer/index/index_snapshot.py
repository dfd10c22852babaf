"""Consistent copy of an index: the tree, the holders, and the position of each stream.

The copy shows a single moment, although it is made in pieces while the index continues
(snapshot_kernels), into arrays with all pages touched beforehand. Everything that follows
(ordering, encoding) works on the copy.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index import header_kernels as state
from indexer.index import snapshot_kernels as kernels
from indexer.index.groups_record import GroupsRecord
from indexer.index.index_memory import IndexMemory
from indexer.index.keyed_roots import KeyedRootRows
from indexer.index.orphans import Orphan

ALIAS_RECORD, ANCHOR_RECORD = 0, 1

RECORD = np.dtype(
    [
        ("key", np.uint64),
        ("slot", np.uint32),
        ("tier", np.uint8),
        ("kind", np.uint8),
        ("node", np.uint32),
        ("count", np.uint32),
    ]
)
COPY_STEP_BYTES = 1 << 20  # bytes copied per locked step
_SLACK_NODES = 8192
_SLACK_SETS = 64
"""Spare rows for additions between the allocation and the moment of the copy."""
_NODE_BYTES = 24


class StreamPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of a stream in the index: all batches before `next_seq`, and `events` events of it.

    digest: hash of the payload of the batch before `next_seq`, which identifies the engine's life;
    None if that batch was never seen.
    """

    next_seq: int
    events: int = 0
    digest: int | None = None

    @property
    def sort_key(self) -> tuple[int, int]:
        """Sort key of the places of a stream."""
        return self.next_seq, self.events


class IndexSnapshot(NamedTuple):
    """Copied columns of an index; row i of the node columns is node i, row 0 the root."""

    local: Hashes  # [nodes] content hash
    engine: Hashes  # [nodes] primary engine hash
    parent: NDArray[np.int32]  # [nodes], negative for the root and unused nodes
    holders: NDArray[np.uint32]  # [nodes] row of `sets`, 0 for unused nodes
    # [sets, planes, words] slot bits: 4 tiers, 4 of "irregular, see records", one and one per lane
    sets: NDArray[np.uint64]
    records: NDArray[np.void]  # (key, slot, tier, kind, node, count): record_kernels explains
    slots: tuple[int, ...]  # open slots that are not being cleared or filled
    positions: Mapping[
        int, StreamPosition
    ]  # slot -> place of the stream of that slot's rank, where known
    orphans: tuple[tuple[int, Orphan], ...]  # (slot, block with an unknown parent)
    live_at: Mapping[int, float] | None = None
    # slot -> monotonic seconds of the last live batch; None if the source does not record times
    keyed_roots: KeyedRootRows | None = None  # None without any adapter, salt or image
    groups: Mapping[int, GroupsRecord] = MappingProxyType({})  # slot -> cache groups, if several

    @property
    def tiers(self) -> range:
        """Numbers of the tiers and lanes of the sets."""
        return range(state.N_TIERS + (self.sets.shape[1] - state.PLANES) // 2)


class SnapshotCopy:
    """Copy in progress: `begin` at the moment, `copy_step` while there is more, `end`, `snapshot`.

    The first three require the index lock. An index can make a single copy at a time.
    """

    def __init__(self, memory: IndexMemory) -> None:
        self._memory = memory
        self.reserve_arrays()

    def reserve_arrays(self) -> None:
        """Allocate for an index of the present size. Raises MemoryError."""
        value, column = self._memory.value, self._memory.column
        nodes = value(state.NODES_USED) + _SLACK_NODES
        sets = value(state.SETS_USED) + _SLACK_SETS
        self._words, self._set_words = value(state.WORDS), value(state.SET_WORDS)
        # Filling touches the pages now; under the lock only bytes move.
        self._local = np.full(nodes, 0, np.uint64)
        self._engine = np.full(nodes, 0, np.uint64)
        self._parent = np.full(nodes, 0, np.int32)
        self._holders = np.full(nodes, 0, np.uint32)
        self._bits = np.full(sets * self._set_words, 0, np.uint64)
        self._rows = np.full(column(state.RECORDS).size, 0, np.uint32)
        self._copied_nodes = np.full(nodes, 0, np.uint8)
        self._copied_sets = np.full(sets, 0, np.uint8)
        self._copied_rows = np.full(self._rows.size // state.RECORD_FIELDS, 0, np.uint8)

    def begin_copy(self) -> bool:
        """Begin the copy at this moment. Return False, without effect, if the index has grown
        too much.
        """
        memory = self._memory
        value = memory.value
        if (
            # The arrays were sized without the lock; on growth since then the caller allocates
            # again.
            value(state.NODES_USED) > self._local.size
            or value(state.SETS_USED) > self._copied_sets.size
            or value(state.WORDS) != self._words
            or value(state.SET_WORDS) != self._set_words
            or memory.column(state.RECORDS).size != self._rows.size
        ):
            return False
        assert not memory.snapshot_arrays, "one copy at a time"
        self._nodes, self._sets = value(state.NODES_USED), value(state.SETS_USED)
        # possible only while a slot is being cleared
        self._has_empty_sets = value(state.SETS_UNLISTED) > 0
        self._sets_done = self._rows_done = 0
        self._from_bits = memory.column(state.BITS)
        self._from_rows = memory.column(state.RECORDS)
        # Growth replaces these arrays; the copy still reads the old arrays, which must stay mapped.
        memory.snapshot_arrays = [self._from_bits, self._from_rows]
        for column, array in self._columns():
            memory.header[column] = array.ctypes.data
            memory.header[column + 1] = array.size
        ends = (self._nodes, self._sets, self._copied_rows.size)
        for counter, end in zip(_COUNTERS, ends, strict=True):
            memory.header[counter] = 0
            memory.header[counter + 1] = end
        return True

    def _columns(self) -> list[tuple[int, NDArray[Any]]]:
        return [
            (state.COPY_LOCAL, self._local),
            (state.COPY_ENGINE, self._engine),
            (state.COPY_PARENT, self._parent),
            (state.COPY_MARK, self._holders),
            (state.COPY_BITS, self._bits),
            (state.COPY_RECORDS, self._rows),
            (state.COPIED_NODES, self._copied_nodes),
            (state.COPIED_SETS, self._copied_sets),
            (state.COPIED_RECORDS, self._copied_rows),
        ]

    def copy_step(self) -> bool:
        """Copy a bounded piece. Return whether there may be more."""
        header = self._memory.header
        if header[state.COPY_NODES] < self._nodes:
            kernels.copy_nodes(header, COPY_STEP_BYTES // _NODE_BYTES)
        elif self._sets_done < self._sets:
            row = self._set_words * 8
            start = self._sets_done
            stop = min(self._sets, start + max(1, COPY_STEP_BYTES // row))
            kernels.copy_sets(self._copied_sets, self._from_bits, self._bits, start, stop)
            header[state.COPY_SETS] = self._sets_done = stop
        elif self._rows_done < self._copied_rows.size:
            start = self._rows_done
            stop = start + COPY_STEP_BYTES // (4 * state.RECORD_FIELDS)
            stop = min(self._copied_rows.size, stop)
            kernels.copy_records(self._copied_rows, self._from_rows, self._rows, start, stop)
            header[state.COPY_ROWS] = self._rows_done = stop
        else:
            return False
        return True

    def end_copy(self) -> None:
        """Detach the copy from the index."""
        for counter in _COUNTERS:
            self._memory.header[counter] = self._memory.header[counter + 1] = 0
        self._memory.snapshot_arrays = []

    def snapshot(
        self,
        slots: tuple[int, ...],
        positions: Mapping[int, StreamPosition],
        orphans: tuple[tuple[int, Orphan], ...],
        live_at: Mapping[int, float],
    ) -> IndexSnapshot:
        """Return the copied data; needs no lock."""
        sets = self._bits.reshape(-1, self._set_words // self._words, self._words)[: self._sets]
        holders = self._holders[: self._nodes]
        if self._has_empty_sets:
            is_empty: NDArray[np.bool_] = ~np.any(sets, axis=(1, 2))
            holders[is_empty[holders]] = 0
        return IndexSnapshot(
            local=self._local[: self._nodes],
            engine=self._engine[: self._nodes],
            parent=self._parent[: self._nodes],
            holders=holders,
            sets=sets,
            records=_unpack_records(self._rows),
            slots=slots,
            positions=positions,
            orphans=orphans,
            live_at=live_at,
        )


_COUNTERS = (state.COPY_NODES, state.COPY_SETS, state.COPY_ROWS)


def _unpack_records(rows: NDArray[np.uint32]) -> NDArray[np.void]:
    """Return the live overflow records of a copied table."""
    slots = rows.size // state.RECORD_FIELDS
    keys = np.empty(slots, np.uint64)
    fields = np.empty((slots, 5), np.int64)
    live = kernels.unpack_records(rows, keys, fields)
    records = np.empty(live, RECORD)
    records["key"] = keys[:live]
    for column, name in enumerate(("slot", "tier", "kind", "node", "count")):
        records[name] = fields[:live, column]
    return records
