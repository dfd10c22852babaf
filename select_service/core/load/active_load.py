"""Active load of one partition: which blocks are live on which slot, and how many prefill tokens.

A reservation references its prompt blocks, by sequence hash, and grows output blocks.  The active
blocks of a slot are the sum of the weights of its distinct live blocks.  Weight is 1 until a decay
says otherwise; a decay sets (does not multiply) the weight of those blocks of one reservation that
nobody else on the slot references; the weight stays with the block until its last reference goes.

Source of the rules: the reference selection service, measured (docs/architecture.md, "Load").
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.mutex import Mutex
from select_service.core.load import kernels
from select_service.core.load import load_layout as layout
from select_service.core.load.growing_table import (
    TOUCHED_IN_A_STEP,
    GrowingTable,
    count_of,
    owner_of,
)
from select_service.core.load.table_kernels import KEY

PerSlot = npt.NDArray[np.int64]

_SLOTS_AT_FIRST = 64


class Prefills(NamedTuple):
    """What is booked and known of the unfinished prefills of each slot; see load_layout."""

    booked: PerSlot
    left: PerSlot
    numbers: npt.NDArray[np.int64]
    followed: npt.NDArray[np.uint64]
    stale: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, rows: int) -> "Prefills":
        return cls(
            booked=np.zeros(rows, np.int64),
            left=np.zeros(rows, np.int64),
            numbers=np.zeros((rows, layout.N_PREFILLS), np.int64),
            followed=np.zeros(rows // 64, np.uint64),
            stale=np.zeros(rows // 64, np.uint64),
        )

    def grown(self, rows: int) -> "Prefills":
        """A copy with so many rows."""
        grown = Prefills.of(rows)
        for column, old in zip(grown, self, strict=True):
            column[: len(old)] = old
        return grown

    def first(self, n_slots: int) -> "Prefills":
        """Views of the first rows, and of all bits."""
        booked, left, numbers = self.booked[:n_slots], self.left[:n_slots], self.numbers[:n_slots]
        return Prefills(booked, left, numbers, self.followed, self.stale)


_PREFILL_PAIRS = (layout.BOOKED, layout.LEFT, layout.PREFILLS, layout.FOLLOWED, layout.STALE)


class ActiveLoad:
    """Load of the slots of one partition.  The ledger's kernels write it, through the header.

    Kernels of other threads may read what the header names, under `lock`.
    """

    def __init__(self, lock: Mutex | None = None) -> None:
        """lock: None: nobody else reads it"""
        self._lock = nullcontext() if lock is None else lock
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        """How kernels reach all of it (load_layout); never replaced."""
        self._references = self._table(layout.REFERENCES, kernels.REFERENCE_FIELDS)
        self._prefixes = self._table(layout.PREFIXES, kernels.PREFIX_FIELDS)
        self._holders = self._table(layout.HOLDERS, kernels.HOLDER_FIELDS)
        self._all_totals = np.zeros((_SLOTS_AT_FIRST, layout.N_TOTALS), np.int64)
        self._all_fractions = np.zeros(_SLOTS_AT_FIRST, np.float64)
        self._all_newest = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self._all_only_decode = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self._all_prefills = Prefills.of(_SLOTS_AT_FIRST)
        self._lacks_memory = False
        """The last preparation found none."""
        self.header[layout.MUTEX] = 0 if lock is None else lock.address
        self.header.view(np.float64)[layout.REPORTED] = 1.0
        self._show(0)

    def _table(self, at: int, fields: int) -> GrowingTable:
        return GrowingTable(self.header, at, fields)

    def _name(self, at: int, array: npt.NDArray[Any]) -> None:
        self.header[at], self.header[at + 1] = array.ctypes.data, array.size

    @property
    def reported_share(self) -> float:
        """Of the last hundred or so prefills that ended, those whose end callers reported."""
        return float(self.header.view(np.float64)[layout.REPORTED])

    @property
    def n_slots(self) -> int:
        return int(self.header[layout.N_SLOTS])

    def reserve_slots(self, n_slots: int) -> None:
        """Let `ensure_slots` find room for so many.  O(1) but for doublings.

        Raises MemoryError, and has changed nothing: rows of all arrays grow together or not at all.
        """
        rows = len(self._all_totals)
        if n_slots <= rows:
            return
        while rows < n_slots:
            rows *= 2
        more = rows - len(self._all_totals)
        spare = np.zeros((more, layout.N_TOTALS), np.int64)
        totals = np.vstack([self._all_totals, spare])
        fractions = np.concatenate([self._all_fractions, np.zeros(more)])
        newest = np.concatenate([self._all_newest, np.zeros(more, np.int64)])
        only_decode = np.concatenate([self._all_only_decode, np.zeros(more, np.int64)])
        prefills = self._all_prefills.grown(rows)
        self._all_only_decode = only_decode
        self._all_totals, self._all_fractions, self._all_newest = totals, fractions, newest
        self._all_prefills = prefills
        self._show(self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Let slots 0 .. n_slots-1 exist.  Never shrinks: a freed slot may return."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._show(n_slots)

    def _show(self, n_slots: int) -> None:
        with self._lock:
            self.totals = self._all_totals[:n_slots]
            self.fractions = self._all_fractions[:n_slots]
            self.newest = self._all_newest[:n_slots]
            self._name(layout.TOTALS, self.totals)
            self._name(layout.FRACTIONS, self.fractions)
            self._name(layout.NEWEST, self.newest)
            self.only_decode = self._all_only_decode[:n_slots]
            self._name(layout.ONLY_DECODE, self.only_decode)
            self.prefills = self._all_prefills.first(n_slots)
            for pair, column in zip(_PREFILL_PAIRS, self.prefills, strict=True):
                self._name(pair, column)
            self.header[layout.N_SLOTS] = n_slots

    def _tables(self) -> tuple[GrowingTable, GrowingTable, GrowingTable]:
        return self._references, self._prefixes, self._holders

    def reserve_room(self, blocks: int) -> None:
        """Let the next booking of so many blocks find room.  Raises MemoryError, loses nothing."""
        for table in self._tables():
            with self._lock:
                table.reserve(blocks)

    def prepare(self, blocks: int) -> bool:
        """One step for a booking of so many blocks; returns whether another one is needed.

        Where memory lacks there is none.  What has no bounds of its own, the first touches of
        pages, comes first; then rows move, which bookings would do as well, some at a time.
        """
        try:
            touched = any(table.prepare(blocks) for table in self._tables())
        except MemoryError:
            self._lacks_memory = True
            return False
        self._lacks_memory = False
        if touched:
            return True
        with self._lock:
            return any(table.move_some() for table in self._tables())

    def is_prepared(self, blocks: int) -> bool:
        """Does a booking of so many blocks touch no more new pages than a step of preparing does,
        and no table in its two generations?

        Where memory lacks it may try.
        """
        if self._lacks_memory:
            return True
        untouched = sum(table.untouched(blocks) for table in self._tables())
        is_growing = any(table.is_growing for table in self._tables())
        return untouched <= TOUCHED_IN_A_STEP and not is_growing

    def give_back(self) -> None:
        """One step of giving back what tables have left behind."""
        for table in self._tables():
            table.give_back()

    def active_blocks(self) -> PerSlot:
        """int64[n_slots]: active blocks, rounded half away from zero."""
        out = np.empty(self.n_slots, np.int64)
        kernels.active_blocks(self.header, out)
        return out

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally.  O(rows * slots), for tests."""
        for table in self._tables():
            table.check_invariants()
        holding = [int(np.bitwise_count(f[kernels.BITS :]).sum()) for f in self._holders.entries()]
        assert holding == [count_of(fields) for fields in self._holders.entries()]
        assert self._prefixes.used == sum(holding)
        for fields in self._prefixes.entries():
            self._check_prefix(fields[KEY], owner_of(fields))
        assert (self.totals >= 0).all()
        assert (self.fractions[self.totals[:, layout.FRACTIONAL_BLOCKS] == 0] == 0.0).all()

    def _check_prefix(self, prefix: np.uint64, slot: int) -> None:
        """Its bit is set in the row of its group."""
        group, bit = divmod(slot, kernels.GROUP_SLOTS)
        bits = self._holders.entry(prefix, group)[kernels.BITS :]
        assert int(bits[bit >> 6]) >> (bit & 63) & 1
