"""Compiled loops of active load, over plain arrays.

Three tables per partition (table_kernels), and what they are about in the words of that file:

  references  (block, slot) -> how often live reservations of the slot reference the block; WEIGHT
  prefixes    (prefix key, slot) -> how many live reservations of the slot begin so.  A prefix key
              stands for a block and all before it in the prompt.
  holders     (prefix key, group) -> how many slots of the group have it; BITS, which of them.
              GROUP_SLOTS slots next to each other are a group, so that rows need not become wider
              when slots come.

The first answers "what is active on this rank", where a block counts once wherever it stands; the
other two "how much of this prompt is live on which rank", walking the prompt once for all ranks of
a group.  Clients' sequence hashes chain the blocks before them, but nothing forces them to.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HASHES
from select_service.core.load.table_kernels import (
    FIELDS,
    GOLDEN,
    MARK,
    TABLE,
    count_of,
    delete,
    enter,
    find,
    locate,
    mix,
)

U64 = np.uint64
I64 = np.int64

REFERENCE_FIELDS = FIELDS + 1
WEIGHT = U64(FIELDS)
"""The bits of a float64."""
PREFIX_FIELDS = FIELDS
GROUP_WORDS = 4
GROUP_SLOTS = 64 * GROUP_WORDS
HOLDER_FIELDS = FIELDS + GROUP_WORDS
BITS = U64(FIELDS)
"""The first of GROUP_WORDS fields."""
_GROUP_SHIFT = U64(8)
_ONE = U64(1)

# Columns of the per-slot totals int64[n_slots, N_TOTALS].
PREFILL_TOKENS, REQUESTS, WHOLE_BLOCKS, FRACTIONAL_BLOCKS = 0, 1, 2, 3
N_TOTALS = 4

HALF_TOLERANCE = 1e-9

TOTALS = "int64[:, ::1]"
FRACTIONS = "float64[::1]"


@compiled()
def next_prefix(prefix, key):
    """Key of the prefix that goes on with the block `key`; the empty prefix is 0."""
    return mix((prefix ^ key) + GOLDEN)


@compiled()
def _weight(references, at):
    return np.uint64(references[at + WEIGHT]).view(np.float64)


@compiled()
def _set_weight(references, at, weight):
    references[at + WEIGHT] = np.float64(weight).view(np.uint64)


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


@compiled(f"int64({TABLE}, {TABLE}, {TOTALS}, int64, {HASHES})")
def add_blocks(references, old, totals, slot, hashes):
    """Reference every block of `hashes` once for `slot`.  Returns how many rows are new."""
    new = I64(0)
    owner = U64(slot)
    for key in hashes:
        at = locate(references, REFERENCE_FIELDS, old, key, owner)
        if references[at + MARK] != 0:
            references[at + MARK] += _ONE
            continue
        enter(references, at, key, owner)
        _set_weight(references, at, 1.0)
        new += 1
    totals[slot, WHOLE_BLOCKS] += new
    return new


@compiled(f"UniTuple(int64, 2)({TABLE}, {TABLE}, {TOTALS}, {FRACTIONS}, int64, {HASHES})")
def remove_blocks(references, old, totals, fractions, slot, hashes):
    """Undo one `add_blocks` of the same slot and hashes.

    Returns (rows that are gone, blocks that were not there); the second must be 0.
    """
    gone = I64(0)
    missing = I64(0)
    for key in hashes:
        at = locate(references, REFERENCE_FIELDS, old, key, U64(slot))
        if references[at + MARK] == 0:
            missing += 1
        elif count_of(references, at) > 1:
            references[at + MARK] -= _ONE
        else:
            _add_weight(totals, fractions, slot, _weight(references, at), -1)
            delete(references, REFERENCE_FIELDS, at)
            gone += 1
    return gone, missing


@compiled()
def _hold(holders, old, key, slot):
    """Set the bit of `slot`; 1 when the row is new."""
    group = slot >> _GROUP_SHIFT
    at = locate(holders, HOLDER_FIELDS, old, key, group)
    fresh = holders[at + MARK] == 0
    if fresh:
        enter(holders, at, key, group)
    else:
        holders[at + MARK] += _ONE
    word = (slot >> U64(6)) & U64(GROUP_WORDS - 1)
    holders[at + BITS + word] |= _ONE << (slot & U64(63))
    return I64(fresh)


@compiled()
def _release(holders, old, key, slot):
    """Clear the bit of `slot`; 1 when the row is gone."""
    at = locate(holders, HOLDER_FIELDS, old, key, slot >> _GROUP_SHIFT)
    if count_of(holders, at) == 1:
        delete(holders, HOLDER_FIELDS, at)
        return I64(1)
    holders[at + MARK] -= _ONE
    word = (slot >> U64(6)) & U64(GROUP_WORDS - 1)
    holders[at + BITS + word] &= ~(_ONE << (slot & U64(63)))
    return I64(0)


@compiled(f"UniTuple(int64, 2)({TABLE}, {TABLE}, {TABLE}, {TABLE}, int64, {HASHES})")
def add_prefixes(prefixes, old, holders, old_holders, slot, hashes):
    """Count every prefix of `hashes` for `slot`.  Returns (new prefix rows, new holder rows)."""
    new = I64(0)
    new_holders = I64(0)
    prefix = U64(0)
    owner = U64(slot)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        at = locate(prefixes, PREFIX_FIELDS, old, prefix, owner)
        if prefixes[at + MARK] != 0:
            prefixes[at + MARK] += _ONE
            continue
        enter(prefixes, at, prefix, owner)
        new += 1
        new_holders += _hold(holders, old_holders, prefix, owner)
    return new, new_holders


@compiled(f"UniTuple(int64, 3)({TABLE}, {TABLE}, {TABLE}, {TABLE}, int64, {HASHES})")
def remove_prefixes(prefixes, old, holders, old_holders, slot, hashes):
    """Undo one `add_prefixes`.

    Returns (gone prefix rows, gone holder rows, prefixes that were not there); the last must be 0.
    """
    missing = I64(0)
    gone = I64(0)
    gone_holders = I64(0)
    prefix = U64(0)
    owner = U64(slot)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        at = locate(prefixes, PREFIX_FIELDS, old, prefix, owner)
        if prefixes[at + MARK] == 0:
            missing += 1
        elif count_of(prefixes, at) > 1:
            prefixes[at + MARK] -= _ONE
        else:
            delete(prefixes, PREFIX_FIELDS, at)
            gone += 1
            gone_holders += _release(holders, old_holders, prefix, owner)
    return gone, gone_holders, missing


@compiled(f"int64({TABLE}, {TABLE}, {TOTALS}, {FRACTIONS}, int64, {HASHES}, float64)")
def decay_blocks(references, old, totals, fractions, slot, hashes, weight):
    """Give `weight` to those blocks of `hashes` that are referenced exactly once on the slot.

    Returns how many blocks were not there, which must be 0.
    """
    missing = I64(0)
    for key in hashes:
        at = locate(references, REFERENCE_FIELDS, old, key, U64(slot))
        if references[at + MARK] == 0:
            missing += 1
        elif count_of(references, at) == 1:
            _add_weight(totals, fractions, slot, _weight(references, at), -1)
            _set_weight(references, at, weight)
            _add_weight(totals, fractions, slot, weight, 1)
    return missing


@compiled(f"void({TOTALS}, {FRACTIONS}, int64, float64, int64)")
def add_weights(totals, fractions, slot, weight, blocks):
    """Count `blocks` blocks (negative: out) of one weight, for output blocks."""
    sign = I64(1) if blocks >= 0 else I64(-1)
    for _ in range(abs(blocks)):
        _add_weight(totals, fractions, slot, weight, sign)


@compiled(f"void({TOTALS}, {FRACTIONS}, int64[::1])")
def active_blocks(totals, fractions, out):
    """out[slot] = active blocks, rounded half away from zero (weights are never negative)."""
    for slot in range(out.shape[0]):
        whole = totals[slot, WHOLE_BLOCKS]
        if totals[slot, FRACTIONAL_BLOCKS] == 0:
            out[slot] = whole
        else:
            out[slot] = I64(np.floor(whole + fractions[slot] + 0.5 + HALF_TOLERANCE))


@compiled()
def _still_alive(alive, holders, at, base, run, out):
    """Keep the slots of a group that a row of `holders` has; the others got as far as `run`.

    Returns whether any is left.
    """
    left = U64(0)
    for word in range(U64(GROUP_WORDS)):
        gone = alive[word] & ~holders[at + BITS + word]
        alive[word] &= holders[at + BITS + word]
        left |= alive[word]
        if gone != 0 and run > 0:
            for bit in range(64):
                if (gone >> U64(bit)) & _ONE:
                    out[base + I64(word) * 64 + bit] = run
    return left != 0


@compiled()
def _leading_runs_of_group(holders, old, group, alive, hashes, out):
    """As `leading_runs`, for the slots of one group."""
    base = group * GROUP_SLOTS
    alive[:] = ~U64(0)
    run = I64(0)
    prefix = U64(0)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        at = find(holders, HOLDER_FIELDS, prefix, U64(group))
        if holders[at + MARK] != 0:
            goes_on = _still_alive(alive, holders, at, base, run, out)
        else:
            at = find(old, HOLDER_FIELDS, prefix, U64(group))
            if old[at + MARK] == 0:
                break
            goes_on = _still_alive(alive, old, at, base, run, out)
        if not goes_on:
            return
        run += 1
    if run > 0:
        for bit in range(min(GROUP_SLOTS, out.shape[0] - base)):
            if (alive[bit >> 6] >> U64(bit & 63)) & _ONE:
                out[base + bit] = run


@compiled(f"void({TABLE}, {TABLE}, uint64[::1], {HASHES}, int64[::1])")
def leading_runs(holders, old, alive, hashes, out):
    """out[slot] = longest beginning that `hashes` shares with a live reservation of the slot.

    alive: uint64[GROUP_WORDS], scratch.  Walks the prompt once for all slots of a group, and as far
    as any of them has it.
    """
    out[:] = 0
    for group in range((out.shape[0] + GROUP_SLOTS - 1) // GROUP_SLOTS):
        _leading_runs_of_group(holders, old, group, alive, hashes, out)
