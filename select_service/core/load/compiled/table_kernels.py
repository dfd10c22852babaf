"""Hash table of active load: open addressing, linear probing, growth in steps.

A table is uint64[rows * fields], rows a power of two.  The fields of a row:

  KEY      a hash
  MARK     owner << 32 | count;  0 means a free row, MOVED a row moved to the next table
  further  depending on the table

Key and owner identify a row.  Keys are hashes that `mix_hash` has spread, so that a sum with the
owner is a home.  A count is at least 1.  Deletion shifts later rows back, so that a free row ends
every search.  Kernels refer to a row by `at`, the position of its first field.

A full table gets a successor, and both are in use until all rows have moved: `table` is the new
table and `old` the predecessor, or empty.  New rows go to `table`; a row of `old` moves there when
written, or in its turn (`move_rows`).  Moved rows stay in `old` as MOVED, for searches passing
them.  The tables of the index grow differently, so that a search reads one table only; here growth
is rare and rows are small.

The header (load_layout) has the numbers of a table next to its pair: entries, and moved rows.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, u64_view
from indexer.jit.decorators import compiled
from indexer.jit.prefetch_kernels import prefetch
from select_service.core.load.compiled.load_layout import (
    MEMORY_TO_RELEASE,
    MOVED_AT_LEAST,
    MOVED_ROWS,
    N_ENTRIES,
    OLD_TABLE,
)

U64 = np.uint64
I64 = np.int64

TABLE = "uint64[::1]"

KEY, MARK = U64(0), U64(1)
FIELDS = 2
"""Fields of every table; a table may add more."""
MOVED_PER_ENTRY = 2
"""Rows moved for every possible new entry.

