"""Live prefix of a prompt on every rank, for all slots at once.

Reads the table `holders` of the load kernels.  A slot with a prefix has all shorter prefixes, too,
so the set of slots only shrinks from block to block.  Galloping search finds the blocks where the
set shrinks instead of reading every block.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import lowest_bit, u64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.active_load_kernels import (
    BITS,
    GROUP_WORDS,
    HOLDER_FIELDS,
    key_seed,
    mix_prefix,
    next_prefix,
)
from select_service.core.load.compiled.load_layout import HOLDERS, OLD_TABLE
from select_service.core.load.compiled.table_kernels import MARK, find_row, prefetch_row

U64 = np.uint64
I64 = np.int64

# A set of slots in a group is a tuple of GROUP_WORDS words.
_NO_SLOTS = (U64(0), U64(0), U64(0), U64(0))
assert len(_NO_SLOTS) == GROUP_WORDS


@compiled(forceinline=True)
def _intersect_groups(one, other):
    return one[0] & other[0], one[1] & other[1], one[2] & other[2], one[3] & other[3]


@compiled(forceinline=True)
def _group_bits(table, at):
    at += BITS
    return table[at], table[at + U64(1)], table[at + U64(2)], table[at + U64(3)]


@compiled()
def _holders_of(h, prefix, group):
    """Return the slots of a group that have a prefix."""
    holders, old = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD_TABLE)
    at = find_row(holders, HOLDER_FIELDS, prefix, U64(group))
    if holders[at + MARK] != 0:
        return _group_bits(holders, at)
    if old.shape[0] != 0:
        at = find_row(old, HOLDER_FIELDS, prefix, U64(group))
        if old[at + MARK] != 0:
            return _group_bits(old, at)
    return _NO_SLOTS


@compiled()
def holds_prefix(h, name, slot):
    """Return whether a live reservation of a slot has the prefix of this name.

    h: header of the load
    """
    word = slot >> 6
    found = _holders_of(h, mix_prefix(name, key_seed(h)), word // GROUP_WORDS)
    return found[word % GROUP_WORDS] >> U64(slot & 63) & U64(1) != U64(0)


@compiled()
def _write_runs(slots, group, run, out, running):
    """Write the run length of slots with a run ending here."""
    for k in range(GROUP_WORDS):
        rest, word = slots[k], group * GROUP_WORDS + k
        if rest != 0:
            running[word] |= rest
        while rest != 0:
            out[word * 64 + I64(lowest_bit(rest))] = run
            rest &= rest - U64(1)


@compiled()
def _have_all_prefix(h, group, slots, prefix):
    return _intersect_groups(slots, _holders_of(h, prefix, group)) == slots


@compiled()
def _common_run(h, group, alive, run, hint, keys):
    """Return the longest run shared by all slots in `alive`, by doubling steps and then bisection.

    run: a run all these slots have
    hint: likely result, or 0
    """
    step, beyond = I64(1), I64(keys.shape[0]) + 1
    # Groups differ little, so one check of the hint usually replaces the search.
    if run < hint < beyond:
        if _have_all_prefix(h, group, alive, keys[hint - 1]):
            run = hint
        else:
            beyond = hint
    while run + step < beyond and _have_all_prefix(h, group, alive, keys[run + step - 1]):
        run += step
        step *= 2
    beyond = min(run + step, beyond)
    while beyond - run > 1:
        middle = (run + beyond) >> 1
        if _have_all_prefix(h, group, alive, keys[middle - 1]):
            run = middle
        else:
            beyond = middle
    return run


@compiled()
def _runs_of_group(h, group, alive, hint, keys, target):
    """Write the runs of a group; return the shortest run.

    alive: slots with the first block
    target: (out, running) of `fill_leading_runs`
    """
    run, end, first = I64(1), I64(keys.shape[0]), I64(0)
    if _have_all_prefix(h, group, alive, keys[end - 1]):
        run = end  # usual case: every slot has the whole prompt
    while alive != _NO_SLOTS:
        run = _common_run(h, group, alive, run, hint, keys)
        left = _NO_SLOTS
        if run < end:
            left = _intersect_groups(alive, _holders_of(h, keys[run], group))
        ended = alive[0] ^ left[0], alive[1] ^ left[1], alive[2] ^ left[2], alive[3] ^ left[3]
        _write_runs(ended, group, run, target[0], target[1])
        first = first or run
        alive = left
        run += 1
    return first


@compiled()
def _fill_keys(hashes, seed, keys):
    """Return the keys of as many prefixes as `keys` has room for."""
    end, name = min(hashes.shape[0], keys.shape[0]), U64(0)
    for block in range(end):
        name = next_prefix(name, hashes[block])
        keys[block] = mix_prefix(name, seed)
    return keys[:end]


@compiled()
def clear_runs(out, running):
    """Undo `fill_leading_runs`: set `out` and `running` to 0."""
    for word in range(running.shape[0]):
        if running[word] != 0:
            running[word] = U64(0)
            out[word * 64 : word * 64 + 64] = 0


@compiled()
def fill_leading_runs(h, hashes, scratch, out, running):
    """Write the longest prefix of `hashes` shared with a live reservation of each slot to `out`.

    h:       header of the load (load_layout)
    scratch: uint64[n], for prefix keys, and the limit of a run in blocks
    out:     int64[64 * words]
    running: uint64[words], bits of the slots with nonzero `out`.  The bits of the last call limit
             the clearing, so the cost follows the number of nonzero slots.
    Runs end at similar blocks in all groups, so each search starts with the previous group's
    result.
    """
    clear_runs(out, running)
    if hashes.shape[0] == 0:
        return
    keys, hint, seed = scratch[:0], I64(0), key_seed(h)
    first = mix_prefix(next_prefix(U64(0), hashes[0]), seed)
    groups = (running.shape[0] + GROUP_WORDS - 1) // GROUP_WORDS
    for group in range(groups):
        prefetch_row(u64_view(h, HOLDERS), HOLDER_FIELDS, first, U64(group))
    for group in range(groups):
        alive = _holders_of(h, first, group)
        if alive != _NO_SLOTS:
            # Keys are computed only when some rank has the first block: most prompts have none.
            if keys.shape[0] == 0:
                keys = _fill_keys(hashes, seed, scratch)
            hint = _runs_of_group(h, group, alive, hint, keys, (out, running))
