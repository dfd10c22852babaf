"""Kernels of active load, over the arrays of the load header (load_layout).

Every partition has three tables (table_kernels), described in the terms of that module:

  references  (block key, slot) -> number of references by live reservations of the slot; WEIGHT
              A block key is the mixed hash of a block, because clients may send 1, 2, 3 as hashes.
  prefixes    (prefix key, slot) -> number of live reservations of the slot with this beginning.
              A prefix key is the mixed name of a prefix: a block with all blocks before, in the
              order of the prompt.
  holders     (prefix key, group) -> number of slots of the group with this prefix; BITS marks
              these slots.  A group is GROUP_SLOTS adjacent slots, so that rows keep their width
              when slots are added.

`references` gives the active blocks of a rank, where a block counts once in any position.
`prefixes` and `holders` give the live prefix of a prompt on each rank, in one walk over the prompt
for all ranks of a group.  Sequence hashes of clients should include the blocks before, but nothing
enforces this, so names of prefixes are computed here.  Clients may choose hashes, and so names, but
not keys, which depend on HASH_SEED of the load: chosen hashes do not crowd a table.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import HEADER, f64_view, i64_view, u64_view
from indexer.jit.decorators import compiled
from indexer.jit.memory_kernels import stack_array
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    HASH_SEED,
    HOLDERS,
    MEMORY_TO_RELEASE,
    N_ENTRIES,
    N_TOTALS,
    OLD_TABLE,
    PREFILL_TOKENS,
    PREFIXES,
    REFERENCES,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.load.compiled.table_kernels import (
    FIELDS,
    GOLDEN,
    MARK,
    count_of,
    delete_row,
    fill_row,
    grow_step,
    has_room,
    locate_row,
    mix_hash,
    prefetch_row,
)

U64 = np.uint64
I64 = np.int64

REFERENCE_FIELDS = FIELDS + 1
WEIGHT = U64(FIELDS)
"""Field with the bits of a float64."""
PREFIX_FIELDS = FIELDS
GROUP_WORDS = 4
GROUP_SLOTS = 64 * GROUP_WORDS
HOLDER_FIELDS = FIELDS + GROUP_WORDS
BITS = U64(FIELDS)
"""First of GROUP_WORDS fields."""
_GROUP_SHIFT = U64(8)
_ONE = U64(1)
_PREFIX_FACTOR = U64(0xD6E8FEB86659FD93)
"""Any odd number of mixed bits, but the multiplier of owners."""

# Results of `add_load`: done; no room in the tables, nothing changed; done, and the
# owner has memory to release.
LOAD_ADDED, TABLES_FULL, MUST_RELEASE_MEMORY = range(3)

PREFETCH_DISTANCE = 8
"""Number of blocks prefetched while an earlier block is processed, a power of two."""
_keys_ahead = stack_array("uint64", 2 * PREFETCH_DISTANCE)
HALF_TOLERANCE = 1e-9


class BlockWeights(NamedTuple):
    """Blocks of a reservation that are not booked by hash.

    whole: number of blocks of weight 1
    decayed: number of output blocks of weight `fraction`
    """

    whole: int
    decayed: int
    fraction: float


@compiled(forceinline=True)
def next_prefix(prefix, block):
    """Return the name of the prefix extended by a block's hash; the empty prefix is 0."""
    return mix_hash((prefix ^ block) + GOLDEN)


@compiled(forceinline=True)
def mix_key(block, seed):
    """Return the key of a block's hash; different hashes have different keys."""
    return mix_hash(block ^ seed)


@compiled(forceinline=True)
def mix_prefix(name, seed):
    """Return the key of a prefix; different names have different keys.

    Names are mixed already.  One product moves those that others chose apart, since homes follow
    from the high bits of keys.
    """
    return (name ^ seed) * _PREFIX_FACTOR


@compiled(forceinline=True)
def key_seed(h):
    return U64(h[HASH_SEED])


@compiled()
def _read_weight(references, at):
    return np.uint64(references[at + WEIGHT]).view(np.float64)


@compiled()
def _set_weight(references, at, weight):
    references[at + WEIGHT] = np.float64(weight).view(np.uint64)


