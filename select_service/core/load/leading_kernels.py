"""How much of a prompt is live on which rank, of all slots at once.

Reads the table `holders` of the load kernels.  A slot that has a prefix has all shorter ones, too:
so the slots of a group that have a prefix become fewer from block to block, and where they become
fewer is searched for instead of looking at every block.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import lowest_bit, u64_view
from select_service.core.load.kernels import BITS, GROUP_WORDS, HOLDER_FIELDS, next_prefix
from select_service.core.load.load_layout import HOLDERS, OLD
from select_service.core.load.table_kernels import MARK, fetch, find

U64 = np.uint64
I64 = np.int64

# The slots of a group are a tuple of GROUP_WORDS words.
_NO_SLOTS = (U64(0), U64(0), U64(0), U64(0))
assert len(_NO_SLOTS) == GROUP_WORDS


@compiled(forceinline=True)
def _both(one, other):
    return one[0] & other[0], one[1] & other[1], one[2] & other[2], one[3] & other[3]


@compiled(forceinline=True)
def _bits(table, at):
    at += BITS
    return table[at], table[at + U64(1)], table[at + U64(2)], table[at + U64(3)]


@compiled()
def _holders_of(h, prefix, group):
    """The slots of a group that have a prefix."""
    holders, old = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD)
    at = find(holders, HOLDER_FIELDS, prefix, U64(group))
    if holders[at + MARK] != 0:
        return _bits(holders, at)
    if old.shape[0] != 0:
        at = find(old, HOLDER_FIELDS, prefix, U64(group))
        if old[at + MARK] != 0:
            return _bits(old, at)
    return _NO_SLOTS


@compiled()
def _end_runs(slots, group, run, out, running):
    """The runs of these slots end here."""
    for k in range(GROUP_WORDS):
        rest, word = slots[k], group * GROUP_WORDS + k
        if rest != 0:
            running[word] |= rest
        while rest != 0:
            out[word * 64 + I64(lowest_bit(rest))] = run
            rest &= rest - U64(1)


@compiled()
def _all_have(h, group, slots, prefix):
    return _both(slots, _holders_of(h, prefix, group)) == slots


@compiled()
def _common_run(h, group, alive, run, hint, keys):
    """How far all of these slots go that go as far as `run`: in growing steps, then by halves.

    hint: where it may well be, or 0
    """
    step, beyond = I64(1), I64(keys.shape[0]) + 1
    if run < hint < beyond:
        if _all_have(h, group, alive, keys[hint - 1]):
            run = hint
        else:
            beyond = hint
    while run + step < beyond and _all_have(h, group, alive, keys[run + step - 1]):
        run += step
        step *= 2
    beyond = min(run + step, beyond)
    while beyond - run > 1:
        middle = (run + beyond) >> 1
        if _all_have(h, group, alive, keys[middle - 1]):
            run = middle
        else:
            beyond = middle
    return run


@compiled()
def _runs_of_group(h, group, alive, hint, keys, out, running):
    """alive: the slots that have the first block.  Returns the first run at which one ended."""
    run, end, first = I64(1), I64(keys.shape[0]), I64(0)
    if _all_have(h, group, alive, keys[end - 1]):
        run = end  # the usual case
    while alive != _NO_SLOTS:
        run = _common_run(h, group, alive, run, hint, keys)
        left = _NO_SLOTS
        if run < end:
            left = _both(alive, _holders_of(h, keys[run], group))
        ended = alive[0] ^ left[0], alive[1] ^ left[1], alive[2] ^ left[2], alive[3] ^ left[3]
        _end_runs(ended, group, run, out, running)
        first = first or run
        alive = left
        run += 1
    return first


@compiled()
def _fill_keys(hashes, keys):
    """The keys of as many prefixes as there is room for."""
    end, prefix = min(hashes.shape[0], keys.shape[0]), U64(0)
    for block in range(end):
        prefix = next_prefix(prefix, hashes[block])
        keys[block] = prefix
    return keys[:end]


@compiled()
def clear_runs(out, running):
    """Undo `leading_runs`: out and running become 0."""
    for word in range(running.shape[0]):
        if running[word] != 0:
            running[word] = U64(0)
            out[word * 64 : word * 64 + 64] = 0


@compiled()
def leading_runs(h, hashes, room, out, running):
    """out[slot] = longest beginning that `hashes` shares with a live reservation of the slot.

    h:       header of the load (load_layout)
    room:    uint64[n], scratch for the keys of prefixes; beyond so many blocks no run is followed
    out:     int64[64 * words]
    running: uint64[words], bits of the slots whose `out` is not 0, of the last time and then of
             this time: only what differs is written.
    Groups differ little in where their runs end, so one begins to search where another ended.
    """
    clear_runs(out, running)
    if hashes.shape[0] == 0:
        return
    keys, hint, first = room[:0], I64(0), next_prefix(U64(0), hashes[0])
    groups = (running.shape[0] + GROUP_WORDS - 1) // GROUP_WORDS
    for group in range(groups):
        fetch(u64_view(h, HOLDERS), HOLDER_FIELDS, first, U64(group))
    for group in range(groups):
        alive = _holders_of(h, first, group)
        if alive != _NO_SLOTS:
            if keys.shape[0] == 0:
                keys = _fill_keys(hashes, room)
            hint = _runs_of_group(h, group, alive, hint, keys, out, running)
