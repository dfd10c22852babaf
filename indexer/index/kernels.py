"""The compiled entry points of the index: match, store, remove, clear, and table rebuilding.

Each takes the header (state_kernels) first. Kernels never allocate: one that runs out of table
room stops between two blocks, sets NEED, and goes on where it stopped after the owner made room.
They do not release the interpreter lock, and every one is bounded by the size of its input.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np
from numba import boolean, int32, int64, uint32, uint64, void

from indexer.compiled import compiled
from indexer.index.holding_kernels import (
    add_holding,
    find_held,
    find_known,
    hold_child,
    move_node,
    take_holding,
    take_primary,
)
from indexer.index.record_kernels import (
    ALIAS,
    has_record_room,
    insert_record,
    record_count,
    record_key,
    record_node,
    slot_of_meta,
)
from indexer.index.set_kernels import (
    ABSENT,
    SLOT_GONE,
    changed_set,
    fill_set_table,
    has_set_room,
    holder_state,
)
from indexer.index.state_kernels import (
    BITS,
    CURSOR,
    EDGES_LIVE,
    EDGES_ROOM,
    HASHES,
    HEADER,
    IMPLICIT,
    LIVE,
    LOCAL,
    MARK,
    N_TIERS,
    NAMES_LIVE,
    NAMES_ROOM,
    NEED,
    NEED_EDGES,
    NEED_NAMES,
    NEED_NOTHING,
    NEED_RECORDS,
    NEED_SETS,
    NODE_FREE,
    NODES_USED,
    PARENT,
    PLANES,
    RECORD_COUNT,
    RECORD_FIELDS,
    RECORD_META,
    RECORD_NODE,
    RECORDS,
    RECORDS_FIXED,
    REFUSED,
    SCRATCH,
    SET_MASK,
    UNKNOWN,
    WORDS,
    I,
    U,
    i32_view,
    i64_view,
    lowest_bit,
    u32_view,
    u64_view,
)
from indexer.index.tree_kernels import drop_if_empty, find_child, insert_edge, insert_name, set_of


@compiled()
def holder_slot(holder):
    return holder >> 3


@compiled()
def holder_tier(holder):
    return holder >> 1 & 3


# --- match --------------------------------------------------------------------------------------


@compiled()
def _start_alive(h, set_id):
    """Each holder of the first block starts in its best tier. Returns whether there is any."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    alive = u64_view(h, SCRATCH)
    row = set_id * PLANES * words
    some = U(0)
    for k in range(words):
        taken = U(0)
        for tier in range(N_TIERS):
            plane = bits[row + tier * words + k]
            alive[tier * words + k] = plane & ~taken
            taken |= plane
        some |= taken
    return some != U(0)


@compiled()
def _narrow_alive(h, set_id, depth, matched):
    """At a block with this holder set, slots stay in their tier, move on to a later one or drop
    out; the tiers they leave are final at `depth`. Returns whether any slot is left.
    """
    words = h[WORDS]
    bits = u64_view(h, BITS)
    alive = u64_view(h, SCRATCH)
    row = set_id * PLANES * words
    some = U(0)
    for k in range(words):
        leaving = U(0)
        for tier in range(N_TIERS):
            here = alive[tier * words + k] | leaving
            stay = here & bits[row + tier * words + k]
            alive[tier * words + k] = stay
            some |= stay
            leaving = here ^ stay
            rest = leaving
            while rest:
                matched[k * 64 + I(lowest_bit(rest)), tier] = depth
                rest &= rest - U(1)
    return some != U(0)


@compiled()
def _finish_alive(h, depth, matched):
    """The path ended, or nobody has its next block: what is still alive matched `depth`."""
    words = h[WORDS]
    alive = u64_view(h, SCRATCH)
    for tier in range(N_TIERS):
        for k in range(words):
            rest = alive[tier * words + k]
            while rest:
                slot = k * 64 + I(lowest_bit(rest))
                for later in range(tier, N_TIERS):
                    matched[slot, later] = depth
                rest &= rest - U(1)


@compiled()
def _same_run(locals_, marks, path, mark):
    """Leading nodes that continue the path on implicit edges with one holder set."""
    limit = min(path.shape[0], locals_.shape[0])
    j = 0
    while j + 8 <= limit:
        other = U(0)
        other_mark = np.uint32(0)
        for k in range(8):
            other |= locals_[j + k] ^ path[j + k]
            other_mark |= marks[j + k] ^ mark
        if other != 0 or other_mark != 0:
            break
        j += 8
    while j < limit and locals_[j] == path[j] and marks[j] == mark:
        j += 1
    return j


