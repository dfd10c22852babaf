"""Order of use of the assumed blocks of every slot: touches, evictions, expiry and removal.

A touch makes the deepest block of a prompt the oldest and the first block the newest.  A prefix is
therefore never older than a continuation, and evictions shorten prompts from the end.

Blocks of live reservations are not evicted: an eviction counts them as used now.
Common arguments:

    h      header of the blocks (assumed_layout)
    load   header of the partition's load (load_layout)
    names  uint64[n], names of the prefixes of a prompt, the shortest first
    out    uint64[n], names of removed blocks; the length bounds the work
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import HASHES, HEADER, I, U, i32_view, i64_view
from indexer.jit.decorators import compiled
from select_service.core.assumed.assumed_layout import (
    BUCKETS,
    COUNT,
    ENTRIES,
    EXAMINED,
    FIELDS,
    FREE,
    HEADS,
    LENGTH,
    NAME,
    NEWER,
    NEWEST,
    NEXT,
    OLDER,
    OLDEST,
    POWER,
    SEED,
    SLOT,
    SLOT_FIELDS,
    SLOTS,
    USED,
    USED_AT,
)
from select_service.core.load.compiled.active_load_kernels import next_prefix
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.shared_prefix_kernels import holds_prefix
from select_service.core.load.compiled.table_kernels import mix_hash

OUT = "uint64[::1]"


@compiled(f"void({HASHES}, {HASHES}, {OUT})")
def fill_names(before, hashes, names):
    """Write the names of the prefixes of a prompt.

    before: uint64[0 or 1], name of the prefix before the first of `hashes`; empty at the beginning
    hashes: uint64[n], identities of the blocks
    """
    prefix = before[0] if before.shape[0] else U(0)
    for block in range(hashes.shape[0]):
        prefix = next_prefix(prefix, hashes[block])
        names[block] = prefix


@compiled()
def _bucket_of(h, slot, name):
    """Return the bucket; of POWER + s buckets the first s are split and use another bit."""
    found = mix_hash(name ^ mix_hash(U(slot) ^ U(h[SEED])))
    bucket = I(found & U(2 * h[POWER] - 1))
    return bucket if bucket < h[BUCKETS] else bucket - h[POWER]


@compiled()
def _find_entry(h, slot, name):
    entries = i64_view(h, ENTRIES)
    entry = I(i32_view(h, HEADS)[_bucket_of(h, slot, name)])
    while entry != 0:
        at = entry * FIELDS
        if U(entries[at + NAME]) == name and entries[at + SLOT] == slot:
            return entry
        entry = entries[at + NEXT]
    return entry


@compiled()
def _push_entry(h, entry):
    """Add an entry to the bucket of the name."""
    entries, heads = i64_view(h, ENTRIES), i32_view(h, HEADS)
    at = entry * FIELDS
    bucket = _bucket_of(h, entries[at + SLOT], U(entries[at + NAME]))
    entries[at + NEXT] = heads[bucket]
    heads[bucket] = np.int32(entry)


@compiled()
def _split_bucket(h):
    """Split a bucket: a new bucket takes a part of the entries."""
    entries, heads = i64_view(h, ENTRIES), i32_view(h, HEADS)
    old = h[BUCKETS] - h[POWER]
    entry = I(heads[old])
    heads[old] = np.int32(0)
    h[BUCKETS] += 1
    if h[BUCKETS] == 2 * h[POWER]:
        h[POWER] *= 2
    while entry != 0:
        # Read before the push, which overwrites the link.
        following = entries[entry * FIELDS + NEXT]
        _push_entry(h, entry)
        entry = following


@compiled()
def _link_newest(h, entry, now):
    entries, slots = i64_view(h, ENTRIES), i64_view(h, SLOTS)
    at = entry * FIELDS
    row = entries[at + SLOT] * SLOT_FIELDS
    newest = slots[row + NEWEST]
    entries[at + OLDER], entries[at + NEWER] = newest, 0
    entries[at + USED_AT] = float_to_bits(now)
    if newest != 0:
        entries[newest * FIELDS + NEWER] = entry
    else:
        slots[row + OLDEST] = entry
    slots[row + NEWEST] = entry


@compiled()
def _unlink_entry(h, entry):
    entries, slots = i64_view(h, ENTRIES), i64_view(h, SLOTS)
    at = entry * FIELDS
    row = entries[at + SLOT] * SLOT_FIELDS
    older, newer = entries[at + OLDER], entries[at + NEWER]
    if older != 0:
        entries[older * FIELDS + NEWER] = newer
    else:
        slots[row + OLDEST] = newer
    if newer != 0:
        entries[newer * FIELDS + OLDER] = older
    else:
        slots[row + NEWEST] = older


@compiled()
def _add_entry(h, slot, name, now):
    """Add a block; the caller has checked that there is room."""
    entries = i64_view(h, ENTRIES)
    entry = h[FREE]
    if entry != 0:
        h[FREE] = entries[entry * FIELDS + NEXT]
    else:
        entry = h[USED]
        h[USED] += 1
    at = entry * FIELDS
    entries[at + NAME], entries[at + SLOT] = I(name), slot
    # One split per added entry keeps the lists short without a long step.
    if h[COUNT] >= h[BUCKETS] and h[BUCKETS] < h[HEADS + 1]:
        _split_bucket(h)
    _push_entry(h, entry)
    _link_newest(h, entry, now)
    h[COUNT] += 1
    i64_view(h, SLOTS)[slot * SLOT_FIELDS + LENGTH] += 1


@compiled()
def _drop_entry(h, entry):
    """Remove a block; return the name."""
    entries, heads = i64_view(h, ENTRIES), i32_view(h, HEADS)
    at = entry * FIELDS
    slot, name = entries[at + SLOT], U(entries[at + NAME])
    bucket, following = _bucket_of(h, slot, name), entries[at + NEXT]
    other = I(heads[bucket])
    if other == entry:
        heads[bucket] = np.int32(following)
    else:
        while entries[other * FIELDS + NEXT] != entry:
            other = entries[other * FIELDS + NEXT]
        entries[other * FIELDS + NEXT] = following
    _unlink_entry(h, entry)
    entries[at + NEXT] = h[FREE]
    h[FREE] = entry
    h[COUNT] -= 1
    i64_view(h, SLOTS)[slot * SLOT_FIELDS + LENGTH] -= 1
    return name


@compiled(f"int64({HEADER}, int64, {HASHES})")
def count_missing(h, slot, names):
    """Return the number of blocks that the slot is not assumed to hold."""
    missing = I(0)
    for block in range(names.shape[0]):
        if _find_entry(h, slot, names[block]) == 0:
            missing += 1
    return missing


@compiled(f"int64({HEADER}, int64, {HASHES}, float64)")
def touch_blocks(h, slot, names, now):
    """Use the blocks of a prompt; return the index of the first missing block, else len(names).

    The caller has checked that there is room for the missing blocks.
    """
    first = I(names.shape[0])
    # From the end: the first block becomes the newest.
    for block in range(names.shape[0] - 1, -1, -1):
        entry = _find_entry(h, slot, names[block])
        if entry == 0:
            first = block
            _add_entry(h, slot, names[block], now)
        else:
            _unlink_entry(h, entry)
            _link_newest(h, entry, now)
    return first


@compiled(f"int64({HEADER}, {HEADER}, int64, int64, float64, {OUT})")
def evict_blocks(h, load, slot, keep, now, out):
    """Remove the oldest blocks of a slot beyond `keep`, except those of live reservations.

    Returns the number of names in `out`.  Examines at most the length of `out`, and no block twice.
    """
    entries, slots = i64_view(h, ENTRIES), i64_view(h, SLOTS)
    row, n = slot * SLOT_FIELDS, I(0)
    for _ in range(min(slots[row + LENGTH], I(out.shape[0]))):
        if slots[row + LENGTH] <= keep:
            break
        entry = slots[row + OLDEST]
        # A live block moves to the new end, which the bound of the loop does not reach again.
        if holds_prefix(load, U(entries[entry * FIELDS + NAME]), slot):
            _unlink_entry(h, entry)
            _link_newest(h, entry, now)
        else:
            out[n] = _drop_entry(h, entry)
            n += 1
    return n


@compiled(f"int64({HEADER}, int64, float64, {OUT})")
def expire_blocks(h, slot, before, out):
    """Remove the blocks of a slot that were last used before a time, live or not.

    Returns the number of names in `out`.
    """
    entries, slots = i64_view(h, ENTRIES), i64_view(h, SLOTS)
    row, n = slot * SLOT_FIELDS, I(0)
    while n < out.shape[0] and slots[row + OLDEST] != 0:
        entry = slots[row + OLDEST]
        if float_from_bits(entries[entry * FIELDS + USED_AT]) >= before:
            break
        out[n] = _drop_entry(h, entry)
        n += 1
    return n


@compiled(f"int64({HEADER}, int64, {HASHES}, float64, {OUT})")
def forget_blocks(h, slot, names, at, out):
    """Remove blocks that were last used at a time or before; return the number of names in `out`.

    out: at least as long as `names`
    """
    entries, n = i64_view(h, ENTRIES), I(0)
    for block in range(names.shape[0]):
        entry = _find_entry(h, slot, names[block])
        if entry != 0 and float_from_bits(entries[entry * FIELDS + USED_AT]) <= at:
            out[n] = _drop_entry(h, entry)
            n += 1
    return n


@compiled(f"int64({HEADER}, {HEADER}, int64, float64, float64, {OUT})")
def clear_blocks(h, load, slot, at, now, out):
    """Remove blocks last used at a time or before; return the number of names in `out`.

    load: blocks of the live reservations in this load stay; empty: all are removed
    EXAMINED equals the length of `out` if there may be more.
    """
    entries, slots = i64_view(h, ENTRIES), i64_view(h, SLOTS)
    row, n, examined = slot * SLOT_FIELDS, I(0), I(0)
    most = min(slots[row + LENGTH], I(out.shape[0]))
    while examined < most:
        entry = slots[row + OLDEST]
        name, used_at = U(entries[entry * FIELDS + NAME]), entries[entry * FIELDS + USED_AT]
        if float_from_bits(used_at) > at:
            break
        if load.shape[0] != 0 and holds_prefix(load, name, slot):
            _unlink_entry(h, entry)
            _link_newest(h, entry, now)
        else:
            out[n] = _drop_entry(h, entry)
            n += 1
        examined += 1
    h[EXAMINED] = examined
    return n


@compiled(f"int64({HEADER}, int64, {OUT}, float64[::1])")
def list_blocks(h, slot, names, times):
    """Write the blocks of a slot from the oldest to the newest, for tests; return the number."""
    entries, n = i64_view(h, ENTRIES), I(0)
    entry = i64_view(h, SLOTS)[slot * SLOT_FIELDS + OLDEST]
    while entry != 0:
        names[n] = U(entries[entry * FIELDS + NAME])
        times[n] = float_from_bits(entries[entry * FIELDS + USED_AT])
        entry = entries[entry * FIELDS + NEWER]
        n += 1
    return n
