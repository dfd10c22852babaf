"""Active load of a partition: live blocks and prefill tokens of each slot.

A reservation references its prompt blocks by sequence hash and adds output blocks.  The active
blocks of a slot are the sum of the weights of its distinct live blocks.  A weight is 1 until a
decay sets (not multiplies) the weight of those blocks of one reservation that no other reservation
on the slot references.  The weight stays with the block until its last reference ends.

Source of the rules: the reference selection service (Dynamo), measured
(docs/explanation/architecture.md, "Load").
"""

from random import SystemRandom
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.load.compiled import active_load_kernels
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.table_kernels import KEY
from select_service.core.load.growing_table import (
    TOUCHED_IN_A_STEP,
    GrowingTable,
    count_of,
    owner_of,
)

PerSlot = npt.NDArray[np.int64]

_INITIAL_SLOTS = 64


class PrefillColumns(NamedTuple):
    """Booked and estimated work of the unfinished prefills of each slot; see load_layout."""

    work_booked: PerSlot
    work_left: PerSlot
    numbers: npt.NDArray[np.int64]
    followed: npt.NDArray[np.uint64]
    stale: npt.NDArray[np.uint64]

    @classmethod
    def allocate(cls, rows: int) -> "PrefillColumns":
        return cls(
            work_booked=np.zeros(rows, np.int64),
            work_left=np.zeros(rows, np.int64),
            numbers=np.zeros((rows, layout.N_PREFILLS), np.int64),
            followed=np.zeros(rows // 64, np.uint64),
            stale=np.zeros(rows // 64, np.uint64),
        )

    def grow_to(self, rows: int) -> "PrefillColumns":
        """Return a copy with `rows` rows."""
        grown = PrefillColumns.allocate(rows)
        for column, old in zip(grown, self, strict=True):
            column[: len(old)] = old
        return grown

    def first_slots(self, n_slots: int) -> "PrefillColumns":
        """Return views of the first rows, and of all bit masks."""
        booked, left, numbers = (
            self.work_booked[:n_slots],
            self.work_left[:n_slots],
            self.numbers[:n_slots],
        )
        return PrefillColumns(booked, left, numbers, self.followed, self.stale)


_PREFILL_PAIRS = (
    layout.WORK_BOOKED,
    layout.WORK_LEFT,
    layout.PREFILLS,
    layout.WITH_PROGRESS,
    layout.PROGRESS_STALE,
)


class ActiveLoad:
    """Load of the slots of a partition, written by the ledger's kernels through the header."""

    def __init__(self) -> None:
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        """Header through which kernels reach the arrays (load_layout); never replaced."""
        self._references = self._make_table(layout.REFERENCES, active_load_kernels.REFERENCE_FIELDS)
        self._prefixes = self._make_table(layout.PREFIXES, active_load_kernels.PREFIX_FIELDS)
        self._holders = self._make_table(layout.HOLDERS, active_load_kernels.HOLDER_FIELDS)
        self._all_totals = np.zeros((_INITIAL_SLOTS, layout.N_TOTALS), np.int64)
        self._all_fractions = np.zeros(_INITIAL_SLOTS, np.float64)
        self._all_newest = np.zeros(_INITIAL_SLOTS, np.int64)
        self._all_only_decode = np.zeros(_INITIAL_SLOTS, np.int64)
        self._all_prefills = PrefillColumns.allocate(_INITIAL_SLOTS)
        self._lacks_memory = False
        """Whether the last preparation failed to allocate memory."""
        self.header.view(np.float64)[layout.REPORTED_SHARE] = 1.0
        self.header[layout.HASH_SEED] = SystemRandom().getrandbits(63)
        self._publish_slots(0)

    def _make_table(self, at: int, fields: int) -> GrowingTable:
        return GrowingTable(self.header, at, fields)

    def _set_array(self, at: int, array: npt.NDArray[Any]) -> None:
        self.header[at], self.header[at + 1] = array.ctypes.data, array.size

    @property
    def reported_share(self) -> float:
        """Share of ended prefills with a reported end, over the last hundred or so."""
        return float(self.header.view(np.float64)[layout.REPORTED_SHARE])

    @property
    def n_slots(self) -> int:
        return int(self.header[layout.N_SLOTS])

    def reserve_slots(self, n_slots: int) -> None:
        """Allocate room for `n_slots` slots, so that `ensure_slots` cannot fail.

        O(1) but for doublings.  Raises MemoryError without having changed anything: the arrays grow
        together or not at all.
        """
        rows = len(self._all_totals)
        if n_slots <= rows:
            return
        while rows < n_slots:
            rows *= 2
        # All arrays are allocated before any is replaced: a MemoryError leaves a consistent load.
        more = rows - len(self._all_totals)
        spare = np.zeros((more, layout.N_TOTALS), np.int64)
        totals = np.vstack([self._all_totals, spare])
        fractions = np.concatenate([self._all_fractions, np.zeros(more)])
        newest = np.concatenate([self._all_newest, np.zeros(more, np.int64)])
        only_decode = np.concatenate([self._all_only_decode, np.zeros(more, np.int64)])
        prefills = self._all_prefills.grow_to(rows)
        self._all_only_decode = only_decode
        self._all_totals, self._all_fractions, self._all_newest = totals, fractions, newest
        self._all_prefills = prefills
        # The header still has the addresses of the old arrays.
        self._publish_slots(self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Make slots 0 .. n_slots-1 exist.  Never shrinks, because a freed slot may return."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._publish_slots(n_slots)

    def _publish_slots(self, n_slots: int) -> None:
        self.totals = self._all_totals[:n_slots]
        self.fractions = self._all_fractions[:n_slots]
        self.newest = self._all_newest[:n_slots]
        self._set_array(layout.TOTALS, self.totals)
        self._set_array(layout.FRACTIONS, self.fractions)
        self._set_array(layout.NEWEST, self.newest)
        self.only_decode = self._all_only_decode[:n_slots]
        self._set_array(layout.ONLY_DECODE, self.only_decode)
        self.prefills = self._all_prefills.first_slots(n_slots)
        for pair, column in zip(_PREFILL_PAIRS, self.prefills, strict=True):
            self._set_array(pair, column)
        self.header[layout.N_SLOTS] = n_slots

    def _all_tables(self) -> tuple[GrowingTable, GrowingTable, GrowingTable]:
        return self._references, self._prefixes, self._holders

    def reserve_room(self, blocks: int) -> None:
        """Allocate room for the next booking of `blocks` blocks.  Raises MemoryError."""
        for table in self._all_tables():
            table.reserve_entries(blocks)

    def prepare_step(self, blocks: int) -> bool:
        """Take a step towards a booking of `blocks` blocks; return whether more steps follow.

        Returns False when memory is short.  The first touches of new pages come first, because
        their duration is unbounded.  Rows move afterwards; a booking would move some, too.
        """
        try:
            touched = any(table.prepare_step(blocks) for table in self._all_tables())
        except MemoryError:
            self._lacks_memory = True
            return False
        self._lacks_memory = False
        if touched:
            return True
        return any(table.move_rows() for table in self._all_tables())

    def is_prepared(self, blocks: int) -> bool:
        """Return whether a booking of `blocks` blocks is a bounded step.

        Bounded means: no more new pages than one step of `prepare_step`, and no table growing. When
        memory is short, the answer is always True.
        """
        if self._lacks_memory:
            return True
        untouched = sum(table.count_untouched(blocks) for table in self._all_tables())
        is_growing = any(table.is_growing for table in self._all_tables())
        return untouched <= TOUCHED_IN_A_STEP and not is_growing

    def release_memory(self) -> None:
        """Free one step's worth of the memory left behind by growing tables."""
        for table in self._all_tables():
            table.release_memory()

    def compute_active_blocks(self) -> PerSlot:
        """Return the active blocks of each slot, rounded half away from zero, int64[n_slots]."""
        out = np.empty(self.n_slots, np.int64)
        active_load_kernels.compute_active_blocks(self.header, out)
        return out

    def check_invariants(self) -> None:
        """Recompute all incremental numbers.  O(rows * slots), for tests."""
        for table in self._all_tables():
            table.check_invariants()
        holding = [
            int(np.bitwise_count(f[active_load_kernels.BITS :]).sum())
            for f in self._holders.iterate_entries()
        ]
        assert holding == [count_of(fields) for fields in self._holders.iterate_entries()]
        assert self._prefixes.n_entries == sum(holding)
        for fields in self._prefixes.iterate_entries():
            self._check_prefix(fields[KEY], owner_of(fields))
        assert (self.totals >= 0).all()
        assert (self.fractions[self.totals[:, layout.FRACTIONAL_BLOCKS] == 0] == 0.0).all()

    def _check_prefix(self, prefix: np.uint64, slot: int) -> None:
        """Check that the slot's bit is set in the row of its group."""
        group, bit = divmod(slot, active_load_kernels.GROUP_SLOTS)
        bits = self._holders.find_entry(prefix, group)[active_load_kernels.BITS :]
        assert int(bits[bit >> 6]) >> (bit & 63) & 1