@compiled(void(HEADER, HASHES, int32[:, ::1]))
def match(h, path, matched):
    """Matched blocks of every slot, tiers cumulated.

    path:    uint64 [n_blocks], content hashes, first block first
    matched: int32 [n_slots, N_TIERS], out; column t counts the blocks found in tiers 0..t

    A slot is matched in tier 0 as far as it goes, from there in tier 1, and so on; it never
    returns to an earlier tier. O(path), plus O(slots) where the holders change.
    """
    matched[:] = 0
    if path.shape[0] == 0:
        return
    used = h[NODES_USED]
    locals_ = u64_view(h, LOCAL)[:used]
    marks = u32_view(h, MARK)[:used]
    node = find_child(h, I(0), path[0])
    set_id = set_of(h, node)
    if not _start_alive(h, set_id):
        return
    depth = 1
    while True:
        mark = np.uint32(set_id) | IMPLICIT
        run = _same_run(locals_[node + 1 :], marks[node + 1 :], path[depth:], mark)
        node += run
        depth += run
        if depth == path.shape[0]:
            break
        node = find_child(h, node, path[depth])
        if node == 0:
            break
        if set_of(h, node) != set_id:
            set_id = set_of(h, node)
            if not _narrow_alive(h, set_id, depth, matched):
                return
        depth += 1
    _finish_alive(h, depth, matched)


# --- store, remove ------------------------------------------------------------------------------


@compiled()
def _missing_room(h):
    """What the next block might lack; NEED_NOTHING if it surely fits in the tables."""
    if not has_set_room(h):
        return NEED_SETS
    if h[NAMES_LIVE] >= h[NAMES_ROOM]:
        return NEED_NAMES
    if h[EDGES_LIVE] >= h[EDGES_ROOM]:
        return NEED_EDGES
    if h[RECORDS_FIXED] == 0 and not has_record_room(h):
        return NEED_RECORDS
    return NEED_NOTHING


@compiled(int64(HEADER, int64, HASHES, HASHES, int64))
def store_on(h, holder, blocks, engines, start):
    """Go on with a store at block `start`, below node CURSOR. Returns the blocks recorded in all.

    Fewer than given: NEED says what to make room for, or nothing: then the index is full, and the
    rest is refused and counted.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    node = h[CURSOR]
    h[NEED] = NEED_NOTHING
    for i in range(start, blocks.shape[0]):
        need = _missing_room(h)
        if need != NEED_NOTHING:
            h[NEED] = need
            return i
        node = hold_child(h, slot, tier, node, blocks[i], engines[i], holder & 1)
        if node == 0:
            h[REFUSED] += blocks.shape[0] - i
            return i
        h[CURSOR] = node
    return blocks.shape[0]


@compiled(int64(HEADER, int64, boolean, uint64, HASHES, HASHES))
def store(h, holder, has_parent, parent, blocks, engines):
    """Record a chain of blocks below `parent` (below the root without one).

    holder:  slot << 3 | tier << 1 | counted
    blocks:  uint64 [n], content hashes
    engines: uint64 [n], engine hashes

    Returns what `store_on` returns, or -1 when the slot does not know the parent; then nothing
    changed.
    """
    h[CURSOR] = 0
    if has_parent:
        h[CURSOR] = find_known(h, holder_slot(holder), holder_tier(holder), parent)
        if h[CURSOR] == 0:
            return -1
    return store_on(h, holder, blocks, engines, 0)


@compiled(int64(HEADER, int64, HASHES, int64))
def store_known(h, holder, engines, start):
    """Blocks the slot has announced with content in some tier are now (also) in this one.

    Returns how many of engines[start:] were recorded; CURSOR is the index where it stopped.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    recorded = 0
    h[NEED] = NEED_NOTHING
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        h[NEED] = _missing_room(h)
        if h[NEED] != NEED_NOTHING:
            return recorded
        node = find_known(h, slot, tier, engines[i])
        if node == 0:
            h[UNKNOWN] += 1
        elif add_holding(h, slot, tier, node, engines[i], holder & 1):
            recorded += 1
        else:
            h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return recorded