@compiled(forceinline=True)
def _add_weights(h, slot, weight, blocks):
    """Add `blocks` blocks of one weight to the active blocks of a slot; negative removes."""
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    # Whole blocks are counted in integers, which are exact for any number of additions.
    if weight == 1.0:
        totals[at + WHOLE_BLOCKS] += blocks
        return
    fractions = f64_view(h, FRACTIONS)
    totals[at + FRACTIONAL_BLOCKS] += blocks
    fractions[slot] += weight * blocks
    if totals[at + FRACTIONAL_BLOCKS] == 0:
        fractions[slot] = 0.0  # drops rounding errors with the last fractional block


@compiled(forceinline=True)
def _add_reference(references, old, key, owner):
    """Add a reference to a block; return 1 when the row is new."""
    at = locate_row(references, REFERENCE_FIELDS, old, key, owner)
    if references[at + MARK] != 0:
        references[at + MARK] += _ONE
        return I64(0)
    fill_row(references, at, key, owner)
    _set_weight(references, at, 1.0)
    return I64(1)


@compiled(forceinline=True)
def _decrement_row(table, fields, old, key, owner):
    """Decrement a row with a count above 1; return (position, count before).

    Count 0 means that the row does not exist; at count 1 the caller must delete the row.
    """
    at = locate_row(table, fields, old, key, owner)
    count = count_of(table, at)
    if count > 1:
        table[at + MARK] -= _ONE
    return at, count


@compiled(forceinline=True)
def _remove_reference(h, references, old, key, owner):
    """Undo one `_add_reference`; return whether a reference existed."""
    at, count = _decrement_row(references, REFERENCE_FIELDS, old, key, owner)
    if count == 1:
        _add_weights(h, I64(owner), _read_weight(references, at), -1)
        delete_row(references, REFERENCE_FIELDS, at)
        h[REFERENCES + N_ENTRIES] -= 1
    return count != 0


@compiled(forceinline=True)
def _add_holder(holders, old, key, slot):
    """Set the bit of a slot; return 1 when the row is new."""
    group = slot >> _GROUP_SHIFT
    at = locate_row(holders, HOLDER_FIELDS, old, key, group)
    fresh = holders[at + MARK] == 0
    if fresh:
        fill_row(holders, at, key, group)
    else:
        holders[at + MARK] += _ONE
    word = (slot >> U64(6)) & U64(GROUP_WORDS - 1)
    holders[at + BITS + word] |= _ONE << (slot & U64(63))
    return I64(fresh)


@compiled(forceinline=True)
def _remove_holder(holders, old, key, slot):
    """Clear the bit of a slot; return 1 when the row was deleted."""
    at = locate_row(holders, HOLDER_FIELDS, old, key, slot >> _GROUP_SHIFT)
    if count_of(holders, at) == 1:
        delete_row(holders, HOLDER_FIELDS, at)
        return I64(1)
    holders[at + MARK] -= _ONE
    word = (slot >> U64(6)) & U64(GROUP_WORDS - 1)
    holders[at + BITS + word] &= ~(_ONE << (slot & U64(63)))
    return I64(0)


@compiled(forceinline=True)
def _count_prefix(h, prefixes, old, prefix, owner):
    """Increment the count of a prefix for a slot."""
    at = locate_row(prefixes, PREFIX_FIELDS, old, prefix, owner)
    if prefixes[at + MARK] != 0:
        prefixes[at + MARK] += _ONE
        return
    fill_row(prefixes, at, prefix, owner)
    h[PREFIXES + N_ENTRIES] += 1
    holders, old_holders = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD_TABLE)
    h[HOLDERS + N_ENTRIES] += _add_holder(holders, old_holders, prefix, owner)


@compiled(forceinline=True)
def _uncount_prefix(h, prefixes, old, prefix, owner):
    """Undo one `_count_prefix`; return whether the prefix was counted."""
    at, count = _decrement_row(prefixes, PREFIX_FIELDS, old, prefix, owner)
    if count == 1:
        delete_row(prefixes, PREFIX_FIELDS, at)
        h[PREFIXES + N_ENTRIES] -= 1
        holders, old_holders = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD_TABLE)
        h[HOLDERS + N_ENTRIES] -= _remove_holder(holders, old_holders, prefix, owner)
    return count != 0


