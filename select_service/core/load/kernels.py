"""Compiled loops of the load tables, over plain arrays.

Three open-addressing tables per partition, with linear probing and backward-shift deletion:

  blocks    (slot, sequence hash) -> how often live reservations of that slot reference the block,
            and its weight.  The slot is -1 in an empty row.
  prefixes  (slot, prefix key) -> how many live reservations of that slot begin so.  A prefix key
            stands for a block and all before it in the prompt.
  holders   prefix key -> bitmap of the slots that have it.  `holder_slots` counts its bits,
            0 in an empty row.

The first answers "what is active on this rank", where a block counts once wherever it stands; the
other two "how much of this prompt is live on which rank", walking the prompt once for all ranks.
Clients' sequence hashes chain the blocks before them, but nothing forces them to.
Table sizes are powers of two; the caller grows them before they are 5/8 full.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled

U64 = np.uint64
I64 = np.int64

_MIX_1 = U64(0xBF58476D1CE4E5B9)
_MIX_2 = U64(0x94D049BB133111EB)
_GOLDEN = U64(0x9E3779B97F4A7C15)

# Columns of the per-slot totals int64[n_slots, N_TOTALS].
PREFILL_TOKENS, REQUESTS, WHOLE_BLOCKS, FRACTIONAL_BLOCKS = 0, 1, 2, 3
N_TOTALS = 4

HALF_TOLERANCE = 1e-9


@compiled()
def mix(x):
    """Spread a hash over all bits (finaliser of SplitMix64): clients may send 1, 2, 3 as hashes."""
    x = (x ^ (x >> U64(30))) * _MIX_1
    x = (x ^ (x >> U64(27))) * _MIX_2
    return x ^ (x >> U64(31))


@compiled()
def _home(key, slot, mask):
    return I64(mix(key + _GOLDEN * U64(slot + 1)) & U64(mask))


@compiled("int64(uint64[::1], int32[::1], uint64, int64)")
def find_reference(ref_hash, ref_slot, key, slot):
    """Row of (slot, key), or the empty row where it belongs."""
    mask = ref_hash.shape[0] - 1
    row = _home(key, slot, mask)
    while ref_slot[row] >= 0 and (ref_slot[row] != slot or ref_hash[row] != key):
        row = (row + 1) & mask
    return row


@compiled()
def next_prefix(prefix, key):
    """Key of the prefix that goes on with the block `key`; the empty prefix is 0."""
    return mix((prefix ^ key) + _GOLDEN)


@compiled()
def _delete_reference(ref_hash, ref_slot, ref_count, ref_weight, hole):
    mask = ref_hash.shape[0] - 1
    row = hole
    while True:
        row = (row + 1) & mask
        if ref_slot[row] < 0:
            break
        home = _home(ref_hash[row], I64(ref_slot[row]), mask)
        if ((row - home) & mask) >= ((row - hole) & mask):
            ref_hash[hole] = ref_hash[row]
            ref_slot[hole] = ref_slot[row]
            ref_count[hole] = ref_count[row]
            ref_weight[hole] = ref_weight[row]
            hole = row
    ref_slot[hole] = -1


@compiled("int64(uint64[::1], int32[::1], uint64)")
def find_holder(holder_hash, holder_slots, key):
    """Row of `key`, or the empty row where it belongs."""
    mask = holder_hash.shape[0] - 1
    row = _home(key, 0, mask)
    while holder_slots[row] != 0 and holder_hash[row] != key:
        row = (row + 1) & mask
    return row


@compiled()
def _delete_holder(holder_hash, holder_slots, holder_bits, hole):
    mask = holder_hash.shape[0] - 1
    row = hole
    while True:
        row = (row + 1) & mask
        if holder_slots[row] == 0:
            break
        home = _home(holder_hash[row], 0, mask)
        if ((row - home) & mask) >= ((row - hole) & mask):
            holder_hash[hole] = holder_hash[row]
            holder_slots[hole] = holder_slots[row]
            for word in range(holder_bits.shape[1]):
                holder_bits[hole, word] = holder_bits[row, word]
            hole = row
    holder_slots[hole] = 0
    holder_bits[hole] = U64(0)


@compiled()
def _hold(holder_hash, holder_slots, holder_bits, key, slot):
    """Set the bit of `slot`; 1 when the hash is new in the table."""
    row = find_holder(holder_hash, holder_slots, key)
    fresh = I64(holder_slots[row] == 0)
    holder_hash[row] = key
    holder_slots[row] += 1
    holder_bits[row, slot >> 6] |= U64(1) << U64(slot & 63)
    return fresh


@compiled()
def _release(holder_hash, holder_slots, holder_bits, key, slot):
    """Clear the bit of `slot`; 1 when the hash left the table."""
    row = find_holder(holder_hash, holder_slots, key)
    holder_bits[row, slot >> 6] &= ~(U64(1) << U64(slot & 63))
    holder_slots[row] -= 1
    if holder_slots[row] != 0:
        return I64(0)
    _delete_holder(holder_hash, holder_slots, holder_bits, row)
    return I64(1)


@compiled()
def _add_weight(totals, fractions, slot, weight, sign):
    """Count one block of `weight` in (sign 1) or out (sign -1) of the slot's active blocks."""
    if weight == 1.0:
        totals[slot, WHOLE_BLOCKS] += sign
        return
    totals[slot, FRACTIONAL_BLOCKS] += sign
    fractions[slot] += weight * sign
    if totals[slot, FRACTIONAL_BLOCKS] == 0:
        fractions[slot] = 0.0  # no rounding error survives the last fractional block


