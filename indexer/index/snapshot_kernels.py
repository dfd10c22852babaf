"""Copy on write for snapshots: a copy of a single moment, in pieces while the index continues.

At that moment nothing is copied; only the range of nodes, sets and record slots is recorded. The
range is copied in pieces, first to last. Code that changes an entry not copied yet copies the old
content first and sets the entry's COPIED_ flag. So the copy shows that moment, and each piece is
bounded.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    BITS,
    COPIED_NODES,
    COPIED_RECORDS,
    COPIED_SETS,
    COPY_BITS,
    COPY_ENGINE,
    COPY_LOCAL,
    COPY_MARK,
    COPY_NODES,
    COPY_NODES_END,
    COPY_PARENT,
    COPY_RECORDS,
    COPY_ROWS,
    COPY_ROWS_END,
    COPY_SETS,
    COPY_SETS_END,
    ENGINE,
    HEADER,
    LOCAL,
    MARK,
    NODE_FREE,
    PARENT,
    RECORD_COUNT,
    RECORD_FIELDS,
    RECORD_HIGH,
    RECORD_LOW,
    RECORD_META,
    RECORD_NODE,
    RECORDS,
    SET_MASK,
    SET_WORDS,
    TIER_BITS,
    TIER_MASK,
    I,
    U,
    i32_view,
    u8_view,
    u32_view,
    u64_view,
)
from indexer.jit.decorators import compiled

U8S, U32S, U64S = "uint8[::1]", "uint32[::1]", "uint64[::1]"


@compiled()
def _copy_node(h, node):
    u64_view(h, COPY_LOCAL)[node] = u64_view(h, LOCAL)[node]
    u64_view(h, COPY_ENGINE)[node] = u64_view(h, ENGINE)[node]
    parent = i32_view(h, PARENT)[node]
    i32_view(h, COPY_PARENT)[node] = parent
    holders = u32_view(h, MARK)[node] & SET_MASK
    u32_view(h, COPY_MARK)[node] = 0 if parent == NODE_FREE else holders


@compiled()
def copy_node_on_write(h, node):
    """Copy a node that is about to change, if the snapshot still needs the old content."""
    # Without a snapshot both ends are 0, so the common case costs one comparison.
    if node < h[COPY_NODES_END] and node >= h[COPY_NODES]:
        copied = u8_view(h, COPIED_NODES)
        if copied[node] == 0:
            copied[node] = 1
            _copy_node(h, node)


@compiled()
def copy_set_on_write(h, set_id):
    """Copy the row of a set that is about to change, if the snapshot needs the old content."""
    if set_id < h[COPY_SETS_END] and set_id >= h[COPY_SETS]:
        copied = u8_view(h, COPIED_SETS)
        if copied[set_id] == 0:
            copied[set_id] = 1
            width = h[SET_WORDS]
            bits = u64_view(h, BITS)
            copy = u64_view(h, COPY_BITS)
            for k in range(set_id * width, (set_id + 1) * width):
                copy[k] = bits[k]


@compiled()
def copy_record_on_write(h, i):
    """Copy slot i of the record table before a change, if the snapshot needs the old content."""
    if i < h[COPY_ROWS_END] and i >= h[COPY_ROWS]:
        copied = u8_view(h, COPIED_RECORDS)
        if copied[i] == 0:
            copied[i] = 1
            rows = u32_view(h, RECORDS)
            copy = u32_view(h, COPY_RECORDS)
            for k in range(i * RECORD_FIELDS, (i + 1) * RECORD_FIELDS):
                copy[k] = rows[k]


@compiled(f"void({HEADER}, int64)", nogil=True)
def copy_nodes(h, count):
    """Copy the next `count` nodes of the range."""
    copied = u8_view(h, COPIED_NODES)
    start = h[COPY_NODES]
    stop = min(start + count, h[COPY_NODES_END])
    for node in range(start, stop):
        if copied[node] == 0:
            _copy_node(h, node)
    h[COPY_NODES] = stop


@compiled(f"void({U8S}, {U64S}, {U64S}, int64, int64)", nogil=True)
def copy_sets(copied, source, target, start, stop):
    """Copy rows [start, stop) that are not copied yet.

    copied:         uint8 [rows]
    source, target: uint64 [rows * width]
    """
    width = target.shape[0] // copied.shape[0]
    for row in range(start, stop):
        if copied[row] == 0:
            for k in range(row * width, (row + 1) * width):
                target[k] = source[k]


@compiled(f"void({U8S}, {U32S}, {U32S}, int64, int64)", nogil=True)
def copy_records(copied, source, target, start, stop):
    """Copy rows as `copy_sets` does, for uint32 [rows * RECORD_FIELDS]."""
    for row in range(start, stop):
        if copied[row] == 0:
            for k in range(row * RECORD_FIELDS, (row + 1) * RECORD_FIELDS):
                target[k] = source[k]


@compiled(f"int64({U32S}, {U64S}, int64[:, ::1])", nogil=True)
def unpack_records(rows, keys, fields):
    """Extract the live records of a copied table; return the count.

    rows:   uint32 [slots * RECORD_FIELDS]
    keys:   uint64 [slots], out
    fields: int64 [slots, 5], out: slot, tier, kind, node, count
    """
    n = 0
    for i in range(0, rows.shape[0], RECORD_FIELDS):
        meta = I(rows[i + RECORD_META]) - 1
        if meta < 0:
            continue
        keys[n] = U(rows[i + RECORD_LOW]) | U(rows[i + RECORD_HIGH]) << U(32)
        fields[n, 0] = meta >> 1 + TIER_BITS
        fields[n, 1] = meta >> 1 & TIER_MASK
        fields[n, 2] = meta & 1
        fields[n, 3] = rows[i + RECORD_NODE]
        fields[n, 4] = rows[i + RECORD_COUNT]
        n += 1
    return n
