"""Clearing a slot, in bounded steps, without taking memory.

First its overflow records go, then the slot is taken out of every holder set where it lies, and
where that left sets without holders, or two alike, their nodes move on. Meanwhile nothing is
announced for the slot; all other slots go on as ever.

The steps release the interpreter lock: nobody else touches the index while its lock is held.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.holding_kernels import move_node
from indexer.index.record_kernels import delete_record, slot_of_meta
from indexer.index.set_kernels import (
    LISTED,
    UNLISTED,
    find_equal,
    list_set,
    unlist_set,
    widen_set,
    word_hash,
)
from indexer.index.snapshot_kernels import keep_set
from indexer.index.state_kernels import (
    BITS,
    CHANGED,
    HEADER,
    LIVE,
    LOST,
    N_TIERS,
    NODE_FREE,
    NODES_USED,
    PARENT,
    PLANES,
    RECORD_FIELDS,
    RECORD_META,
    RECORDS,
    SET_FIELDS,
    SET_GENERATION,
    SET_HASH,
    SET_INFO,
    SET_LINK,
    SET_REFS,
    SETS_UNLISTED,
    SETS_USED,
    WIDE_MOVED,
    WORDS,
    I,
    U,
    i32_view,
    i64_view,
    u32_view,
    u64_view,
)
from indexer.index.tree_kernels import drop_if_empty, set_of


@compiled(f"void({HEADER}, int64, int64, int64)", nogil=True)
def clear_records(h, slot, start, stop):
    """Delete the slot's records in table slots [start, stop).

    That closes gaps and may move a record to where this scan has been: repeat while
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
    words = h[WORDS]
    bits = u64_view(h, BITS)
    some = U(0)
    for k in range(N_TIERS * words):
        some |= bits[set_id * PLANES * words + k]
    return some == U(0)


@compiled()
def _is_held(h, set_id, slot):
    """Whether the slot is in a set in any tier; counts the nodes that the slot loses with it."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    live = i64_view(h, LIVE)
    refs = i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_REFS]
    held = False
    for tier in range(N_TIERS):
        word = (set_id * PLANES + tier) * words + (slot >> 6)
        if bits[word] >> U(slot & 63) & U(1):
            live[slot * N_TIERS + tier] -= refs
            held = True
    if held:
        i64_view(h, LOST)[slot] += 1
        h[CHANGED] += 1
    return held


@compiled()
def _take_out(h, set_id, slot):
    """Clear the slot's bits in a set that is not in the table."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    info = i64_view(h, SET_INFO)
    keep_set(h, set_id)
    hashed = U(info[set_id * SET_FIELDS + SET_HASH])
    for plane in range(PLANES):
        word = (set_id * PLANES + plane) * words + (slot >> 6)
        hashed -= word_hash(plane, slot >> 6, bits[word])
        bits[word] &= ~(U(1) << U(slot & 63))
        hashed += word_hash(plane, slot >> 6, bits[word])
    info[set_id * SET_FIELDS + SET_HASH] = I(hashed)
    info[set_id * SET_FIELDS + SET_GENERATION] += 1  # no memo leads to it or from it any more
    if set_id < h[WIDE_MOVED]:
        widen_set(h, set_id)


@compiled()
def _list_unless_equal(h, set_id):
    """Enter an unlisted set into the table, unless it is empty or one like it is there.

    Returns that one, or 0 for an empty set, else the set itself.
    """
    if _is_empty(h, set_id):
        return I(0)
    bits = u64_view(h, BITS)
    hashed = i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_HASH]
    equal, i = find_equal(h, bits, set_id * PLANES * h[WORDS], hashed)
    if equal != 0:
        return equal
    list_set(h, set_id, i)
    return set_id


@compiled(f"void({HEADER}, int64, int64, int64)", nogil=True)
def clear_sets(h, slot, start, stop):
    """Take a slot without records out of the holder sets [start, stop).

    SETS_UNLISTED is then the number of sets whose nodes must move on.
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
    """Nodes [start, stop) leave unlisted sets; those that nobody holds any more are freed."""
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
