"""The compiled entry points of the index: store, remove, and what others ask of the tree.

Each takes the header (state_kernels) first. Kernels never allocate: one that needs its owner stops
between two blocks, sets NEED, and goes on where it stopped after `IndexMemory.make_room`. They do
not release the interpreter lock, and every one is bounded by the size of its input.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.holding_kernels import (
    add_holding,
    find_held,
    find_known,
    hold_child,
    take_holding,
)
from indexer.index.record_kernels import move_records
from indexer.index.set_kernels import has_set_room, move_sets, widen_set
from indexer.index.state_kernels import (
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
    RECORDS,
    REFUSED,
    ROOM,
    SET_TABLE,
    SETS_KEPT,
    SETS_USED,
    UNKNOWN,
    WIDE_MOVED,
    I,
    u64_view,
)
from indexer.index.tree_kernels import move_edges, move_names

HOMES_PER_BLOCK = 32
"""What moves with each block: by the end of it a table has taken a sixteenth of its slots more, as
a block takes no more than two."""


@compiled()
def holder_slot(holder):
    return holder >> 3


@compiled()
def holder_tier(holder):
    return holder >> 1 & 3


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
def _needs_owner(h):
    """Before each block: tables that are being replaced move on. Sets and returns NEED."""
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
def _has_room(h):
    """Whether the tables take one more block. Nodes and records are looked at where needed."""
    return (
        h[NAMES + ENTRIES] < h[NAMES + ROOM]
        and h[EDGES + ENTRIES] < h[EDGES + ROOM]
        and has_set_room(h, h[SETS_KEPT])
    )


@compiled()
def store_on(h, holder, blocks, engines, start):
    """Go on with a store at block `start`, below node CURSOR. Returns the blocks recorded in all.

    holder:  slot << 3 | tier << 1 | counted
    blocks:  uint64 [n], content hashes
    engines: uint64 [n], engine hashes

    Fewer than given: NEED is set, or the index is full, and the rest is refused and counted.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    node = h[CURSOR]
    h[NEED] = 0
    for i in range(start, blocks.shape[0]):
        if _needs_owner(h):
            return i
        if _has_room(h):
            node = hold_child(h, slot, tier, node, blocks[i], engines[i], holder & 1)
        else:
            node = I(0)
        if node == 0:
            h[REFUSED] += blocks.shape[0] - i
            return i
        h[CURSOR] = node
    return blocks.shape[0]


@compiled(f"int64({HEADER}, int64, {HASHES}, int64)")
def store_known(h, holder, engines, start):
    """Blocks the slot has announced with content in some tier are now (also) in this one.

    Returns how many of engines[start:] were recorded; CURSOR is the index where it stopped.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    recorded = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if _needs_owner(h):
            return recorded
        node = find_known(h, slot, tier, engines[i])
        if node == 0:
            h[UNKNOWN] += 1
        elif _has_room(h) and add_holding(h, slot, tier, node, engines[i], holder & 1):
            recorded += 1
        else:
            h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return recorded


@compiled(f"int64({HEADER}, int64, {HASHES}, int64[::1], int64)")
def add_copies(h, holder, engines, copies, start):
    """Further announcements of blocks that (slot, tier) holds; other hashes are passed over.

    copies: int64 [n], more than 0. Returns how many of engines[start:] it holds; CURSOR is the
    index where it stopped.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    held = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if _needs_owner(h):
            return held
        node = find_held(h, slot, tier, engines[i])
        if node != 0:
            held += 1
            if not (_has_room(h) and add_holding(h, slot, tier, node, engines[i], copies[i])):
                h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return held


@compiled()
def remove(h, holder, engines, every_copy, start):
    """Undo one announcement of each hash, or all of them.

    Returns how many of engines[start:] named something; CURSOR is the index where it stopped:
    before the end because NEED is set, or because no holder set may be added.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    removed = 0
    h[NEED] = 0
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if _needs_owner(h):
            return removed
        node = find_held(h, slot, tier, engines[i])
        if node != 0:
            if not has_set_room(h, 0):
                return removed
            take_holding(h, slot, tier, node, engines[i], every_copy)
            removed += 1
    h[CURSOR] = engines.shape[0]
    return removed


@compiled(f"int64({HEADER}, int64, boolean, uint64, uint64)")
def find_place(h, holder, check_local, local, engine_hash):
    """Node the slot knows by this hash in any tier, and if asked has this content; else 0."""
    node = find_known(h, holder_slot(holder), holder_tier(holder), engine_hash)
    if node != 0 and check_local and u64_view(h, LOCAL)[node] != local:
        return I(0)
    return node


@compiled(f"int64({HEADER}, int64, uint64)")
def find_here(h, holder, engine_hash):
    """Node the slot holds by this hash in this very tier; else 0."""
    return find_held(h, holder_slot(holder), holder_tier(holder), engine_hash)
