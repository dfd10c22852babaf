"""Columns and tables of an index: allocation, growth, accounting. No index logic.

Node columns and the pool of holder sets are reserved at full size: untouched pages of a zeroed
array cost no memory, and nothing ever moves. Tables start small and double in steps
(table_kernels). If more slots are needed than the pool has words for, the sets move to a wider
pool, in steps as well. Replaced arrays are returned to the system in steps, too.

Memory is bounded by `bytes_max`. Growth beyond the limit, or beyond the available memory, does not
begin: a table that cannot grow refuses entries when it is full.
"""

from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.index import header_kernels as state
from indexer.index import store_kernels
from indexer.page_memory import RETURN_STEP_BYTES, has_own_pages, return_pages, zeroed_array

BLOCKS_MAX_LIMIT = 2**31 - 16  # node ids are int32, holder set ids 31 bits
BYTES_MAX = 1 << 30
"""Default limit: 256 bytes for each of 4 Mi blocks, where blocks with equal holders take 36."""
SLOTS_MAX = 1 << 20
TABLE_START = 1 << 10
SETS_START = 1 << 7
MEMO_ENTRIES = 1 << 12
RECORDS_START = 1 << 4
RECORDS_PER_BLOCK_MAX = 8
GROW_LOAD = 0.6  # load at which a table begins to grow
TABLE_LOAD = 0.7  # largest load otherwise; the table has grown long before
LATE_LOAD = 0.8  # largest load while growing late, after a lack of memory
WIDEN_BYTES = 1 << 20  # bytes of sets moved per step
REMOVAL_SETS_SHARE = 8
"""Divisor: this share of the holder sets is reserved for removals, which must not be refused."""

_NODE_COLUMNS = (
    (state.LOCAL, np.uint64),
    (state.ENGINE, np.uint64),
    (state.PARENT, np.int32),
    (state.MARK, np.uint32),
    (state.KIDS, np.int32),
)
_SLOT_COLUMNS = (state.LIVE, state.RECORDS_OF, state.LOST, state.WAITING)
_REUSE_COLUMNS = (
    state.LAYOUTS,
    state.LAYOUT_OF,
    state.INSIDE,
    state.BOUNDED,
    state.REUSE_RUNS,
)
_SMALL_COLUMNS = (state.MEMO, *_SLOT_COLUMNS, state.SCRATCH)
_WIDTHS = {
    state.NAMES: 1,
    state.EDGES: 1,
    state.SET_TABLE: 1,
    state.RECORDS: state.RECORD_FIELDS,
}
_INFO_BYTES = 8 * state.SET_FIELDS
_ROOT_PARENT = -2
_NEVER_CALLED = 2**62

Array = NDArray[Any]


def _set_words(words: int, lanes: int) -> int:
    """Return the words of a holder set."""
    return (state.PLANES + 2 * lanes) * words


