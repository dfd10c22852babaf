"""Overflow records: holdings of a (slot, tier) that a bit in a holder set cannot express.

A slot that holds a block exactly once under the node's primary engine hash is REGULAR and has no
record. Everything else is IRREGULAR, described by two kinds of records in an open-addressing table:

ALIAS   key = engine hash          node = named node, count = copies announced (>= 1)
ANCHOR  key = node                 node = number of aliases, count = copies under the primary

Let (c, a) be copies under the primary and the number of aliases. The anchor exists except for
(1, 0), which is REGULAR, and (0, 1): a single alias, the normal state of every worker but the first
in a fleet of engines with different seeds of their hashes. So such a block costs one record.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.hash_table_kernels import table_functions
from indexer.index.header_kernels import (
    ENTRIES,
    MOVED,
    NEXT,
    RECORD_COUNT,
    RECORD_FIELDS,
    RECORD_HIGH,
    RECORD_LOW,
    RECORD_META,
    RECORD_NODE,
    RECORDS,
    RECORDS_OF,
    ROOM,
    TIER_BITS,
    I,
    U,
    home_slot,
    i64_view,
    u32_view,
)
from indexer.index.snapshot_kernels import copy_record_on_write
from indexer.jit.decorators import compiled

ALIAS, ANCHOR = range(2)


@compiled()
def record_meta(slot, tier, kind):
    """Return slot, tier and kind as a non-zero number."""
    return (slot << 1 + TIER_BITS | tier << 1 | kind) + 1


@compiled()
def slot_of_meta(meta):
    return I((meta - 1) >> 1 + TIER_BITS)


@compiled()
def _home_of_key(h, key, meta, mask):
    return home_slot(h, U(key) ^ (U(meta) * U(0xD6E8FEB86659FD93)), mask)


@compiled()
def record_home(h, column, i, mask):
    """Return the preferred table slot of the record in slot i."""
    rows = u32_view(h, column)
    return _home_of_key(h, record_key(rows, i), I(rows[i * RECORD_FIELDS + RECORD_META]), mask)


@compiled()
def record_key(rows, i):
    """Return the key of the record in table slot i of a record table."""
    row = i * RECORD_FIELDS
    return U(rows[row + RECORD_LOW]) | U(rows[row + RECORD_HIGH]) << U(32)


@compiled()
def record_node(h, i):
    return I(u32_view(h, RECORDS)[i * RECORD_FIELDS + RECORD_NODE])


@compiled()
def record_count(h, i):
    return I(u32_view(h, RECORDS)[i * RECORD_FIELDS + RECORD_COUNT])


_put_next, _find_next, _erase, move_records = table_functions(
    RECORDS, RECORD_FIELDS, 3, record_home, copy_record_on_write
)


@compiled()
def has_record_room(h):
    """Return whether the two records that a change may add surely fit."""
    return h[RECORDS + ENTRIES] + 2 <= h[RECORDS + ROOM]


@compiled()
def _find_slot(h, meta, key):
    """Return the table slot of a record, or -1."""
    rows = u32_view(h, RECORDS)
    mask = I(rows.shape[0] // RECORD_FIELDS - 1)
    i = _home_of_key(h, key, meta, mask)
    while rows[i * RECORD_FIELDS + RECORD_META] != 0:
        if rows[i * RECORD_FIELDS + RECORD_META] == meta and record_key(rows, i) == U(key):
            return i
        i = (i + 1) & mask
    return I(-1)


@compiled()
def find_record(h, slot, tier, kind, key):
    """Return the table slot of a record, or -1. Cheap for slots without records."""
    if i64_view(h, RECORDS_OF)[slot] == 0:
        return I(-1)
    return _find_slot(h, record_meta(slot, tier, kind), key)


@compiled()
def _set_field(h, i, field, value):
    copy_record_on_write(h, i)
    u32_view(h, RECORDS)[i * RECORD_FIELDS + field] = value
    j = _find_next(h, i)
    if j >= 0:
        u32_view(h, RECORDS + NEXT)[j * RECORD_FIELDS + field] = value


@compiled()
def set_record_count(h, i, count):
    _set_field(h, i, RECORD_COUNT, count)


@compiled()
def add_record(h, meta, key, node, count):
    """Enter a record that is not there yet. Requires `has_record_room`.

    meta: a result of `record_meta`
    """
    rows = u32_view(h, RECORDS)
    mask = I(rows.shape[0] // RECORD_FIELDS - 1)
    first = _home_of_key(h, key, meta, mask)
    i = first
    while rows[i * RECORD_FIELDS + RECORD_META] != 0:
        i = (i + 1) & mask
    copy_record_on_write(h, i)
    row = i * RECORD_FIELDS
    rows[row + RECORD_META] = meta
    rows[row + RECORD_LOW] = U(key) & U(0xFFFFFFFF)
    rows[row + RECORD_HIGH] = U(key) >> U(32)
    rows[row + RECORD_NODE] = node
    rows[row + RECORD_COUNT] = count
    h[RECORDS + ENTRIES] += 1
    i64_view(h, RECORDS_OF)[slot_of_meta(meta)] += 1
    # While the table grows, entries with moved homes must be in both tables.
    if first < h[RECORDS + MOVED]:
        _put_next(h, i)


@compiled()
def delete_record(h, i):
    """Remove the record in table slot i and close the gap."""
    rows = u32_view(h, RECORDS)
    h[RECORDS + ENTRIES] -= 1
    i64_view(h, RECORDS_OF)[slot_of_meta(I(rows[i * RECORD_FIELDS + RECORD_META]))] -= 1
    _erase(h, i)


@compiled()
def anchor_copies(h, slot, tier, node):
    """Return the copies that an irregular holder announced under the primary name."""
    i = find_record(h, slot, tier, ANCHOR, node)
    return I(0) if i < 0 else record_count(h, i)


@compiled()
def anchor_aliases(h, slot, tier, node):
    """Return the number of other names that an irregular holder has for the node."""
    i = find_record(h, slot, tier, ANCHOR, node)
    # An irregular holder without an anchor has a single alias, the state (0, 1).
    return I(1) if i < 0 else record_node(h, i)


@compiled()
def set_anchor(h, slot, tier, node, copies, aliases):
    """Set the anchor to (copies, aliases): add, change or delete the record."""
    i = find_record(h, slot, tier, ANCHOR, node)
    implied = aliases == 0 if copies == 1 else copies == 0 and aliases <= 1
    if implied:
        if i >= 0:
            delete_record(h, i)
    elif i < 0:
        add_record(h, record_meta(slot, tier, ANCHOR), node, aliases, copies)
    else:
        set_record_count(h, i, copies)
        _set_field(h, i, RECORD_NODE, aliases)