@compiled(forceinline=True)
def _look_ahead(tables, keys, number, block, name, owner):
    """Prefetch the rows of a block processed later and keep its keys; return its prefix name.

    tables: references, prefixes, holders and the seed of their keys
    name: prefix name of the block before
    keys: block key and prefix key of the next PREFETCH_DISTANCE blocks
    """
    references, prefixes, holders, seed = tables
    name = next_prefix(name, block)
    key, prefix = mix_key(block, seed), mix_prefix(name, seed)
    prefetch_row(references, REFERENCE_FIELDS, key, owner)
    prefetch_row(prefixes, PREFIX_FIELDS, prefix, owner)
    prefetch_row(holders, HOLDER_FIELDS, prefix, owner >> _GROUP_SHIFT)
    at = _place_ahead(number)
    keys[at], keys[at + _ONE] = key, prefix
    return name


@compiled(forceinline=True)
def _place_ahead(number):
    """Return the place of a block's keys among those of the next blocks."""
    return (number & U64(PREFETCH_DISTANCE - 1)) << _ONE


@compiled(forceinline=True)
def _look_at_first(tables, keys, hashes, owner):
    """Run `_look_ahead` for the first blocks; return the prefix name of the last of them."""
    name = U64(0)
    for number in range(min(U64(hashes.shape[0]), U64(PREFETCH_DISTANCE))):
        name = _look_ahead(tables, keys, number, hashes[number], name, owner)
    return name


@compiled(forceinline=True)
def _next_keys(tables, keys, number, hashes, coming, owner):
    """Return (key of a block, its prefix key, prefix name of the last block seen ahead)."""
    at = _place_ahead(number)
    key, prefix = keys[at], keys[at + _ONE]
    ahead = number + U64(PREFETCH_DISTANCE)
    if ahead < U64(hashes.shape[0]):
        coming = _look_ahead(tables, keys, ahead, hashes[ahead], coming, owner)
    return key, prefix, coming


@compiled()
def _make_room(h, blocks):
    """Return whether the tables have room for `blocks` blocks; if so, take one step of growth."""
    fits = (
        has_room(h, REFERENCES, REFERENCE_FIELDS, blocks)
        and has_room(h, PREFIXES, PREFIX_FIELDS, blocks)
        and has_room(h, HOLDERS, HOLDER_FIELDS, blocks)
    )
    if fits:
        grow_step(h, REFERENCES, REFERENCE_FIELDS, blocks)
        grow_step(h, PREFIXES, PREFIX_FIELDS, blocks)
        grow_step(h, HOLDERS, HOLDER_FIELDS, blocks)
    return fits


@compiled()
def add_load(h, slot, hashes, prefill_tokens, nameless):
    """Book one reservation on a slot: hashed blocks, prefill tokens, and blocks without a hash.

    Returns OK, TABLES_FULL or MUST_RELEASE_MEMORY.
    """
    if not _make_room(h, hashes.shape[0]):
        return TABLES_FULL
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD_TABLE)
    prefixes, old_prefixes = u64_view(h, PREFIXES), u64_view(h, PREFIXES + OLD_TABLE)
    new, owner = I64(0), U64(slot)
    tables, keys = (references, prefixes, u64_view(h, HOLDERS), key_seed(h)), _keys_ahead()
    coming = _look_at_first(tables, keys, hashes, owner)
    for number in range(U64(hashes.shape[0])):
        key, prefix, coming = _next_keys(tables, keys, number, hashes, coming, owner)
        new += _add_reference(references, old, key, owner)
        _count_prefix(h, prefixes, old_prefixes, prefix, owner)
    h[REFERENCES + N_ENTRIES] += new
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    totals[at + WHOLE_BLOCKS] += new + nameless
    totals[at + PREFILL_TOKENS] += prefill_tokens
    totals[at + REQUESTS] += 1
    retired = (
        h[REFERENCES + MEMORY_TO_RELEASE]
        | h[PREFIXES + MEMORY_TO_RELEASE]
        | h[HOLDERS + MEMORY_TO_RELEASE]
    )
    return MUST_RELEASE_MEMORY if retired else LOAD_ADDED


