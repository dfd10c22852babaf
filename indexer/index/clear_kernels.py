"""Clearing of a slot, in bounded steps, without taking memory.

First the slot's overflow records are deleted.  Then the slot is removed from every holder set in
place, and the nodes of sets that became empty or equal to another set move on. Meanwhile nothing
is announced for the slot; all other slots continue as usual.

The steps release the interpreter lock: the index lock excludes all other access meanwhile.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    BITS,
    CHANGED,
    HEADER,
    LANES,
    LIVE,
    LOST,
    N_TIERS,
    NODE_FREE,
    NODES_USED,
    PARENT,
    RECORD_FIELDS,
    RECORD_META,
    RECORDS,
    SET_FIELDS,
    SET_GENERATION,
    SET_HASH,
    SET_INFO,
    SET_LINK,
    SET_REFS,
    SET_WORDS,
    SETS_UNLISTED,
    SETS_USED,
    WIDE_MOVED,
    WORDS,
    I,
    U,
    held_plane,
    i32_view,
    i64_view,
    live_at,
    u32_view,
    u64_view,
)
from indexer.index.holder_kernels import move_node
from indexer.index.holder_set_kernels import (
    LISTED,
    UNLISTED,
    find_equal,
    list_set,
    unlist_set,
    widen_set,
    word_hash,
)
from indexer.index.overflow_record_kernels import delete_record, slot_of_meta
from indexer.index.snapshot_kernels import copy_set_on_write
from indexer.index.tree_kernels import drop_if_empty, set_of
from indexer.jit.decorators import compiled


@compiled(f"void({HEADER}, int64, int64, int64)", nogil=True)
def clear_records(h, slot, start, stop):
    """Delete the slot's records in table slots [start, stop).

    A deletion closes gaps and may move a record to a part already scanned: repeat while
    RECORDS_OF[slot] > 0.
    """
    rows = u32_view(h, RECORDS)
    i = start
    while i < min(stop, rows.shape[0] // RECORD_FIELDS):
        meta = I(rows[i * RECORD_FIELDS + RECORD_META])
        if meta != 0 and slot_of_meta(meta) == slot:
            delete_record(h, i)
        else:
            i += 1


@compiled()
def _is_empty(h, set_id):
    bits = u64_view(h, BITS)
    some = U(0)
    for k in range(set_id * h[SET_WORDS], (set_id + 1) * h[SET_WORDS]):
        some |= bits[k]
    return some == U(0)


@compiled()
def _is_held(h, set_id, slot):
    """Return whether a set has the slot in any tier or lane; count the nodes that the slot thereby
    loses.
    """
    words = h[WORDS]
    bits = u64_view(h, BITS)
    live = i64_view(h, LIVE)
    refs = i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_REFS]
    held = False
    for tier in range(N_TIERS + h[LANES]):
        word = set_id * h[SET_WORDS] + held_plane(tier) * words + (slot >> 6)
        if bits[word] >> U(slot & 63) & U(1):
            live[live_at(live.shape[0], slot, tier)] -= refs
            held = True
    if held:
        # Once per set, not per node: the counter only shows that the slot has lost something.
        i64_view(h, LOST)[slot] += 1
        h[CHANGED] += 1
    return held


@compiled()
def _take_out(h, set_id, slot):
    """Clear the slot's bits in a set that is not in the table."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    info = i64_view(h, SET_INFO)
    copy_set_on_write(h, set_id)
    hashed = U(info[set_id * SET_FIELDS + SET_HASH])
    for plane in range(h[SET_WORDS] // words):
        word = set_id * h[SET_WORDS] + plane * words + (slot >> 6)
        hashed -= word_hash(h, plane, slot >> 6, bits[word])
        bits[word] &= ~(U(1) << U(slot & 63))
        hashed += word_hash(h, plane, slot >> 6, bits[word])
    info[set_id * SET_FIELDS + SET_HASH] = I(hashed)
    info[set_id * SET_FIELDS + SET_GENERATION] += 1  # invalidates memo entries from and to the set
    if set_id < h[WIDE_MOVED]:
        widen_set(h, set_id)


@compiled()
def _list_unless_equal(h, set_id):
    """Enter an unlisted set into the table, unless the set is empty or an equal set is there.

    Returns the equal set, 0 for an empty set, else the set itself.
    """
    if _is_empty(h, set_id):
        return I(0)
    bits = u64_view(h, BITS)
    hashed = i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_HASH]
    equal, i = find_equal(h, bits, set_id * h[SET_WORDS], hashed)
    if equal != 0:
        return equal
    list_set(h, set_id, i)
    return set_id


@compiled(f"void({HEADER}, int64, int64, int64)", nogil=True)
def clear_sets(h, slot, start, stop):
    """Take a slot without records out of the holder sets [start, stop).

    SETS_UNLISTED is then the number of sets with nodes that must move on.
    """
    info = i64_view(h, SET_INFO)
    for set_id in range(start, min(stop, h[SETS_USED])):
        row = set_id * SET_FIELDS
        if info[row + SET_REFS] == 0 or not _is_held(h, set_id, slot):
            continue
        was_listed = info[row + SET_LINK] == LISTED
        unlist_set(h, set_id)
        _take_out(h, set_id, slot)
        is_listed = _list_unless_equal(h, set_id) == set_id
        h[SETS_UNLISTED] += I(was_listed) - I(is_listed)


@compiled(f"void({HEADER}, int64, int64)", nogil=True)
def settle_nodes(h, start, stop):
    """Move nodes [start, stop) out of unlisted sets; free nodes without holders."""
    parents = i32_view(h, PARENT)
    info = i64_view(h, SET_INFO)
    for node in range(start, min(stop, h[NODES_USED])):
        if parents[node] == NODE_FREE:
            continue
        old = set_of(h, node)
        if old == 0 or info[old * SET_FIELDS + SET_LINK] != UNLISTED:
            continue
        new = _list_unless_equal(h, old)
        if new == old:
            h[SETS_UNLISTED] -= 1
        else:
            move_node(h, node, old, new)
            drop_if_empty(h, node)