@compiled(
    "int64(uint64[::1], int32[::1], int32[::1], float64[::1], int64[:, ::1], int64, uint64[::1])",
)
def add_blocks(ref_hash, ref_slot, ref_count, ref_weight, totals, slot, hashes):
    """Reference every block of `hashes` once for `slot`.  Returns how many rows are new."""
    new = I64(0)
    for key in hashes:
        row = find_reference(ref_hash, ref_slot, key, slot)
        if ref_slot[row] >= 0:
            ref_count[row] += 1
            continue
        ref_hash[row] = key
        ref_slot[row] = slot
        ref_count[row] = 1
        ref_weight[row] = 1.0
        totals[slot, WHOLE_BLOCKS] += 1
        new += 1
    return new


@compiled(
    "UniTuple(int64, 2)(uint64[::1], int32[::1], int32[::1], float64[::1], int64[:, ::1],"
    " float64[::1], int64, uint64[::1])",
)
def remove_blocks(ref_hash, ref_slot, ref_count, ref_weight, totals, fractions, slot, hashes):
    """Undo one `add_blocks` of the same slot and hashes.

    Returns (rows that are gone, blocks that were not there); the second must be 0.
    """
    gone = I64(0)
    missing = I64(0)
    for key in hashes:
        row = find_reference(ref_hash, ref_slot, key, slot)
        if ref_slot[row] < 0:
            missing += 1
            continue
        ref_count[row] -= 1
        if ref_count[row] == 0:
            _add_weight(totals, fractions, slot, ref_weight[row], -1)
            _delete_reference(ref_hash, ref_slot, ref_count, ref_weight, row)
            gone += 1
    return gone, missing


@compiled(
    "UniTuple(int64, 2)(uint64[::1], int32[::1], int32[::1], float64[::1], uint64[::1], int32[::1],"
    " uint64[:, ::1], int64, uint64[::1])",
)
def add_prefixes(
    ref_hash, ref_slot, ref_count, ref_weight, holder_hash, holder_slots, holder_bits, slot, hashes
):
    """Count every prefix of `hashes` for `slot`.  Returns (new prefix rows, new holder rows)."""
    prefixes = I64(0)
    holders = I64(0)
    prefix = U64(0)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        row = find_reference(ref_hash, ref_slot, prefix, slot)
        if ref_slot[row] >= 0:
            ref_count[row] += 1
            continue
        ref_hash[row] = prefix
        ref_slot[row] = slot
        ref_count[row] = 1
        prefixes += 1
        holders += _hold(holder_hash, holder_slots, holder_bits, prefix, slot)
    return prefixes, holders


@compiled(
    "UniTuple(int64, 3)(uint64[::1], int32[::1], int32[::1], float64[::1], uint64[::1], int32[::1],"
    " uint64[:, ::1], int64, uint64[::1])",
)
def remove_prefixes(
    ref_hash, ref_slot, ref_count, ref_weight, holder_hash, holder_slots, holder_bits, slot, hashes
):
    """Undo one `add_prefixes`.

    Returns (gone prefix rows, gone holder rows, prefixes that were not there); the last must be 0.
    """
    missing = I64(0)
    prefixes = I64(0)
    holders = I64(0)
    prefix = U64(0)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        row = find_reference(ref_hash, ref_slot, prefix, slot)
        if ref_slot[row] < 0:
            missing += 1
            continue
        ref_count[row] -= 1
        if ref_count[row] == 0:
            _delete_reference(ref_hash, ref_slot, ref_count, ref_weight, row)
            prefixes += 1
            holders += _release(holder_hash, holder_slots, holder_bits, prefix, slot)
    return prefixes, holders, missing


