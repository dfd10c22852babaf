"""Memory of a hash table of active load: allocation, preparation and release.

The kernels (table_kernels) move rows from the old table to the new in steps.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from indexer.page_memory import RETURN_STEP_BYTES, return_pages, zeroed_array
from select_service.core.load.compiled import table_kernels as kernels
from select_service.core.load.compiled.load_layout import (
    MEMORY_TO_RELEASE,
    MOVED_AT_LEAST,
    MOVED_ROWS,
    N_ENTRIES,
    OLD_TABLE,
)

Header = npt.NDArray[np.int64]
Table = npt.NDArray[np.uint64]
"""uint64[rows * fields], see table_kernels."""

INITIAL_ROWS = 1024
ROWS_RESERVED = 16_384
"""Rows of the first successor, enough for the longest bookable prompt.

Allocated at the start but untouched, so a process that later runs out of memory can still book.
"""
MOVED_IN_A_STEP = 32
"""Minimum number of rows moved by a booking of any size."""
TOUCHED_IN_A_STEP = 1 << 18
"""Numbers of a new table touched in a step, 2 MiB; first touches take up to some us a page."""
MOVED_IN_A_TURN = 16_384
"""Rows moved in a step of preparation, some 0.1 us each."""
_PAGE = 4096 // 8
"""Numbers on a memory page."""
_EMPTY_TABLE: Table = np.zeros(0, np.uint64)


class GrowingTable:
    """Table with, while growing, the predecessor `old`; the header points to both."""

    def __init__(self, header: Header, at: int, fields: int) -> None:
        """Allocate the table and its first successor.

        at: position of the table in the header
        fields: fields of a row
        """
        self._header, self._at, self._fields = header, at, fields
        self._released_bytes = 0  # bytes of `old` already released
        self.old = _EMPTY_TABLE
        self._touched = [0, 0]  # touched numbers of `table` and of `_next`
        self.table = zeroed_array(INITIAL_ROWS * fields, np.uint64)
        self._next = zeroed_array(ROWS_RESERVED * fields, np.uint64)
        header[at + MOVED_AT_LEAST] = MOVED_IN_A_STEP
        self._publish_table(at, self.table)

    @property
    def n_entries(self) -> int:
        """Number of entries."""
        return int(self._header[self._at + N_ENTRIES])

    @property
    def is_growing(self) -> bool:
        return bool(self._header[self._at + OLD_TABLE + 1])

    def reserve_entries(self, more: int) -> None:
        """Allocate room for `more` new entries.  Raises MemoryError without loss.

        O(1), except for more entries than half the table takes: then O(more).
        """
        size = self._size_for(more)
        if size == len(self.table):
            return
        if len(self._next) < size:
            self._next, self._touched[1] = zeroed_array(size, np.uint64), 0
        if self.is_growing:
            kernels.move_rows(self._header, self._at, self._fields, len(self.old))
        self.table, self.old, self._released_bytes = self._next, self.table, 0
        self._next, self._touched = _EMPTY_TABLE, [self._touched[1], 0]
        self._publish_table(self._at, self.table)
        self._publish_table(self._at + OLD_TABLE, self.old)
        self._header[self._at + MOVED_ROWS] = self._header[self._at + MEMORY_TO_RELEASE] = 0

    def count_untouched(self, more: int) -> int:
        """Return the untouched numbers of the table for `more` new entries, an upper bound."""
        size = self._size_for(more)
        if size == len(self.table):
            return size - self._touched[0]
        return len(self._next) - self._touched[1] if len(self._next) >= size else size

    def prepare_step(self, more: int) -> bool:
        """Take a step towards `more` new entries at once; return whether another step is needed.

        First touches of new pages take most of the time of a large booking.  This method touches
        the pages of `table` in advance, and those of the successor once the table is half full.
        Raises MemoryError.
        """
        if self._touch_pages(0, self.table):
            return True
        size = self._size_for(more + len(self.table) // self._fields // 8)
        if size == len(self.table):
            return False
        if len(self._next) < size:
            self._next, self._touched[1] = zeroed_array(size, np.uint64), 0
        return self._touch_pages(1, self._next)

    def move_rows(self) -> bool:
        """Move some rows of the predecessor; return whether there is a predecessor."""
        if not self.is_growing:
            return False
        kernels.move_rows(self._header, self._at, self._fields, MOVED_IN_A_TURN)
        return True

    def _touch_pages(self, which: int, table: Table) -> bool:
        """Touch some more pages of a table; return whether an untouched page was left."""
        begin = self._touched[which]
        self._touched[which] = end = min(begin + TOUCHED_IN_A_STEP, len(table))
        # One write a page maps the page; the OR leaves the content as it is.
        table[begin:end:_PAGE] |= np.uint64(0)
        return begin < end

    def _size_for(self, more: int) -> int:
        """Return the size of a table with room for `more` new entries, never a smaller one."""
        size = len(self.table)
        # At 5/8 full, linear probing still needs only a few rows a search.
        while (self.n_entries + more) * 8 > size // self._fields * 5:
            size *= 2
        return size

    def release_memory(self) -> None:
        """Release a part of the moved table, as unmapping takes time for every page."""
        if not self._header[self._at + MEMORY_TO_RELEASE]:
            return
        size = min(RETURN_STEP_BYTES, self.old.nbytes - self._released_bytes)
        return_pages(self.old, self._released_bytes, size)
        self._released_bytes += size
        if self._released_bytes == self.old.nbytes:
            self.old = _EMPTY_TABLE
            self._header[self._at + MEMORY_TO_RELEASE] = 0

    def _publish_table(self, at: int, table: Table) -> None:
        self._header[at], self._header[at + 1] = table.ctypes.data, len(table)

    # Methods for tests

    def _tables_in_use(self) -> tuple[Table, ...]:
        return (self.table, self.old) if self.is_growing else (self.table,)

    def iterate_entries(self) -> Iterator[Table]:
        """Iterate over the fields of each entry."""
        for table in self._tables_in_use():
            rows = self._rows_of(table)
            marks = rows[:, kernels.MARK]
            yield from rows[(marks != 0) & (marks != kernels.MOVED)]

    def find_entry(self, key: np.uint64, owner: int) -> Table:
        """Return the fields of an entry; zeros without such an entry."""
        for table in self._tables_in_use():
            row = kernels.row_of(table, self._fields, key, np.uint64(owner))
            fields: Table = self._rows_of(table)[row]
            if fields[kernels.MARK] != 0:
                break
        return fields

    def check_invariants(self) -> None:
        """Check that a search finds every entry exactly once."""
        found = set()
        for fields in self.iterate_entries():
            key, owner = fields[kernels.KEY], owner_of(fields)
            assert np.array_equal(self.find_entry(key, owner), fields)
            assert count_of(fields) > 0
            found.add((int(key), owner))
        assert len(found) == sum(1 for _ in self.iterate_entries()) == self.n_entries
        assert self.n_entries * 8 <= len(self._rows_of(self.table)) * 5
        moved = int(self._header[self._at + MOVED_ROWS])
        marks = self._rows_of(self.old)[:moved, kernels.MARK]
        assert ((marks == 0) | (marks == kernels.MOVED)).all()

    def _rows_of(self, table: Table) -> npt.NDArray[np.uint64]:
        return table.reshape(-1, self._fields)


def owner_of(fields: Table) -> int:
    """Return the owner of an entry."""
    return int(fields[kernels.MARK]) >> 32


def count_of(fields: Table) -> int:
    """Return the count in the mark of an entry."""
    return int(fields[kernels.MARK]) & 0xFFFFFFFF