class IndexMemory:
    """Owner of the arrays behind a header; `header` is the argument of every kernel.

    Raises MemoryError if an empty index does not fit.
    """

    def __init__(self, blocks_max: int, bytes_max: int) -> None:
        assert 0 < blocks_max <= BLOCKS_MAX_LIMIT
        self.header = np.zeros(state.HEADER_LENGTH, np.int64)
        self.snapshot_arrays: list[Array] = []
        """Arrays that a snapshot still reads after the replacement here."""
        self._columns: dict[int, Array] = {}
        self._bytes_max = bytes_max
        self._records_max = max(RECORDS_START, RECORDS_PER_BLOCK_MAX * blocks_max)
        self._stuck_tables: set[int] = set()  # tables that could not grow
        self._wide_columns: dict[
            int, Array
        ] = {}  # columns that replace others once the sets are widened
        self._wide_lanes = 0
        self._replaced_arrays: list[
            tuple[Array, int, int]
        ] = []  # (array, bytes returned, bytes in all)
        header = self.header
        header[state.HASH_SEED] = SystemRandom().getrandbits(63)
        header[state.NODES_USED] = 1
        header[state.NODES_MAX] = blocks_max
        header[state.SETS_USED] = 1
        # Reserved at full size, so that the columns never move; pages are mapped on first touch.
        for column, dtype in _NODE_COLUMNS:
            self._install_column(column, zeroed_array(blocks_max + 1, dtype))
        self.column(state.PARENT)[0] = _ROOT_PARENT
        self._install_column(state.MEMO, zeroed_array(MEMO_ENTRIES * 4, np.int64))
        self._install_column(
            state.SET_INFO, zeroed_array(self._sets_max(state.PLANES) * state.SET_FIELDS, np.int64)
        )
        for column, array in self._columns_for(1, 0).items():
            self._install_column(column, array)
        header[state.WORDS], header[state.SET_WORDS] = 1, _set_words(1, 0)
        starts = (TABLE_START, TABLE_START, SETS_START, RECORDS_START)
        for (table, width), size in zip(_WIDTHS.items(), starts, strict=True):
            self._install_column(table, zeroed_array(size * width, np.uint32))
            self._fit_table(table)
        self._update_accounting()

    def column(self, column: int) -> Array:
        """Return the array behind a column of the header; growth replaces the array."""
        return self._columns[column]

    def value(self, counter: int) -> int:
        """Return a counter of the header."""
        return int(self.header[counter])

    @property
    def bytes_max(self) -> int:
        """Upper limit of `nbytes`, except for the least that an empty index takes."""
        return self._bytes_max

    def nbytes(self) -> int:
        """Return the bytes in use: nodes and sets as far as ever touched, everything else in
        full.
        """
        sets = self.value(state.SETS_USED) * self.value(state.SET_BYTES)
        tables = sum(self._columns[t].nbytes for t in self._columns if t < state.LOCAL)
        small = sum(self._columns[column].nbytes for column in _SMALL_COLUMNS)
        small += sum(self._columns[c].nbytes for c in _REUSE_COLUMNS if c in self._columns)
        replaced = sum(size - gone for _, gone, size in self._replaced_arrays)
        nodes = self.value(state.NODES_USED) * state.NODE_BYTES
        return nodes + sets + tables + small + replaced + self.header.nbytes

    def has_slot(self, slot: int) -> bool:
        """Return whether the holder sets have a bit for the slot."""
        return slot < 64 * self.value(state.WORDS)

    def grow_tables(self) -> None:
        """Begin or finish the growth of tables, as a kernel requested with NEED. Never fails."""
        self._return_piece()
        for table in _WIDTHS:
            size = self._table_slots(table)
            if table + state.NEXT in self._columns:
                if self.value(table + state.MOVED) == size:
                    self._replace_table(table)
            elif self.value(table + state.ENTRIES) >= int(size * GROW_LOAD):
                self._begin_table(table, 2 * size)
            self._set_call(table)

    def retry_growth(self) -> None:
        """Let tables that could not grow try again with the next block, after a refusal."""
        for table in self._stuck_tables:
            self.header[table + state.CALL_AT] = 0
        self._stuck_tables.clear()

    def widen_step(self) -> None:
        """Make a bounded step towards twice as many slots.

        Raises MemoryError, without effect, if memory is short.
        """
        self._return_piece()
        if not self._wide_columns:
            self._begin_wide(2 * self.value(state.WORDS), self.value(state.LANES))
        row = 8 * self.value(state.WIDE_SET_WORDS)
        store_kernels.widen_sets(self.header, max(1, WIDEN_BYTES // row))
        if self.value(state.WIDE_MOVED) == self.value(state.SETS_USED):
            self._replace_sets()

    def add_lane_step(self, lanes: int) -> None:
        """Make a bounded step towards planes for `lanes` lanes; steps to more slots end first.

        Raises MemoryError, without effect, if memory is short.
        """
        assert lanes <= state.LANES_MAX
        if not self._wide_columns:
            self._begin_wide(self.value(state.WORDS), lanes)
        self.widen_step()

    def install_reuse_columns(self, table: Array, numbers: Array, runs: int) -> None:
        """Install the layouts of ranks with several cache groups.

        table, numbers: LAYOUTS and LAYOUT_OF; runs: length of REUSE_RUNS
        """
        self._install_column(state.LAYOUTS, table)
        self._install_column(state.LAYOUT_OF, numbers)
        for column in (state.INSIDE, state.BOUNDED):
            self._install_column(column, np.zeros(numbers.size, np.int64))
        if state.REUSE_RUNS not in self._columns:
            self._install_column(state.REUSE_RUNS, np.zeros(runs, np.int64))
        self._update_accounting()

    def drop_reuse_columns(self) -> None:
        """Remove what `install_reuse_columns` installed, if anything."""
        for column in _REUSE_COLUMNS:
            if column in self._columns:
                self._uninstall_column(column)
        self._update_accounting()

    def _install_column(self, column: int, array: Array) -> None:
        self._columns[column] = array
        self.header[column] = array.ctypes.data
        self.header[column + 1] = array.size

    def _uninstall_column(self, column: int) -> Array:
        self.header[column] = self.header[column + 1] = 0
        return self._columns.pop(column)

    def _update_accounting(self) -> None:
        """Update the counters that depend on sizes."""
        header = self.header
        row = 8 * self.value(state.SET_WORDS)
        wide_row = 8 * self.value(state.WIDE_SET_WORDS) if self._wide_columns else 0
        header[state.SET_BYTES] = _INFO_BYTES + row + wide_row
        header[state.SETS_KEPT] = self._sets_max(self.value(state.SET_WORDS)) // REMOVAL_SETS_SHARE
        header[state.BYTES_LEFT] = self._bytes_max - self.nbytes()

    # Tables: hash tables of 32-bit words, grown by a copy that kernels fill step by step.

    def _table_slots(self, table: int) -> int:
        return int(self._columns[table].size) // _WIDTHS[table]

    def _fit_table(self, table: int) -> None:
        self.header[table + state.MOVED] = 0
        self.header[table + state.ROOM] = int(self._table_slots(table) * TABLE_LOAD)
        self._set_call(table)

    def _set_call(self, table: int) -> None:
        call_at = int(self._table_slots(table) * GROW_LOAD)
        if table in self._stuck_tables or table + state.NEXT in self._columns:
            call_at = _NEVER_CALLED  # until a refusal, or until all entries have moved
        elif self._replaced_arrays:
            # The owner returns the next piece of a replaced array about every 64 entries.
            call_at = min(call_at, self.value(table + state.ENTRIES) + 64)
        self.header[table + state.CALL_AT] = call_at

    def _begin_table(self, table: int, size: int) -> None:
        width = _WIDTHS[table]
        # The reserve for removals needs space in the set table too, so only removals may use it up.
        kept = 0 if table == state.SET_TABLE else self.value(state.SETS_KEPT)
        bytes_left = self.value(state.BYTES_LEFT) - kept * self.value(state.SET_BYTES)
        too_many = table == state.RECORDS and size * TABLE_LOAD > self._records_max
        try:
            if too_many or size * width * 4 > bytes_left:
                raise MemoryError
            array = zeroed_array(size * width, np.uint32)
        except MemoryError:
            self._stuck_tables.add(table)
            return
        self._install_column(table + state.NEXT, array)
        self.header[table + state.ROOM] = int(self._table_slots(table) * LATE_LOAD)
        self.header[state.GROWING] += 1
        self._update_accounting()

    def _replace_table(self, table: int) -> None:
        self._queue_return(self._columns[table], self._columns[table].nbytes)
        self._install_column(table, self._uninstall_column(table + state.NEXT))
        self.header[state.GROWING] -= 1
        if table == state.RECORDS:
            self.header[state.COPY_ROWS_END] = 0  # a snapshot continues with the old table
        self._fit_table(table)
        self._update_accounting()

    # Holder sets: a wider pool replaces the pool when slots beyond the words are needed.

    def _sets_max(self, set_words: int) -> int:
        """Return the number of set ids that can ever be needed, or afforded, at this width."""
        affordable = max(0, self._bytes_max) // (_INFO_BYTES + 8 * set_words)
        return min(self.value(state.NODES_MAX), affordable) + 4

    def _columns_for(self, words: int, lanes: int) -> dict[int, Array]:
        """Return new arrays for the columns with a size that depends on slots and lanes."""
        set_words = _set_words(words, lanes)
        return {
            state.BITS: zeroed_array(self._sets_max(set_words) * set_words, np.uint64),
            state.SCRATCH: zeroed_array(set_words, np.uint64),
            state.LIVE: zeroed_array(64 * words * state.LIVE_TIERS, np.int64),
            state.RECORDS_OF: zeroed_array(64 * words, np.int64),
            state.LOST: zeroed_array(64 * words, np.int64),
            state.WAITING: zeroed_array(64 * words, np.int64),
        }

    def _begin_wide(self, words: int, lanes: int) -> None:
        assert 64 * words <= SLOTS_MAX
        used = self.value(state.SETS_USED)
        if used * 8 * _set_words(words, lanes) > self.value(state.BYTES_LEFT):
            raise MemoryError("the wider holder sets exceed the memory limit of the index")
        self._wide_columns = self._columns_for(words, lanes)
        self._wide_lanes = lanes
        self._install_column(state.WIDE_BITS, self._wide_columns[state.BITS])
        self.header[state.WIDE_WORDS] = words
        self.header[state.WIDE_SET_WORDS] = _set_words(words, lanes)
        self.header[state.WIDE_MOVED] = 0
        self._update_accounting()

    def _replace_sets(self) -> None:
        for column in _SLOT_COLUMNS:
            rows = state.LIVE_TIERS if column == state.LIVE else 1
            old = self._columns[column].reshape(rows, -1)
            self._wide_columns[column].reshape(rows, -1)[:, : old.shape[1]] = old
        row = 8 * self.value(state.SET_WORDS)
        self._queue_return(self._columns[state.BITS], self.value(state.SETS_USED) * row)
        self._uninstall_column(state.WIDE_BITS)
        for column, array in self._wide_columns.items():
            self._install_column(column, array)
        self._wide_columns = {}
        header = self.header
        header[state.WORDS], header[state.LANES] = header[state.WIDE_WORDS], self._wide_lanes
        header[state.SET_WORDS] = header[state.WIDE_SET_WORDS]
        self.header[state.WIDE_MOVED] = 0
        self.header[state.COPY_SETS_END] = 0  # a snapshot continues with the old sets
        for table in _WIDTHS:
            self._set_call(table)
        self._update_accounting()

    # Returning memory: madvise on a whole array would hold the index lock for milliseconds.

    def _queue_return(self, array: Array, size: int) -> None:
        """Queue a replaced array, of which `size` bytes were touched, for the return in steps."""
        is_borrowed = any(array is each for each in self.snapshot_arrays)
        if has_own_pages(array) and not is_borrowed:
            self._replaced_arrays.append((array, 0, size))

    def _return_piece(self) -> None:
        if not self._replaced_arrays:
            return
        array, gone, size = self._replaced_arrays.pop()
        step = min(RETURN_STEP_BYTES, size - gone)
        return_pages(array, gone, step)
        if gone + step < size:
            self._replaced_arrays.append((array, gone + step, size))
        self._update_accounting()