@compiled(int64(HEADER, int64, HASHES, int64[::1], int64))
def add_copies(h, holder, engines, copies, start):
    """Further announcements of blocks that (slot, tier) holds; other hashes are passed over.

    copies: int64 [n], more than 0. Returns how many of engines[start:] it holds; CURSOR is the
    index where it stopped.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    held = 0
    h[NEED] = NEED_NOTHING
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        h[NEED] = _missing_room(h)
        if h[NEED] != NEED_NOTHING:
            return held
        node = find_held(h, slot, tier, engines[i])
        if node != 0:
            held += 1
            if not add_holding(h, slot, tier, node, engines[i], copies[i]):
                h[REFUSED] += 1
    h[CURSOR] = engines.shape[0]
    return held


@compiled(int64(HEADER, int64, HASHES, boolean, int64))
def remove(h, holder, engines, every_copy, start):
    """Undo one announcement of each hash, or all of them.

    Returns how many of engines[start:] named something; CURSOR is the index where it stopped.
    """
    slot = holder_slot(holder)
    tier = holder_tier(holder)
    removed = 0
    h[NEED] = NEED_NOTHING
    for i in range(start, engines.shape[0]):
        h[CURSOR] = i
        if not has_set_room(h):
            h[NEED] = NEED_SETS
            return removed
        node = find_held(h, slot, tier, engines[i])
        if node != 0:
            take_holding(h, slot, tier, node, engines[i], every_copy)
            removed += 1
    h[CURSOR] = engines.shape[0]
    return removed


@compiled(int64(HEADER, int64, boolean, uint64, uint64))
def find_place(h, holder, check_local, local, engine_hash):
    """Node the slot knows by this hash in any tier, and if asked has this content; else 0."""
    node = find_known(h, holder_slot(holder), holder_tier(holder), engine_hash)
    if node != 0 and check_local and u64_view(h, LOCAL)[node] != local:
        return I(0)
    return node


@compiled(int64(HEADER, int64, uint64))
def find_here(h, holder, engine_hash):
    """Node the slot holds by this hash in this very tier; else 0."""
    return find_held(h, holder_slot(holder), holder_tier(holder), engine_hash)


# --- clear --------------------------------------------------------------------------------------


@compiled(int64(HEADER, int64, int64, int64))
def clear_records(h, slot, start, stop):
    """Undo what the records of the slot in table slots [start, stop) say, holdings included.

    Removal closes gaps and may move a record to where this scan has been: repeat while
    RECORDS_OF[slot] > 0. Returns the table slot to go on from: `stop`, unless NEED is set.
    """
    rows = u32_view(h, RECORDS)
    h[NEED] = NEED_NOTHING
    i = start
    while i < stop:
        meta = I(rows[i * RECORD_FIELDS + RECORD_META])
        if meta == 0 or slot_of_meta(meta) != slot:
            i += 1
            continue
        if not has_set_room(h):
            h[NEED] = NEED_SETS
            return i
        tier = (meta - 1) >> 1 & 3
        key = record_key(rows, i)
        if (meta - 1) & 1 == ALIAS:
            take_holding(h, slot, tier, record_node(h, i), key, True)
        elif record_count(h, i) > 0:
            take_primary(h, slot, tier, I(key), True)
        else:
            i += 1
    return stop


@compiled(int64(HEADER, int64, int64, int64))
def clear_nodes(h, slot, start, stop):
    """Take a slot without records out of nodes [start, stop).

    Returns the node to go on from: `stop`, unless NEED is set.
    """
    parents = i32_view(h, PARENT)
    live = i64_view(h, LIVE)
    h[NEED] = NEED_NOTHING
    for node in range(start, stop):
        if parents[node] == NODE_FREE:
            continue
        old = set_of(h, node)
        if old == 0:
            continue
        if not has_set_room(h):
            h[NEED] = NEED_SETS
            return node
        held = False
        for tier in range(N_TIERS):
            if holder_state(h, old, slot, tier) != ABSENT:
                live[slot * N_TIERS + tier] -= 1
                held = True
        if held:
            move_node(h, node, old, changed_set(h, old, slot, I(0), SLOT_GONE))
            drop_if_empty(h, node)
    return stop


# --- rebuilding of tables -----------------------------------------------------------------------


@compiled(void(HEADER))
def rebuild_names(h):
    """Fill an empty name table."""
    marks = u32_view(h, MARK)
    parents = i32_view(h, PARENT)
    for node in range(1, h[NODES_USED]):
        if parents[node] != NODE_FREE and marks[node] & SET_MASK != 0:
            insert_name(h, node)


@compiled(void(HEADER, int32[::1]))
def rebuild_edges(h, old):
    """Fill an empty edge table from the one it replaces."""
    for i in range(old.shape[0]):
        if old[i] != 0:
            insert_edge(h, I(old[i]))


@compiled(void(HEADER, uint32[::1]))
def rebuild_records(h, old):
    """Fill an empty record table from the one it replaces."""
    for i in range(old.shape[0] // RECORD_FIELDS):
        row = i * RECORD_FIELDS
        meta = I(old[row + RECORD_META])
        if meta != 0:
            insert_record(
                h, record_key(old, i), meta, old[row + RECORD_NODE], old[row + RECORD_COUNT]
            )


@compiled(void(HEADER))
def rebuild_sets(h):
    """Fill an empty set table."""
    fill_set_table(h)
