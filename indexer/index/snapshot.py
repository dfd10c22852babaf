"""A consistent copy of one index: the tree, who holds what, and how far each stream had come.

The copy is taken while the index is locked, so it is a plain memory copy into arrays that were
allocated, and their pages touched, before. Everything that follows (masking, ordering, encoding)
works on the copy, while the index goes on.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.index import state_kernels as state
from indexer.index.memory import IndexMemory
from indexer.index.orphans import Orphan

Hashes = NDArray[np.uint64]

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
_SLACK_NODES = 8192
"""Nodes that may be added between the allocation and the copy at no cost."""


class Place(NamedTuple):
    """How far a stream is in the index: every batch before `next_seq`, and the first `events`
    events of that one.

    digest: of the payload of the batch before `next_seq`, by which its engine is known again; None
    when that batch was never seen.
    """

    next_seq: int
    events: int = 0
    digest: int | None = None

    @property
    def at(self) -> tuple[int, int]:
        """What orders places of one stream."""
        return self.next_seq, self.events


class IndexSnapshot(NamedTuple):
    """Row i of the node columns is node i, row 0 the root."""

    local: Hashes  # [nodes] content hash
    engine: Hashes  # [nodes] primary engine hash
    parent: NDArray[np.int32]  # [nodes], negative for the root and unused nodes
    holders: NDArray[np.uint32]  # [nodes] row of `sets`, 0 for unused nodes
    sets: NDArray[np.uint64]  # [sets, 8, words] slot bits: 4 tiers, then 4 of "see records"
    records: NDArray[np.void]  # (key, slot, tier, kind, node, count): record_kernels explains
    slots: tuple[int, ...]  # open slots that are not being cleared or filled
    places: Mapping[int, Place]  # slot -> place of the stream of that slot's rank, where known
    orphans: tuple[tuple[int, Orphan], ...]  # (slot, block whose parent is unknown)
    live_at: Mapping[int, float] | None = None
    # slot -> monotonic seconds when its stream was last heard live; None: never told of


class RawCopy:
    """Room for one copy, filled under the lock by `take` and read by `snapshot` after it."""

    def __init__(self, memory: IndexMemory) -> None:
        self._memory = memory
        self._reserve()

    def _reserve(self) -> None:
        nodes = self._memory.value(state.NODES_USED) + _SLACK_NODES
        # Filling touches the pages now; under the lock only bytes move.
        self._local = np.full(nodes, 0, np.uint64)
        self._engine = np.full(nodes, 0, np.uint64)
        self._parent = np.full(nodes, 0, np.int32)
        self._mark = np.full(nodes, 0, np.uint32)
        self._records = np.full(self._memory.column(state.RECORDS).size, 0, np.uint32)

    def take(self) -> None:
        """Copy the columns. The caller holds the lock."""
        column = self._memory.column
        self.nodes = nodes = self._memory.value(state.NODES_USED)
        if nodes > self._local.size or column(state.RECORDS).size > self._records.size:
            self._reserve()  # grown by much in a moment: rare, and only slower
        self._local[:nodes] = column(state.LOCAL)[:nodes]
        self._engine[:nodes] = column(state.ENGINE)[:nodes]
        self._parent[:nodes] = column(state.PARENT)[:nodes]
        self._mark[:nodes] = column(state.MARK)[:nodes]
        self._record_fields = column(state.RECORDS).size
        self._records[: self._record_fields] = column(state.RECORDS)
        words = self._memory.value(state.WORDS)
        bits = column(state.BITS).reshape(-1, state.PLANES, words)
        self._sets = bits[: self._memory.value(state.SETS_USED)].copy()

    def snapshot(
        self,
        slots: tuple[int, ...],
        places: Mapping[int, Place],
        orphans: tuple[tuple[int, Orphan], ...],
        live_at: Mapping[int, float],
    ) -> IndexSnapshot:
        """What was copied; the lock is not needed any more."""
        parent = self._parent[: self.nodes]
        mark = self._mark[: self.nodes]
        mark &= state.SET_MASK
        mark[parent < 0] = 0  # an unused node's column holds a link of the free list
        return IndexSnapshot(
            local=self._local[: self.nodes],
            engine=self._engine[: self.nodes],
            parent=parent,
            holders=mark,
            sets=self._sets,
            records=_records(self._records[: self._record_fields]),
            slots=slots,
            places=places,
            orphans=orphans,
            live_at=live_at,
        )


def _records(raw: NDArray[np.uint32]) -> NDArray[np.void]:
    """The live overflow records of a copied table."""
    rows = raw.reshape(-1, state.RECORD_FIELDS)
    rows = rows[rows[:, state.RECORD_META] != 0]
    meta = rows[:, state.RECORD_META] - np.uint32(1)
    low, high = rows[:, state.RECORD_LOW], rows[:, state.RECORD_HIGH].astype(np.uint64)
    records = np.empty(len(rows), RECORD)
    records["key"] = low | high << np.uint64(32)
    records["slot"] = meta >> np.uint32(3)
    records["tier"] = meta >> np.uint32(1) & np.uint32(3)
    records["kind"] = meta & np.uint32(1)
    records["node"] = rows[:, state.RECORD_NODE]
    records["count"] = rows[:, state.RECORD_COUNT]
    return records
