"""Compiled loops of active load, over the arrays of its header (load_layout).

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
from indexer.index.state_kernels import HEADER, f64_view, i64_view, u64_view
from select_service.core.load.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    HOLDERS,
    N_TOTALS,
    OLD,
    PREFILL_TOKENS,
    PREFIXES,
    REFERENCES,
    REQUESTS,
    RETIRED,
    TOTALS,
    USED,
    WHOLE_BLOCKS,
)
from select_service.core.load.table_kernels import (
    FIELDS,
    GOLDEN,
    MARK,
    count_of,
    delete,
    enter,
    fetch,
    has_room,
    locate,
    mix,
    step,
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

# What `add_load` returns: all is done; no room in the tables, nothing was changed; all is done and
# the owner has memory to give back.
OK, NO_ROOM, CALL_OWNER = range(3)

AHEAD = 8
"""Blocks whose rows are on their way from memory while one is worked on."""
HALF_TOLERANCE = 1e-9


@compiled(forceinline=True)
def next_prefix(prefix, key):
    """Key of the prefix that goes on with the block `key`; the empty prefix is 0."""
    return mix((prefix ^ key) + GOLDEN)


@compiled()
def _weight(references, at):
    return np.uint64(references[at + WEIGHT]).view(np.float64)


@compiled()
def _set_weight(references, at, weight):
    references[at + WEIGHT] = np.float64(weight).view(np.uint64)


@compiled(forceinline=True)
def _add_weights(h, slot, weight, blocks):
    """Count `blocks` blocks (negative: out) of one weight in the slot's active blocks."""
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    if weight == 1.0:
        totals[at + WHOLE_BLOCKS] += blocks
        return
    fractions = f64_view(h, FRACTIONS)
    totals[at + FRACTIONAL_BLOCKS] += blocks
    fractions[slot] += weight * blocks
    if totals[at + FRACTIONAL_BLOCKS] == 0:
        fractions[slot] = 0.0  # no rounding error survives the last fractional block


@compiled(forceinline=True)
def _refer(references, old, key, owner):
    """Reference a block once more; 1 when the row is new."""
    at = locate(references, REFERENCE_FIELDS, old, key, owner)
    if references[at + MARK] != 0:
        references[at + MARK] += _ONE
        return I64(0)
    enter(references, at, key, owner)
    _set_weight(references, at, 1.0)
    return I64(1)


@compiled(forceinline=True)
def _count_down(table, fields, old, key, owner):
    """One less of a row that has more than one.

    Returns where it stands and its count before: 0, there is none; 1, it is the caller's to delete.
    """
    at = locate(table, fields, old, key, owner)
    count = count_of(table, at)
    if count > 1:
        table[at + MARK] -= _ONE
    return at, count


@compiled(forceinline=True)
def _unrefer(h, references, old, key, owner):
    """Undo one `_refer`; returns whether there was one."""
    at, count = _count_down(references, REFERENCE_FIELDS, old, key, owner)
    if count == 1:
        _add_weights(h, I64(owner), _weight(references, at), -1)
        delete(references, REFERENCE_FIELDS, at)
        h[REFERENCES + USED] -= 1
    return count != 0


@compiled(forceinline=True)
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


@compiled(forceinline=True)
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


@compiled(forceinline=True)
def _count_prefix(h, prefixes, old, prefix, owner):
    """Count a prefix for a slot once more."""
    at = locate(prefixes, PREFIX_FIELDS, old, prefix, owner)
    if prefixes[at + MARK] != 0:
        prefixes[at + MARK] += _ONE
        return
    enter(prefixes, at, prefix, owner)
    h[PREFIXES + USED] += 1
    holders, old_holders = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD)
    h[HOLDERS + USED] += _hold(holders, old_holders, prefix, owner)


@compiled(forceinline=True)
def _uncount_prefix(h, prefixes, old, prefix, owner):
    """Undo one `_count_prefix`; returns whether there was one."""
    at, count = _count_down(prefixes, PREFIX_FIELDS, old, prefix, owner)
    if count == 1:
        delete(prefixes, PREFIX_FIELDS, at)
        h[PREFIXES + USED] -= 1
        holders, old_holders = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD)
        h[HOLDERS + USED] -= _release(holders, old_holders, prefix, owner)
    return count != 0


@compiled(forceinline=True)
def _fetch(h, references, prefixes, key, prefix, owner):
    """Let the rows of a block come that is worked on later; returns its prefix."""
    fetch(references, REFERENCE_FIELDS, key, owner)
    prefix = next_prefix(prefix, key)
    fetch(prefixes, PREFIX_FIELDS, prefix, owner)
    fetch(u64_view(h, HOLDERS), HOLDER_FIELDS, prefix, owner >> _GROUP_SHIFT)
    return prefix


