"""Owner of one hash table of active load: allocation, and giving memory back.  Growth in steps is
the kernels' (table_kernels)."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from indexer.pages import GIVE_BACK_BYTES, give_back, zeros
from select_service.core.load import table_kernels as kernels
from select_service.core.load.load_layout import MOVED_AT_LEAST, MOVED_ROWS, OLD, RETIRED, USED

Header = npt.NDArray[np.int64]
Table = npt.NDArray[np.uint64]
"""uint64[rows * fields], see table_kernels"""

ROWS_AT_FIRST = 1024
ROWS_RESERVED = 16_384
"""Of the first successor, which takes the longest prompt that can be booked.  It is there from the
start, untouched: a process that has run out of memory since then still books."""
MOVED_IN_A_STEP = 32
"""Rows at least, whatever is booked."""
TOUCHED_IN_A_STEP = 1 << 18
"""Numbers of a new table, 2 MiB: the first touch of a page takes up to some microseconds."""
MOVED_IN_A_TURN = 16_384
"""Rows that a step of preparing takes over, some 0.1 us each."""
_PAGE = 4096 // 8
"""Numbers on a page."""
_NOTHING: Table = np.zeros(0, np.uint64)


class GrowingTable:
    """`table` and, while it grows, `old` with what has not moved yet; the header names both."""

    def __init__(self, header: Header, at: int, fields: int) -> None:
        """at: where in the header the table begins"""
        self._header, self._at, self._fields = header, at, fields
        self._given_back = 0  # bytes of `old` that are no longer needed
        self.old = _NOTHING
        self._touched = [0, 0]  # numbers of `table` and of `_next` whose pages are there
        self.table = zeros(ROWS_AT_FIRST * fields, np.uint64)
        self._next = zeros(ROWS_RESERVED * fields, np.uint64)
        header[at + MOVED_AT_LEAST] = MOVED_IN_A_STEP
        self._show(at, self.table)

    @property
    def used(self) -> int:
        """Entries."""
        return int(self._header[self._at + USED])

    @property
    def is_growing(self) -> bool:
        return bool(self._header[self._at + OLD + 1])

    def reserve(self, more: int) -> None:
        """Let so many new entries find room.  Raises MemoryError, nothing is lost.

        O(1) but for more entries than half the table takes: then as much as they are.
        """
        size = self._size_for(more)
        if size == len(self.table):
            return
        if len(self._next) < size:
            self._next, self._touched[1] = zeros(size, np.uint64), 0
        if self.is_growing:
            kernels.move_rows(self._header, self._at, self._fields, len(self.old))
        self.table, self.old, self._given_back = self._next, self.table, 0
        self._next, self._touched = _NOTHING, [self._touched[1], 0]
        self._show(self._at, self.table)
        self._show(self._at + OLD, self.old)
        self._header[self._at + MOVED_ROWS] = self._header[self._at + RETIRED] = 0

    def untouched(self, more: int) -> int:
        """Numbers of the table in which so many new entries would find room that nobody has touched
        yet, as far as is known here."""
        size = self._size_for(more)
        if size == len(self.table):
            return size - self._touched[0]
        return len(self._next) - self._touched[1] if len(self._next) >= size else size

    def prepare(self, more: int) -> bool:
        """One step for when so many new entries come at once; returns whether another is needed.

        Most of what they would take are the first touches of new pages: those of `table` are
        touched ahead, and those of its successor from half full on.  Raises MemoryError.
        """
        if self._touch(0, self.table):
            return True
        size = self._size_for(more + len(self.table) // self._fields // 8)
        if size == len(self.table):
            return False
        if len(self._next) < size:
            self._next, self._touched[1] = zeros(size, np.uint64), 0
        return self._touch(1, self._next)

    def move_some(self) -> bool:
        """Take over some rows of the table before; was there one?"""
        if not self.is_growing:
            return False
        kernels.move_rows(self._header, self._at, self._fields, MOVED_IN_A_TURN)
        return True

    def _touch(self, which: int, table: Table) -> bool:
        """Some more of its pages; was there one?"""
        begin = self._touched[which]
        self._touched[which] = end = min(begin + TOUCHED_IN_A_STEP, len(table))
        table[begin:end:_PAGE] |= np.uint64(0)
        return begin < end

    def _size_for(self, more: int) -> int:
        """Of a table that takes so many new entries; that of `table` if it does."""
        size = len(self.table)
        while (self.used + more) * 8 > size // self._fields * 5:
            size *= 2
        return size

    def give_back(self) -> None:
        """One step of giving back what has moved: unmapping takes time for every page."""
        if not self._header[self._at + RETIRED]:
            return
        size = min(GIVE_BACK_BYTES, self.old.nbytes - self._given_back)
        give_back(self.old, self._given_back, size)
        self._given_back += size
        if self._given_back == self.old.nbytes:
            self.old = _NOTHING
            self._header[self._at + RETIRED] = 0

    def _show(self, at: int, table: Table) -> None:
        self._header[at], self._header[at + 1] = table.ctypes.data, len(table)

    # --- for tests

    def _in_use(self) -> tuple[Table, ...]:
        return (self.table, self.old) if self.is_growing else (self.table,)

    def entries(self) -> Iterator[Table]:
        """The fields of each."""
        for table in self._in_use():
            rows = self._rows_of(table)
            marks = rows[:, kernels.MARK]
            yield from rows[(marks != 0) & (marks != kernels.MOVED)]

    def entry(self, key: np.uint64, owner: int) -> Table:
        """Its fields; zeros when it does not exist."""
        for table in self._in_use():
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
        assert self.used * 8 <= len(self._rows_of(self.table)) * 5
        moved = int(self._header[self._at + MOVED_ROWS])
        marks = self._rows_of(self.old)[:moved, kernels.MARK]
        assert ((marks == 0) | (marks == kernels.MOVED)).all()

    def _rows_of(self, table: Table) -> npt.NDArray[np.uint64]:
        return table.reshape(-1, self._fields)


def owner_of(fields: Table) -> int:
    """Whose entry it is."""
    return int(fields[kernels.MARK]) >> 32


def count_of(fields: Table) -> int:
    """What is counted in its mark."""
    return int(fields[kernels.MARK]) & 0xFFFFFFFF
