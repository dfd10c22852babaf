"""The columns and tables of one index: allocation, growth, accounting. No index logic.

Node columns are reserved at full size: untouched pages of a zeroed array cost no memory, and
nothing ever moves. Tables start small and double; replacing one briefly needs both.
"""

from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.index import kernels
from indexer.index import state_kernels as state

BLOCKS_MAX_LIMIT = 2**31 - 16  # node ids are int32, holder set ids 31 bits
SLOTS_MAX = 1 << 20
TABLE_START = 1 << 10
SETS_START = 1 << 6
MEMO_ENTRIES = 1 << 12
RECORDS_START = 1 << 4
RECORDS_PER_BLOCK_MAX = 8
TABLE_LOAD = 0.7
OWN_PAGES_MIN = 1 << 18  # bytes

_NODE_COLUMNS = (
    (state.LOCAL, np.uint64),
    (state.ENGINE, np.uint64),
    (state.PARENT, np.int32),
    (state.MARK, np.uint32),
    (state.KIDS, np.int32),
)
_ROOT_PARENT = -2


class IndexMemory:
    """Owns the arrays behind one header; `header` is what every kernel gets."""

    def __init__(self, blocks_max: int) -> None:
        assert 0 < blocks_max <= BLOCKS_MAX_LIMIT
        self.header = np.zeros(state.HEADER_LENGTH, np.int64)
        self._columns: dict[int, NDArray[Any]] = {}
        self._records_max = max(RECORDS_START, RECORDS_PER_BLOCK_MAX * blocks_max)
        header = self.header
        header[state.NODES_USED] = 1
        header[state.NODES_MAX] = blocks_max
        header[state.SETS_USED] = 1
        header[state.WORDS] = 1
        for column, dtype in _NODE_COLUMNS:
            self._reserve(column, blocks_max + 1, dtype)
        self.column(state.PARENT)[0] = _ROOT_PARENT
        self._new_names(TABLE_START)
        self._new_edges(TABLE_START)
        self._new_records(RECORDS_START)
        self._reserve(state.MEMO, MEMO_ENTRIES * 4, np.int64)
        self._reserve(state.BITS, 0, np.uint64)
        self._reserve(state.SET_INFO, 0, np.int64)
        self._reserve(state.LIVE, 0, np.int64)
        self._reserve(state.RECORDS_OF, 0, np.int64)
        self._fit_slots(1)
        self._resize_sets(SETS_START)

    def column(self, column: int) -> NDArray[Any]:
        """The array behind a column of the header; it is replaced when the column grows."""
        return self._columns[column]

    def value(self, counter: int) -> int:
        """A counter of the header."""
        return int(self.header[counter])

    def nbytes(self) -> int:
        """Bytes in use: node columns as far as ever touched, everything else in full."""
        nodes = self.value(state.NODES_USED)
        reserved = {column for column, _ in _NODE_COLUMNS}
        per_node = sum(np.dtype(dtype).itemsize for _, dtype in _NODE_COLUMNS)
        rest = sum(a.nbytes for column, a in self._columns.items() if column not in reserved)
        return nodes * per_node + rest + self.header.nbytes

    def make_room(self) -> None:
        """Grow what the last kernel asked for in NEED."""
        need = self.value(state.NEED)
        if need == state.NEED_SETS:
            self._resize_sets(2 * (self.value(state.SETS_ROOM) + 1))
        elif need == state.NEED_NAMES:
            self._new_names(2 * self.column(state.NAMES).size)
            kernels.rebuild_names(self.header)
        elif need == state.NEED_EDGES:
            old = self.column(state.EDGES)
            self._new_edges(2 * old.size)
            kernels.rebuild_edges(self.header, old)
        else:
            assert need == state.NEED_RECORDS
            self._grow_records()

    def make_slots(self, n_slots: int) -> None:
        """Let slots below `n_slots` exist."""
        assert n_slots <= SLOTS_MAX
        words = self.value(state.WORDS)
        if n_slots > 64 * words:
            self._widen_sets(2 * words)
            self._fit_slots(2 * words)

    def _reserve(self, column: int, length: int, dtype: Any) -> NDArray[Any]:
        return self._install(column, _zeros(length, dtype))

    def _install(self, column: int, array: NDArray[Any]) -> NDArray[Any]:
        self._columns[column] = array
        self.header[column] = array.ctypes.data
        self.header[column + 1] = array.size
        return array

    def _new_names(self, size: int) -> None:
        self._reserve(state.NAMES, size, np.int32)
        self.header[state.NAMES_ROOM] = int(size * TABLE_LOAD)

    def _new_edges(self, size: int) -> None:
        self._reserve(state.EDGES, size, np.int32)
        self.header[state.EDGES_ROOM] = int(size * TABLE_LOAD)

    def _new_records(self, size: int) -> None:
        self._reserve(state.RECORDS, size * state.RECORD_FIELDS, np.uint32)
        self.header[state.RECORDS_ROOM] = int(size * TABLE_LOAD)

    def _grow_records(self) -> None:
        old = self.column(state.RECORDS)
        size = 2 * old.size // state.RECORD_FIELDS
        if size * TABLE_LOAD > self._records_max:
            self.header[state.RECORDS_FIXED] = 1
            return
        self._new_records(size)
        kernels.rebuild_records(self.header, old)

    def _resize_sets(self, rows: int) -> None:
        row = state.PLANES * self.value(state.WORDS)
        for column, width in ((state.BITS, row), (state.SET_INFO, state.SET_FIELDS)):
            old = self.column(column)
            new = _zeros(rows * width, old.dtype)
            new[: old.size] = old
            self._install(column, new)
        self.header[state.SETS_ROOM] = rows - 1
        self._reserve(state.SET_TABLE, 2 * rows, np.int32)
        kernels.rebuild_sets(self.header)

    def _widen_sets(self, words: int) -> None:
        """Lay the pool out for more slots; ids stay, the content hashes do not."""
        rows = self.value(state.SETS_ROOM) + 1
        old = self.column(state.BITS).reshape(rows, state.PLANES, -1)
        new = _zeros(rows * state.PLANES * words, np.uint64).reshape(rows, state.PLANES, words)
        new[:, :, : old.shape[2]] = old
        self._install(state.BITS, new.reshape(-1))
        self.header[state.WORDS] = words
        self._reserve(state.SET_TABLE, 2 * rows, np.int32)
        kernels.rebuild_sets(self.header)

    def _fit_slots(self, words: int) -> None:
        self._reserve(state.SCRATCH, state.PLANES * words, np.uint64)
        for column, width in ((state.LIVE, state.N_TIERS), (state.RECORDS_OF, 1)):
            old = self.column(column)
            new = _zeros(64 * words * width, np.int64)
            new[: old.size] = old
            self._install(column, new)


def _zeros(length: int, dtype: Any) -> NDArray[Any]:
    """Zeroed array; a large one on pages of its own.

    The C allocator may serve it from a heap that it has grown to like: then freed tables stay with
    the process, and zeroing a reserved column touches all of it.
    """
    size = length * np.dtype(dtype).itemsize
    if size < OWN_PAGES_MIN:
        return np.zeros(length, dtype)
    return np.frombuffer(mmap(-1, size), dtype, length)
