"""Owner of one hash table of active load: allocation, growth in steps, giving memory back."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from indexer.pages import GIVE_BACK_BYTES, give_back, zeros
from select_service.core.load import table_kernels as kernels

Table = npt.NDArray[np.uint64]
"""uint64[rows * fields], see table_kernels"""

ROWS_AT_FIRST = 1024
MOVED_PER_ENTRY = 2
"""Rows taken over for every entry that may be new.  The successor of a table of N rows begins with
5/8 N entries and takes 10/8 N before it would grow in turn; at 2 a row all have moved by 9/8 N."""
MOVED_AT_LEAST = 32


class GrowingTable:
    """`table` and, while it grows, `old` with what has not moved yet; both go to every kernel."""

    def __init__(self, fields: int) -> None:
        self.used = 0
        """Entries.  Kernels say how many are new or gone; the caller adds that up here."""
        self._fields = fields
        self._nothing = self._of(1)
        self._moved = 0  # rows of `old` that need not be looked at any more
        self._given_back = 0  # bytes of `_retired`
        self._retired: Table | None = None
        self._rows = ROWS_AT_FIRST
        self.table = self._of(self._rows)
        self.old = self._nothing

    @property
    def is_growing(self) -> bool:
        return self.old is not self._nothing

    def reserve(self, more: int) -> None:
        """Let so many new entries find room.  Raises MemoryError, nothing is lost.

        O(1) but for more entries than half the table takes: then as much as they are.
        """
        if (self.used + more) * 8 <= self._rows * 5:
            return
        rows = 2 * self._rows
        while (self.used + more) * 8 > rows * 5:
            rows *= 2
        larger = self._of(rows)
        if self.is_growing:
            self._move(len(self.old))
        self.table, self.old = larger, self.table
        self._rows, self._moved = rows, 0

    def step(self, entries: int) -> None:
        """One bounded step of growth, before so many entries are written."""
        if self.old is not self._nothing:
            self._move(MOVED_AT_LEAST + MOVED_PER_ENTRY * entries)
        elif self._retired is not None:
            self._give_back(self._retired)

    def _of(self, rows: int) -> Table:
        return zeros(rows * self._fields, np.uint64)

    def _move(self, rows: int) -> None:
        self._moved = kernels.move_rows(self.table, self.old, self._fields, self._moved, rows)
        if self._moved * self._fields == len(self.old):
            self._retired, self._given_back = self.old, 0
            self.old, self._moved = self._nothing, 0

    def _give_back(self, table: Table) -> None:
        """Unmapping takes time for every page."""
        size = min(GIVE_BACK_BYTES, table.nbytes - self._given_back)
        give_back(table, self._given_back, size)
        self._given_back += size
        if self._given_back == table.nbytes:
            self._retired = None

    # --- for tests

    def entries(self) -> Iterator[Table]:
        """The fields of each."""
        for table in (self.table, self.old):
            rows = self._rows_of(table)
            marks = rows[:, kernels.MARK]
            yield from rows[(marks != 0) & (marks != kernels.MOVED)]

    def entry(self, key: np.uint64, owner: int) -> Table:
        """Its fields; zeros when it does not exist."""
        for table in (self.table, self.old):
            row = kernels.row_of(table, self._fields, key, np.uint64(owner))
            fields: Table = self._rows_of(table)[row]
            if fields[kernels.MARK] != 0:
                break
        return fields

    def check_invariants(self) -> None:
        """Every entry is found where a search for it ends, once."""
        found = set()
        for fields in self.entries():
            key, owner = fields[kernels.KEY], owner_of(fields)
            assert np.array_equal(self.entry(key, owner), fields)
            assert count_of(fields) > 0
            found.add((int(key), owner))
        assert len(found) == sum(1 for _ in self.entries()) == self.used
        assert self.used * 8 <= self._rows * 5
        marks = self._rows_of(self.old)[: self._moved, kernels.MARK]
        assert ((marks == 0) | (marks == kernels.MOVED)).all()

    def _rows_of(self, table: Table) -> npt.NDArray[np.uint64]:
        return table.reshape(-1, self._fields)


def owner_of(fields: Table) -> int:
    """Whose entry it is."""
    return int(fields[kernels.MARK]) >> 32


def count_of(fields: Table) -> int:
    """What is counted in its mark."""
    return int(fields[kernels.MARK]) & 0xFFFFFFFF
