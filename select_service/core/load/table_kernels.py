"""The one kind of hash table of active load: open addressing, linear probing, growth in steps.

A table is uint64[rows * fields], rows a power of two.  The fields of a row:

  KEY      a hash
  MARK     owner << 32 | count;  0: the row is free, MOVED: it stands in the next table now
  further  what the table is about

A row is found by key and owner.  A count is at least 1.  Deletion shifts later rows back, so that a
free row ends every search.  Kernels name a row by `at`, the place of its first field.

A table that fills up gets a successor, and both are in use until all rows have moved: `table` is
the new one and `old` the one before, or empty.  New rows go to `table`; a row of `old` moves there
when it is written, or in its turn (`move_rows`).  What has moved stays in `old` as MOVED, for the
searches that pass it.  The tables of the index grow otherwise, so that searches need never look
twice; here growth is rare and a row is small.

Where a table begins in a header (load_layout) its numbers stand too: entries, and how far it moved.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HEADER, u64_view
from indexer.prefetch_kernels import prefetch
from select_service.core.load.load_layout import (
    MOVED_AT_LEAST,
    MOVED_ROWS,
    OLD,
    RETIRED,
    USED,
)

U64 = np.uint64
I64 = np.int64

TABLE = "uint64[::1]"

KEY, MARK = U64(0), U64(1)
FIELDS = 2
"""Of every table; more may follow."""
MOVED_PER_ENTRY = 2
"""Rows taken over for every entry that may be new.  The successor of a table of N rows begins with
5/8 N entries and takes 10/8 N before it would grow in turn; at 2 a row all have moved by 9/8 N."""
MOVED_AT_ONCE_MAX = 4096
"""Rows that one step moves, whatever is entered, as long as there is time for the others."""
MOVED = U64(0xFFFFFFFF_00000000)
GOLDEN = U64(0x9E3779B97F4A7C15)

_MIX_1 = U64(0xBF58476D1CE4E5B9)
_MIX_2 = U64(0x94D049BB133111EB)
_COUNT = U64(0xFFFFFFFF)
_OWNER = U64(32)
_ONE = U64(1)


@compiled(forceinline=True)
def mix(x):
    """Spread a hash over all bits (finaliser of SplitMix64): clients may send 1, 2, 3 as hashes."""
    x = (x ^ (x >> U64(30))) * _MIX_1
    x = (x ^ (x >> U64(27))) * _MIX_2
    return x ^ (x >> U64(31))


@compiled(forceinline=True)
def _home(key, owner, mask):
    return mix(key + GOLDEN * (owner + _ONE)) & mask


@compiled(forceinline=True)
def _mask_of(table, fields):
    return U64(table.shape[0] // fields - 1)


@compiled(forceinline=True)
def count_of(table, at):
    return table[at + MARK] & _COUNT


@compiled(forceinline=True)
def find(table, fields, key, owner):
    """Where (key, owner) stands, or the free row where it belongs."""
    mask = _mask_of(table, fields)
    row = _home(key, owner, mask)
    while True:
        at = row * U64(fields)
        mark = table[at + MARK]
        if mark == 0 or (table[at + KEY] == key and mark >> _OWNER == owner):
            return at
        row = (row + _ONE) & mask


@compiled(forceinline=True)
def fetch(table, fields, key, owner):
    """Let the row where (key, owner) belongs come into the cache while others are worked on."""
    at = _home(key, owner, _mask_of(table, fields)) * U64(fields)
    prefetch(table, at)
    if fields > 4:
        prefetch(table, at + U64(fields - 1))


@compiled(forceinline=True)
def _move(table, fields, old, at, free):
    """Take a row of `old` over, into the free row of `table` where it belongs."""
    for field in range(U64(fields)):
        table[free + field] = old[at + field]
    old[at + MARK] = MOVED


@compiled(forceinline=True)
def locate(table, fields, old, key, owner):
    """Where (key, owner) stands in `table` now, or the free row where it belongs."""
    at = find(table, fields, key, owner)
    if table[at + MARK] == 0 and old.shape[0] != 0:
        before = find(old, fields, key, owner)
        if old[before + MARK] != 0:
            _move(table, fields, old, before, at)
    return at


@compiled(forceinline=True)
def enter(table, at, key, owner):
    """Begin a free row with the count 1."""
    table[at + KEY] = key
    table[at + MARK] = (owner << _OWNER) | _ONE


@compiled(forceinline=True)
def delete(table, fields, hole):
    """Free a row; rows behind it move up where their search would end there."""
    mask = _mask_of(table, fields)
    gap = hole // U64(fields)
    row = gap
    while True:
        row = (row + _ONE) & mask
        at = row * U64(fields)
        mark = table[at + MARK]
        if mark == 0:
            break
        home = _home(table[at + KEY], mark >> _OWNER, mask)
        if ((row - home) & mask) >= ((row - gap) & mask):
            for field in range(U64(fields)):
                table[gap * U64(fields) + field] = table[at + field]
            gap = row
    for field in range(U64(fields)):
        table[gap * U64(fields) + field] = U64(0)


@compiled(f"void({HEADER}, int64, int64, int64)")
def move_rows(h, t, fields, rows):
    """Take over what is left in so many rows of the table before, of which there is one."""
    table, old = u64_view(h, t), u64_view(h, t + OLD)
    n_rows = old.shape[0] // fields
    end = min(h[t + MOVED_ROWS] + rows, n_rows)
    for row in range(U64(h[t + MOVED_ROWS]), U64(end)):
        at = row * U64(fields)
        mark = old[at + MARK]
        if mark != 0 and mark != MOVED:
            free = find(table, fields, old[at + KEY], mark >> _OWNER)
            _move(table, fields, old, at, free)
    h[t + MOVED_ROWS] = end
    if end == n_rows:
        h[t + OLD + 1] = 0
        h[t + RETIRED] = 1


@compiled()
def has_room(h, t, fields, more):
    """Do so many new entries find room in the table of the header that begins at `t`?"""
    return (h[t + USED] + more) * 8 <= h[t + 1] // fields * 5


@compiled()
def overdue(h, t, fields, entries):
    """Rows that have to move before so many entries are written, so that those behind them need not
    move more than MOVED_PER_ENTRY each until the table is full."""
    left = h[t + OLD + 1] // fields - h[t + MOVED_ROWS]
    room = h[t + 1] // fields * 5 // 8 - h[t + USED] - entries
    return left - MOVED_PER_ENTRY * room


@compiled()
def step(h, t, fields, entries):
    """One bounded step of growth, before so many entries are written."""
    if h[t + OLD + 1] != 0:
        some = h[t + MOVED_AT_LEAST] + min(MOVED_PER_ENTRY * entries, MOVED_AT_ONCE_MAX)
        move_rows(h, t, fields, max(some, overdue(h, t, fields, entries)))


@compiled(f"int64({TABLE}, int64, uint64, uint64)")
def row_of(table, fields, key, owner):
    """Row of (key, owner), or the free row where it belongs."""
    return I64(find(table, fields, key, owner) // U64(fields))