@compiled(
    "int64(uint64[::1], int32[::1], int32[::1], float64[::1], int64[:, ::1], float64[::1], int64,"
    " uint64[::1], float64)",
)
def decay_blocks(
    ref_hash, ref_slot, ref_count, ref_weight, totals, fractions, slot, hashes, weight
):
    """Give `weight` to those blocks of `hashes` that are referenced exactly once on the slot.

    Returns how many blocks were not there, which must be 0.
    """
    missing = I64(0)
    for key in hashes:
        row = find_reference(ref_hash, ref_slot, key, slot)
        missing += ref_slot[row] < 0
        if ref_slot[row] >= 0 and ref_count[row] == 1:
            _add_weight(totals, fractions, slot, ref_weight[row], -1)
            ref_weight[row] = weight
            _add_weight(totals, fractions, slot, weight, 1)
    return missing


@compiled("void(int64[:, ::1], float64[::1], int64, float64, int64)")
def add_weights(totals, fractions, slot, weight, blocks):
    """Count `blocks` blocks (negative: out) of one weight, for output blocks."""
    sign = I64(1) if blocks >= 0 else I64(-1)
    for _ in range(abs(blocks)):
        _add_weight(totals, fractions, slot, weight, sign)


@compiled("void(int64[:, ::1], float64[::1], int64[::1])")
def active_blocks(totals, fractions, out):
    """out[slot] = active blocks, rounded half away from zero (weights are never negative)."""
    for slot in range(out.shape[0]):
        whole = totals[slot, WHOLE_BLOCKS]
        if totals[slot, FRACTIONAL_BLOCKS] == 0:
            out[slot] = whole
        else:
            out[slot] = I64(np.floor(whole + fractions[slot] + 0.5 + HALF_TOLERANCE))


@compiled(
    "void(uint64[::1], int32[::1], uint64[:, ::1], uint64[::1],"
    " Array(uint64, 1, 'C', readonly=True), int64[::1])",
)
def leading_runs(holder_hash, holder_slots, holder_bits, alive, hashes, out):
    """out[slot] = longest beginning that `hashes` shares with a live reservation of the slot.

    alive: uint64[n_words], scratch.  Walks the prompt once for all slots.
    """
    alive[:] = ~U64(0)
    out[:] = 0
    n_slots = out.shape[0]
    run = I64(0)
    prefix = U64(0)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        row = find_holder(holder_hash, holder_slots, prefix)
        if holder_slots[row] == 0:
            break
        left = U64(0)
        for word in range(alive.shape[0]):
            gone = alive[word] & ~holder_bits[row, word]
            alive[word] &= holder_bits[row, word]
            left |= alive[word]
            if gone != 0 and run > 0:
                for bit in range(min(64, n_slots - word * 64)):
                    if (gone >> U64(bit)) & U64(1):
                        out[word * 64 + bit] = run
        if left == 0:
            return
        run += 1
    if run > 0:
        for slot in range(n_slots):
            if (alive[slot >> 6] >> U64(slot & 63)) & U64(1):
                out[slot] = run


@compiled(
    "void(uint64[::1], int32[::1], int32[::1], float64[::1], uint64[::1], int32[::1], int32[::1],"
    " float64[::1])",
)
def rehash_references(
    ref_hash, ref_slot, ref_count, ref_weight, to_hash, to_slot, to_count, to_weight
):
    """Copy all rows into the empty, larger `to_` table."""
    for row in range(ref_hash.shape[0]):
        if ref_slot[row] < 0:
            continue
        to = find_reference(to_hash, to_slot, ref_hash[row], I64(ref_slot[row]))
        to_hash[to] = ref_hash[row]
        to_slot[to] = ref_slot[row]
        to_count[to] = ref_count[row]
        to_weight[to] = ref_weight[row]


@compiled(
    "void(uint64[::1], int32[::1], uint64[:, ::1], uint64[::1], int32[::1], uint64[:, ::1])",
)
def rehash_holders(holder_hash, holder_slots, holder_bits, to_hash, to_slots, to_bits):
    """Copy all rows into the empty `to_` table, which is larger or has more words per row."""
    words = holder_bits.shape[1]
    for row in range(holder_hash.shape[0]):
        if holder_slots[row] == 0:
            continue
        to = find_holder(to_hash, to_slots, holder_hash[row])
        to_hash[to] = holder_hash[row]
        to_slots[to] = holder_slots[row]
        for word in range(words):
            to_bits[to, word] = holder_bits[row, word]
