"""Compiled entry points of the index: stores, removals and lookups.

Each takes the header (state_kernels) first. Kernels never allocate: a kernel that needs larger
tables stops between two blocks, sets NEED, and continues there after `IndexMemory.grow_tables`.
Kernels keep the interpreter lock, and each is bounded by the size of the input.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    CALL_AT,
    CURSOR,
    EDGES,
    ENTRIES,
    GROWING,
    HASHES,
    HEADER,
    LOCAL,
    NAMES,
    NEED,
    PARENT,
    RECORDS,
    REFUSED,
    ROOM,
    SET_TABLE,
    SETS_KEPT,
    SETS_USED,
    UNKNOWN,
    WIDE_MOVED,
    I,
    i32_view,
    u64_view,
)
from indexer.index.holder_kernels import (
    add_holding,
    find_in_any_tier,
    find_in_tier,
    hold_child,
    holder_slot,
    holder_tier,
    remove_holding,
)
from indexer.index.holder_set_kernels import has_set_room, move_sets, widen_set
from indexer.index.overflow_record_kernels import move_records
from indexer.index.tree_kernels import find_child, move_edges, move_names
from indexer.jit.decorators import compiled

HOMES_PER_BLOCK = 32
"""Table slots moved per block: a table is completely moved before entries for a sixteenth of the
slots were added, as a block adds at most two entries.
"""


@compiled()
def _move_tables(h):
    move_names(h, HOMES_PER_BLOCK)
    move_edges(h, HOMES_PER_BLOCK)
    move_sets(h, HOMES_PER_BLOCK)
    move_records(h, HOMES_PER_BLOCK)


@compiled(f"void({HEADER}, int64)", nogil=True)
def widen_sets(h, count):
    """Move the next `count` sets to the pool for twice as many slots."""
    stop = min(h[WIDE_MOVED] + count, h[SETS_USED])
    for set_id in range(h[WIDE_MOVED], stop):
        widen_set(h, set_id)
    h[WIDE_MOVED] = stop


@compiled()
def needs_owner(h):
    """Move growing tables on, then set and return NEED. Runs before each block."""
    if h[GROWING] != 0:
        _move_tables(h)
    h[NEED] = (
        h[NAMES + ENTRIES] >= h[NAMES + CALL_AT]
        or h[EDGES + ENTRIES] >= h[EDGES + CALL_AT]
        or h[SET_TABLE + ENTRIES] >= h[SET_TABLE + CALL_AT]
        or h[RECORDS + ENTRIES] >= h[RECORDS + CALL_AT]
    )
    return h[NEED] != 0


@compiled()
def has_room(h):
    """Return whether the tables take another block; nodes and records are checked elsewhere."""
    return (
        h[NAMES + ENTRIES] < h[NAMES + ROOM]
        and h[EDGES + ENTRIES] < h[EDGES + ROOM]
        and has_set_room(h, h[SETS_KEPT])
    )


@compiled()
def continue_store(h, holder, blocks, engines, start):
    """Continue a store at block `start`, below node CURSOR. Return the blocks recorded in all.

    holder:  slot, tier and counted, see `block_tree.holder_of`
    blocks:  uint64 [n], content hashes
    engines: uint64 [n], engine hashes
    If fewer than given: NEED is set, or the index is full, and the rest is refused and counted.
    """
    node = h[CURSOR]
    h[NEED] = 0
    for i in range(start, blocks.shape[0]):
        if needs_owner(h):
            return i
        node = hold_child(h, holder, node, blocks[i], engines[i]) if has_room(h) else I(0)
        if node == 0:
            h[REFUSED] += blocks.shape[0] - i
            return i
        h[CURSOR] = node
    return blocks.shape[0]


@compiled(f"int64({HEADER}, int64, {HASHES}, int64)")
def store_known_blocks(h, holder, engines, start):
    """Record blocks that the slot has announced with content, in any tier, in this tier too.

    Returns the number of engines[start:] recorded; CURSOR is the index of the first unfinished.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    recorded = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if needs_owner(h):
            return recorded
        node = find_in_any_tier(h, slot, tier, engines[i])
        if node == 0:
            h[UNKNOWN] += 1
        elif has_room(h) and add_holding(h, slot, tier, node, engines[i], holder & 1):
            recorded += 1
        else:
            h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return recorded


@compiled(f"int64({HEADER}, int64, {HASHES}, int64[::1], int64)")
def add_copies(h, holder, engines, copies, start):
    """Add announcements of blocks that (slot, tier) holds; other hashes are skipped.

    copies: int64 [n], more than 0. Returns the number of engines[start:] held; CURSOR is the index
    of the first unfinished hash.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    held = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if needs_owner(h):
            return held
        node = find_in_tier(h, slot, tier, engines[i])
        if node != 0:
            held += 1
            if not (has_room(h) and add_holding(h, slot, tier, node, engines[i], copies[i])):
                h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return held


@compiled()
def remove_blocks(h, holder, engines, every_copy, start):
    """Undo an announcement of each hash, or all announcements.

    Returns the number of engines[start:] with a node; CURSOR is the index of the first unfinished
    hash: before the end if NEED is set, or if no holder set may be added.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    removed = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if needs_owner(h):
            return removed
        node = find_in_tier(h, slot, tier, engines[i])
        if node != 0:
            # Removals may use the ids that stores leave (SETS_KEPT): a refused removal would be a
            # false hit.
            if not has_set_room(h, 0):
                return removed
            remove_holding(h, slot, tier, node, engines[i], every_copy)
            removed += 1
    h[CURSOR] = engines.shape[0]
    return removed


@compiled(f"int64({HEADER}, int64, boolean, uint64, uint64)")
def find_block(h, holder, check_local, local, engine_hash):
    """Return the node the slot knows by this hash in any tier, with this content if checked; or
    0.
    """
    node = find_in_any_tier(h, holder_slot(holder), holder_tier(holder), engine_hash)
    if node != 0 and check_local and u64_view(h, LOCAL)[node] != local:
        return I(0)
    return node


@compiled(f"int64({HEADER}, int64, uint64)")
def find_block_in_tier(h, holder, engine_hash):
    """Return the node the slot holds by this hash in this very tier, or 0."""
    return find_in_tier(h, holder_slot(holder), holder_tier(holder), engine_hash)


@compiled(f"int64({HEADER}, int64, uint64, uint64[::1])")
def find_root(h, holder, engine_hash, content):
    """Write the content hash of the first block above a block of the slot.

    Returns the node that the slot knows by this hash in any tier; 0 without effect.  O(depth)
    """
    node = find_in_any_tier(h, holder_slot(holder), holder_tier(holder), engine_hash)
    if node == 0:
        return node
    parents, root = i32_view(h, PARENT), node
    while parents[root] != 0:
        root = I(parents[root])
    content[0] = u64_view(h, LOCAL)[root]
    return node


@compiled(f"void({HEADER}, int64, {HASHES}, boolean[::1])")
def find_names(h, holder, engines, is_known):
    """Write for each engine hash whether the slot knows a block by this hash in any tier."""
    slot, tier = holder_slot(holder), holder_tier(holder)
    for i in range(engines.shape[0]):
        is_known[i] = find_in_any_tier(h, slot, tier, engines[i]) != 0


@compiled(f"void({HEADER}, {HASHES}, boolean[::1])")
def find_first_blocks(h, contents, is_live):
    """Write for each content hash whether a first block of a sequence has this content."""
    for i in range(contents.shape[0]):
        is_live[i] = find_child(h, I(0), contents[i]) != 0
