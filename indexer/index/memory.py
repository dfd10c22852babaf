"""The columns and tables of one index: allocation, growth, accounting. No index logic.

Node columns and the pool of holder sets are reserved at full size: untouched pages of a zeroed
array cost no memory, and nothing ever moves. Tables start small and double in steps
(table_kernels). When more slots are needed than the pool has words for, the sets are moved to a
wider one, in steps as well. What is replaced is given back in steps too.

Memory is bounded by `bytes_max`. Whatever would go beyond it, or finds no memory, is not begun: a
table that cannot grow takes no more than it has room for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.index import kernels
from indexer.index import state_kernels as state
from indexer.pages import GIVE_BACK_BYTES, give_back, has_own_pages, zeros

BLOCKS_MAX_LIMIT = 2**31 - 16  # node ids are int32, holder set ids 31 bits
BYTES_MAX = 1 << 30
"""Unless told otherwise: 256 bytes for each of 4 Mi blocks, where like holders take 36."""
SLOTS_MAX = 1 << 20
TABLE_START = 1 << 10
SETS_START = 1 << 7
MEMO_ENTRIES = 1 << 12
RECORDS_START = 1 << 4
RECORDS_PER_BLOCK_MAX = 8
GROW_LOAD = 0.6  # a table begins to grow
TABLE_LOAD = 0.7  # and takes this much at most; it has grown long before
LATE_LOAD = 0.8  # or this much, while it grows after there was no memory for that
WIDEN_BYTES = 1 << 20  # at once
KEPT_SETS = 8
"""One in so many holder sets is kept for removals: they must not be refused."""

_NODE_COLUMNS = (
    (state.LOCAL, np.uint64),
    (state.ENGINE, np.uint64),
    (state.PARENT, np.int32),
    (state.MARK, np.uint32),
    (state.KIDS, np.int32),
)
_SLOT_COLUMNS = (state.LIVE, state.RECORDS_OF, state.LOST, state.WAITING)
_SMALL_COLUMNS = (state.MEMO, *_SLOT_COLUMNS, state.SCRATCH)
_WIDTHS = {
    state.NAMES: 1,
    state.EDGES: 1,
    state.SET_TABLE: 1,
    state.RECORDS: state.RECORD_FIELDS,
}
_INFO_BYTES = 8 * state.SET_FIELDS
_ROOT_PARENT = -2
_NEVER = 2**62

Array = NDArray[Any]


class IndexMemory:
    """Owns the arrays behind one header; `header` is what every kernel gets.

    Raises MemoryError when there is not enough for an empty index.
    """

    def __init__(self, blocks_max: int, bytes_max: int) -> None:
        assert 0 < blocks_max <= BLOCKS_MAX_LIMIT
        self.header = np.zeros(state.HEADER_LENGTH, np.int64)
        self.borrowed: list[Array] = []
        """Arrays that a snapshot still reads from when they have been replaced here."""
        self._columns: dict[int, Array] = {}
        self._bytes_max = bytes_max
        self._records_max = max(RECORDS_START, RECORDS_PER_BLOCK_MAX * blocks_max)
        self._stuck: set[int] = set()  # tables that could not grow
        self._wide: dict[int, Array] = {}  # columns that replace others when the sets are widened
        self._retired: list[tuple[Array, int, int]] = []  # (array, bytes given back, of how many)
        header = self.header
        header[state.NODES_USED] = 1
        header[state.NODES_MAX] = blocks_max
        header[state.SETS_USED] = 1
        for column, dtype in _NODE_COLUMNS:
            self._install(column, zeros(blocks_max + 1, dtype))
        self.column(state.PARENT)[0] = _ROOT_PARENT
        self._install(state.MEMO, zeros(MEMO_ENTRIES * 4, np.int64))
        self._install(state.SET_INFO, zeros(self._sets_max(1) * state.SET_FIELDS, np.int64))
        for column, array in self._columns_for(1).items():
            self._install(column, array)
        header[state.WORDS] = 1
        starts = (TABLE_START, TABLE_START, SETS_START, RECORDS_START)
        for (table, width), size in zip(_WIDTHS.items(), starts, strict=True):
            self._install(table, zeros(size * width, np.uint32))
            self._fit_table(table)
        self._account()

    def column(self, column: int) -> Array:
        """The array behind a column of the header; it is replaced when the column grows."""
        return self._columns[column]

    def value(self, counter: int) -> int:
        """A counter of the header."""
        return int(self.header[counter])

    @property
    def bytes_max(self) -> int:
        """What `nbytes` never exceeds, but for the least that an empty index takes."""
        return self._bytes_max

    def nbytes(self) -> int:
        """Bytes in use: nodes and sets as far as ever touched, everything else in full."""
        sets = self.value(state.SETS_USED) * self.value(state.SET_BYTES)
        tables = sum(self._columns[t].nbytes for t in self._columns if t < state.LOCAL)
        small = sum(self._columns[column].nbytes for column in _SMALL_COLUMNS)
        replaced = sum(size - gone for _, gone, size in self._retired)
        nodes = self.value(state.NODES_USED) * state.NODE_BYTES
        return nodes + sets + tables + small + replaced + self.header.nbytes

    def has_slot(self, slot: int) -> bool:
        """Whether the holder sets have a bit for it."""
        return slot < 64 * self.value(state.WORDS)

    def make_room(self) -> None:
        """What a kernel asked for with NEED: tables begin or end to grow. Does not fail."""
        self._give_back()
        for table in _WIDTHS:
            size = self._slots(table)
            if table + state.NEXT in self._columns:
                if self.value(table + state.MOVED) == size:
                    self._replace_table(table)
            elif self.value(table + state.ENTRIES) >= int(size * GROW_LOAD):
                self._begin_table(table, 2 * size)
            self._set_call(table)

    def retry(self) -> None:
        """Something was refused: tables that could not grow try again with the next block."""
        for table in self._stuck:
            self.header[table + state.CALL_AT] = 0
        self._stuck.clear()

    def widen_on(self) -> None:
        """One bounded step towards twice as many slots.

        Raises MemoryError, and changes nothing, when there is no room for them.
        """
        self._give_back()
        if not self._wide:
            self._begin_wide()
        row = 2 * state.PLANES * 8 * self.value(state.WORDS)
        kernels.widen_sets(self.header, max(1, WIDEN_BYTES // row))
        if self.value(state.WIDE_MOVED) == self.value(state.SETS_USED):
            self._replace_sets()

    def _install(self, column: int, array: Array) -> None:
        self._columns[column] = array
        self.header[column] = array.ctypes.data
        self.header[column + 1] = array.size

    def _uninstall(self, column: int) -> Array:
        self.header[column] = self.header[column + 1] = 0
        return self._columns.pop(column)

    def _account(self) -> None:
        """Bring the numbers that depend on sizes up to date."""
        header = self.header
        row = state.PLANES * 8 * self.value(state.WORDS)
        header[state.SET_BYTES] = _INFO_BYTES + (3 * row if self._wide else row)
        header[state.SETS_KEPT] = self._sets_max(self.value(state.WORDS)) // KEPT_SETS
        header[state.BYTES_LEFT] = self._bytes_max - self.nbytes()

    # --- tables ---------------------------------------------------------------------------------

    def _slots(self, table: int) -> int:
        return int(self._columns[table].size) // _WIDTHS[table]

    def _fit_table(self, table: int) -> None:
        self.header[table + state.MOVED] = 0
        self.header[table + state.ROOM] = int(self._slots(table) * TABLE_LOAD)
        self._set_call(table)

    def _set_call(self, table: int) -> None:
        call_at = int(self._slots(table) * GROW_LOAD)
        if table in self._stuck or table + state.NEXT in self._columns:
            call_at = _NEVER  # until something was refused, or all entries have moved
        elif self._retired:
            call_at = min(call_at, self.value(table + state.ENTRIES) + 64)
        self.header[table + state.CALL_AT] = call_at

    def _begin_table(self, table: int, size: int) -> None:
        width = _WIDTHS[table]
        kept = 0 if table == state.SET_TABLE else self.value(state.SETS_KEPT)
        bytes_left = self.value(state.BYTES_LEFT) - kept * self.value(state.SET_BYTES)
        too_many = table == state.RECORDS and size * TABLE_LOAD > self._records_max
        try:
            if too_many or size * width * 4 > bytes_left:
                raise MemoryError
            array = zeros(size * width, np.uint32)
        except MemoryError:
            self._stuck.add(table)
            return
        self._install(table + state.NEXT, array)
        self.header[table + state.ROOM] = int(self._slots(table) * LATE_LOAD)
        self.header[state.GROWING] += 1
        self._account()

    def _replace_table(self, table: int) -> None:
        self._retire(self._columns[table], self._columns[table].nbytes)
        self._install(table, self._uninstall(table + state.NEXT))
        self.header[state.GROWING] -= 1
        if table == state.RECORDS:
            self.header[state.COPY_ROWS_END] = 0  # a snapshot goes on with the old one
        self._fit_table(table)
        self._account()

    # --- holder sets ----------------------------------------------------------------------------

    def _sets_max(self, words: int) -> int:
        """Ids that can ever be needed at this width, or afforded."""
        affordable = max(0, self._bytes_max) // (_INFO_BYTES + state.PLANES * 8 * words)
        return min(self.value(state.NODES_MAX), affordable) + 4

    def _columns_for(self, words: int) -> dict[int, Array]:
        """New arrays of the columns whose size depends on the number of slots."""
        return {
            state.BITS: zeros(self._sets_max(words) * state.PLANES * words, np.uint64),
            state.SCRATCH: zeros(state.PLANES * words, np.uint64),
            state.LIVE: zeros(64 * words * state.N_TIERS, np.int64),
            state.RECORDS_OF: zeros(64 * words, np.int64),
            state.LOST: zeros(64 * words, np.int64),
            state.WAITING: zeros(64 * words, np.int64),
        }

    def _begin_wide(self) -> None:
        words = 2 * self.value(state.WORDS)
        assert 64 * words <= SLOTS_MAX
        used = self.value(state.SETS_USED)
        if used * state.PLANES * 8 * words > self.value(state.BYTES_LEFT):
            raise MemoryError("the holder sets of an index with more slots exceed its bytes")
        self._wide = self._columns_for(words)
        self._install(state.WIDE_BITS, self._wide[state.BITS])
        self.header[state.WIDE_MOVED] = 0
        self._account()

    def _replace_sets(self) -> None:
        for column in _SLOT_COLUMNS:
            old = self._columns[column]
            self._wide[column][: old.size] = old
        row = state.PLANES * 8 * self.value(state.WORDS)
        self._retire(self._columns[state.BITS], self.value(state.SETS_USED) * row)
        self._uninstall(state.WIDE_BITS)
        for column, array in self._wide.items():
            self._install(column, array)
        self._wide = {}
        self.header[state.WORDS] *= 2
        self.header[state.WIDE_MOVED] = 0
        self.header[state.COPY_SETS_END] = 0  # a snapshot goes on with the old ones
        for table in _WIDTHS:
            self._set_call(table)
        self._account()

    # --- giving back ----------------------------------------------------------------------------

    def _retire(self, array: Array, size: int) -> None:
        """Of no use any more: its first `size` bytes, the rest was never touched, are given back
        bit by bit, as that takes time for each page."""
        is_borrowed = any(array is each for each in self.borrowed)
        if has_own_pages(array) and not is_borrowed:
            self._retired.append((array, 0, size))

    def _give_back(self) -> None:
        if not self._retired:
            return
        array, gone, size = self._retired.pop()
        step = min(GIVE_BACK_BYTES, size - gone)
        give_back(array, gone, step)
        if gone + step < size:
            self._retired.append((array, gone + step, size))
        self._account()