@compiled()
def remove_load(h, slot, hashes, prefill_tokens, weights):
    """Undo one `add_load`, with the remaining tokens and the blocks without a hash.

    Returns the number of missing blocks and prefixes, which must be 0.
    """
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD_TABLE)
    prefixes, old_prefixes = u64_view(h, PREFIXES), u64_view(h, PREFIXES + OLD_TABLE)
    missing, owner = I64(0), U64(slot)
    tables, keys = (references, prefixes, u64_view(h, HOLDERS), key_seed(h)), _keys_ahead()
    coming = _look_at_first(tables, keys, hashes, owner)
    for number in range(U64(hashes.shape[0])):
        key, prefix, coming = _next_keys(tables, keys, number, hashes, coming, owner)
        missing += not _remove_reference(h, references, old, key, owner)
        missing += not _uncount_prefix(h, prefixes, old_prefixes, prefix, owner)
    _add_weights(h, slot, 1.0, -weights.whole)
    _add_weights(h, slot, weights.fraction, -weights.decayed)
    totals, at = i64_view(h, TOTALS), slot * N_TOTALS
    totals[at + PREFILL_TOKENS] -= prefill_tokens
    totals[at + REQUESTS] -= 1
    return missing


@compiled()
def remove_tokens(h, slot, prefill_tokens):
    """Subtract booked prefill tokens from the slot."""
    i64_view(h, TOTALS)[slot * N_TOTALS + PREFILL_TOKENS] -= prefill_tokens


@compiled()
def add_output(h, slot):
    """Add an output block."""
    i64_view(h, TOTALS)[slot * N_TOTALS + WHOLE_BLOCKS] += 1


@compiled()
def add_decay(h, slot, hashes, weights, weight):
    """Add an output block, then set `weight` on the reservation's blocks.

    The weight applies to all output blocks, and to blocks of `hashes` referenced exactly once on
    the slot.  Returns the number of missing blocks, which must be 0.
    """
    _add_weights(h, slot, 1.0, -weights.whole)
    _add_weights(h, slot, weights.fraction, -weights.decayed)
    _add_weights(h, slot, weight, weights.whole + weights.decayed + 1)
    references, old = u64_view(h, REFERENCES), u64_view(h, REFERENCES + OLD_TABLE)
    missing, seed = I64(0), key_seed(h)
    n_blocks, ahead = U64(hashes.shape[0]), U64(PREFETCH_DISTANCE)
    for number in range(n_blocks):
        if number + ahead < n_blocks:
            coming = mix_key(hashes[number + ahead], seed)
            prefetch_row(references, REFERENCE_FIELDS, coming, U64(slot))
        key = mix_key(hashes[number], seed)
        at = locate_row(references, REFERENCE_FIELDS, old, key, U64(slot))
        if references[at + MARK] == 0:
            missing += 1
        elif count_of(references, at) == 1:
            _add_weights(h, slot, _read_weight(references, at), -1)
            _set_weight(references, at, weight)
            _add_weights(h, slot, weight, 1)
    return missing


@compiled()
def active_blocks_of(whole, fractional, fraction):
    """Return the active blocks of a slot's sums, rounded half away from zero (weights are
    positive).
    """
    if fractional == 0:
        return float(whole)
    # Sums of decayed weights may end slightly below a half; the tolerance rounds these up as well.
    return np.floor(whole + fraction + 0.5 + HALF_TOLERANCE)


@compiled(f"void({HEADER}, int64[::1])")
def compute_active_blocks(h, out):
    """Write the active blocks of each slot to `out`."""
    totals, fractions = i64_view(h, TOTALS), f64_view(h, FRACTIONS)
    for slot in range(out.shape[0]):
        row = slot * N_TOTALS
        out[slot] = I64(
            active_blocks_of(
                totals[row + WHOLE_BLOCKS], totals[row + FRACTIONAL_BLOCKS], fractions[slot]
            )
        )