@compiled()
def _make_room(h, blocks):
    """Is there room for so many blocks?  If so, one step of growth."""
    fits = (
        has_room(h, REFERENCES, REFERENCE_FIELDS, blocks)
        and has_room(h, PREFIXES, PREFIX_FIELDS, blocks)
        and has_room(h, HOLDERS, HOLDER_FIELDS, blocks)
    )
    if fits:
        step(h, REFERENCES, REFERENCE_FIELDS, blocks)
        step(h, PREFIXES, PREFIX_FIELDS, blocks)
        step(h, HOLDERS, HOLDER_FIELDS, blocks)
    return fits


@compiled()
def add_load(h, slot, hashes, prefill_tokens, nameless):
    """Book one reservation on `slot`: its blocks, prefill tokens and blocks without a name.

    Returns OK, NO_ROOM or CALL_OWNER.
    """
    if not _make_room(h, hashes.shape[0]):
        return NO_ROOM
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD)
    prefixes, old_prefixes = u64_view(h, PREFIXES), u64_view(h, PREFIXES + OLD)
    new, prefix, coming, owner = I64(0), U64(0), U64(0), U64(slot)
    for number in range(-AHEAD, hashes.shape[0]):
        if number + AHEAD < hashes.shape[0]:
            coming = _fetch(h, references, prefixes, hashes[number + AHEAD], coming, owner)
        if number < 0:
            continue
        key = hashes[number]
        new += _refer(references, old, key, owner)
        prefix = next_prefix(prefix, key)
        _count_prefix(h, prefixes, old_prefixes, prefix, owner)
    h[REFERENCES + USED] += new
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    totals[at + WHOLE_BLOCKS] += new + nameless
    totals[at + PREFILL_TOKENS] += prefill_tokens
    totals[at + REQUESTS] += 1
    retired = h[REFERENCES + RETIRED] | h[PREFIXES + RETIRED] | h[HOLDERS + RETIRED]
    return CALL_OWNER if retired else OK


@compiled()
def remove_load(h, slot, hashes, prefill_tokens, whole, faded, fraction):
    """Undo one `add_load` with what is left of its tokens, and its output blocks.

    Returns how many blocks and prefixes were not there, which must be 0.
    """
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD)
    prefixes, old_prefixes = u64_view(h, PREFIXES), u64_view(h, PREFIXES + OLD)
    missing, prefix, coming, owner = I64(0), U64(0), U64(0), U64(slot)
    for number in range(-AHEAD, hashes.shape[0]):
        if number + AHEAD < hashes.shape[0]:
            coming = _fetch(h, references, prefixes, hashes[number + AHEAD], coming, owner)
        if number < 0:
            continue
        key = hashes[number]
        missing += not _unrefer(h, references, old, key, owner)
        prefix = next_prefix(prefix, key)
        missing += not _uncount_prefix(h, prefixes, old_prefixes, prefix, owner)
    _add_weights(h, slot, 1.0, -whole)
    _add_weights(h, slot, fraction, -faded)
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    totals[at + PREFILL_TOKENS] -= prefill_tokens
    totals[at + REQUESTS] -= 1
    return missing


@compiled()
def remove_tokens(h, slot, prefill_tokens):
    """Take booked prefill tokens off the slot."""
    i64_view(h, TOTALS)[slot * N_TOTALS + PREFILL_TOKENS] -= prefill_tokens


@compiled()
def add_output(h, slot):
    """One more output block."""
    i64_view(h, TOTALS)[slot * N_TOTALS + WHOLE_BLOCKS] += 1


@compiled()
def add_decay(h, slot, hashes, whole, faded, fraction, weight):
    """One more output block; then `weight` for all output blocks of the reservation, and for those
    blocks of `hashes` that are referenced exactly once on the slot.

    Returns how many blocks were not there, which must be 0.
    """
    _add_weights(h, slot, 1.0, -whole)
    _add_weights(h, slot, fraction, -faded)
    _add_weights(h, slot, weight, whole + faded + 1)
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD)
    missing = I64(0)
    for number in range(hashes.shape[0]):
        if number + AHEAD < hashes.shape[0]:
            fetch(references, REFERENCE_FIELDS, hashes[number + AHEAD], U64(slot))
        at = locate(references, REFERENCE_FIELDS, old, hashes[number], U64(slot))
        if references[at + MARK] == 0:
            missing += 1
        elif count_of(references, at) == 1:
            _add_weights(h, slot, _weight(references, at), -1)
            _set_weight(references, at, weight)
            _add_weights(h, slot, weight, 1)
    return missing


@compiled()
def active_blocks_of(whole, fractional, fraction):
    """Of the sums of a slot, rounded half away from zero (weights are never negative)."""
    if fractional == 0:
        return float(whole)
    return np.floor(whole + fraction + 0.5 + HALF_TOLERANCE)


@compiled(f"void({HEADER}, int64[::1])")
def active_blocks(h, out):
    """out[slot] = active blocks."""
    totals, fractions = i64_view(h, TOTALS), f64_view(h, FRACTIONS)
    for slot in range(out.shape[0]):
        row = slot * N_TOTALS
        out[slot] = I64(
            active_blocks_of(
                totals[row + WHOLE_BLOCKS], totals[row + FRACTIONAL_BLOCKS], fractions[slot]
            )
        )