The successor of a table of N rows begins with 5/8 N entries and takes 10/8 N before it would grow
in turn; at 2 rows an entry, all have moved by 9/8 N.
"""
MOVED_AT_ONCE_MAX = 4096
"""Rows moved in a step, for any number of entries, while later steps can do the rest in time."""
MOVED = U64(0xFFFFFFFF_00000000)
GOLDEN = U64(0x9E3779B97F4A7C15)

_MIX_1 = U64(0xBF58476D1CE4E5B9)
_MIX_2 = U64(0x94D049BB133111EB)
_COUNT = U64(0xFFFFFFFF)
_OWNER = U64(32)
_ONE = U64(1)
_HALF = U64(32)


@compiled(forceinline=True)
def mix_hash(x):
    """Spread a hash over all bits (finaliser of SplitMix64), because clients may send 1, 2, 3 as
    hashes.
    """
    x = (x ^ (x >> U64(30))) * _MIX_1
    x = (x ^ (x >> U64(27))) * _MIX_2
    return x ^ (x >> U64(31))


@compiled(forceinline=True)
def _home_row(key, owner, mask):
    # Multiples of the golden ratio spread evenly in the high bits only: in the low ones, the rows
    # of a key with many owners would crowd.
    return (((key + GOLDEN * (owner + _ONE)) >> _HALF) * (mask + _ONE)) >> _HALF


@compiled(forceinline=True)
def _mask_of(table, fields):
    return U64(table.shape[0] // fields - 1)


@compiled(forceinline=True)
def count_of(table, at):
    return table[at + MARK] & _COUNT


@compiled(forceinline=True)
def find_row(table, fields, key, owner):
    """Return the position of (key, owner), or of the free row for this entry."""
    mask = _mask_of(table, fields)
    row = _home_row(key, owner, mask)
    while True:
        at = row * U64(fields)
        mark = table[at + MARK]
        if mark == 0 or (table[at + KEY] == key and mark >> _OWNER == owner):
            return at
        row = (row + _ONE) & mask


@compiled(forceinline=True)
def prefetch_row(table, fields, key, owner):
    """Prefetch the row of (key, owner) into the cache."""
    at = _home_row(key, owner, _mask_of(table, fields)) * U64(fields)
    prefetch(table, at)
    # A wide row may span two cache lines.
    if fields > 4:
        prefetch(table, at + U64(fields - 1))


@compiled(forceinline=True)
def _move_row(table, fields, old, at, free):
    """Move a row of `old` into a free row of `table`."""
    for field in range(U64(fields)):
        table[free + field] = old[at + field]
    old[at + MARK] = MOVED


@compiled(forceinline=True)
def locate_row(table, fields, old, key, owner):
    """Return the position of (key, owner) in `table`, or of the free row, moving an old row
    first.
    """
    at = find_row(table, fields, key, owner)
    if table[at + MARK] == 0 and old.shape[0] != 0:
        before = find_row(old, fields, key, owner)
        if old[before + MARK] != 0:
            _move_row(table, fields, old, before, at)
    return at


@compiled(forceinline=True)
def fill_row(table, at, key, owner):
    """Fill a free row, with the count 1."""
    table[at + KEY] = key
    table[at + MARK] = (owner << _OWNER) | _ONE


@compiled(forceinline=True)
def delete_row(table, fields, hole):
    """Free a row, moving later rows up so that searches still find them."""
    mask = _mask_of(table, fields)
    gap = hole // U64(fields)
    row = gap
    while True:
        row = (row + _ONE) & mask
        at = row * U64(fields)
        mark = table[at + MARK]
        if mark == 0:
            break
        home = _home_row(table[at + KEY], mark >> _OWNER, mask)
        # The row may move up only if its home is not between the gap and the row.
        if ((row - home) & mask) >= ((row - gap) & mask):
            for field in range(U64(fields)):
                table[gap * U64(fields) + field] = table[at + field]
            gap = row
    for field in range(U64(fields)):
        table[gap * U64(fields) + field] = U64(0)


@compiled(f"void({HEADER}, int64, int64, int64)")
def move_rows(h, t, fields, rows):
    """Move the remaining entries of the next `rows` rows of the predecessor, which must exist."""
    table, old = u64_view(h, t), u64_view(h, t + OLD_TABLE)
    n_rows = old.shape[0] // fields
    end = min(h[t + MOVED_ROWS] + rows, n_rows)
    for row in range(U64(h[t + MOVED_ROWS]), U64(end)):
        at = row * U64(fields)
        mark = old[at + MARK]
        if mark != 0 and mark != MOVED:
            free = find_row(table, fields, old[at + KEY], mark >> _OWNER)
            _move_row(table, fields, old, at, free)
    h[t + MOVED_ROWS] = end
    if end == n_rows:
        h[t + OLD_TABLE + 1] = 0
        h[t + MEMORY_TO_RELEASE] = 1


@compiled()
def has_room(h, t, fields, more):
    """Return whether the table at position `t` of the header has room for `more` new entries."""
    return (h[t + N_ENTRIES] + more) * 8 <= h[t + 1] // fields * 5


@compiled()
def rows_overdue(h, t, fields, entries):
    """Return the rows that must move before `entries` entries are written.

    The remaining entries then need at most MOVED_PER_ENTRY rows each until the table is full.
    """
    left = h[t + OLD_TABLE + 1] // fields - h[t + MOVED_ROWS]
    free_entries = h[t + 1] // fields * 5 // 8 - h[t + N_ENTRIES] - entries
    return left - MOVED_PER_ENTRY * free_entries


@compiled()
def grow_step(h, t, fields, entries):
    """Take a bounded step of growth, before `entries` entries are written."""
    if h[t + OLD_TABLE + 1] != 0:
        some = h[t + MOVED_AT_LEAST] + min(MOVED_PER_ENTRY * entries, MOVED_AT_ONCE_MAX)
        move_rows(h, t, fields, max(some, rows_overdue(h, t, fields, entries)))


@compiled(f"int64({TABLE}, int64, uint64, uint64)")
def row_of(table, fields, key, owner):
    """Return the row of (key, owner), or the free row for this entry."""
    return I64(find_row(table, fields, key, owner) // U64(fields))
