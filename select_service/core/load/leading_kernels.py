"""How much of a prompt is live on which rank: one walk down the prompt for each group of slots.

Reads the table `holders` of the load kernels.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HASHES, HEADER, lowest_bit, u64_view
from select_service.core.load.kernels import (
    BITS,
    GROUP_WORDS,
    HOLDER_FIELDS,
    next_prefix,
)
from select_service.core.load.load_layout import ALIVE, HOLDERS, OLD
from select_service.core.load.table_kernels import MARK, find

U64 = np.uint64
I64 = np.int64


@compiled()
def _end_runs(slots, word, run, out, running):
    """The run of these slots, bits of a word, ends here."""
    if slots != 0:
        running[word] |= slots
        while slots != 0:
            out[word * 64 + I64(lowest_bit(slots))] = run
            slots &= slots - U64(1)


@compiled()
def _still_alive(alive, holders, at, first_word, run, out, running):
    """Keep the slots of a group that a row of `holders` has; the others got as far as `run`.

    Returns whether any is left.
    """
    left = U64(0)
    for word in range(GROUP_WORDS):
        bits = holders[at + BITS + U64(word)]
        if run > 0:
            _end_runs(alive[word] & ~bits, first_word + word, run, out, running)
        alive[word] &= bits
        left |= alive[word]
    return left != 0


@compiled()
def _runs_of_group(holders, old, group, alive, hashes, out, running):
    """As `leading_runs`, for the slots of one group."""
    first_word = group * GROUP_WORDS
    alive[:] = ~U64(0)
    run, prefix = I64(0), U64(0)
    for key in hashes:
        prefix = next_prefix(prefix, key)
        at = find(holders, HOLDER_FIELDS, prefix, U64(group))
        if holders[at + MARK] != 0:
            goes_on = _still_alive(alive, holders, at, first_word, run, out, running)
        else:
            if old.shape[0] == 0:
                break
            at = find(old, HOLDER_FIELDS, prefix, U64(group))
            if old[at + MARK] == 0:
                break
            goes_on = _still_alive(alive, old, at, first_word, run, out, running)
        if not goes_on:
            return
        run += 1
    if run > 0:
        for word in range(GROUP_WORDS):
            _end_runs(alive[word], first_word + word, run, out, running)


@compiled()
def clear_runs(out, running):
    """Undo `leading_runs`: out and running become 0."""
    for word in range(running.shape[0]):
        slots = running[word]
        running[word] = U64(0)
        while slots != 0:
            out[word * 64 + I64(lowest_bit(slots))] = 0
            slots &= slots - U64(1)


@compiled(f"void({HEADER}, {HASHES}, int64[::1], uint64[::1])")
def leading_runs(h, hashes, out, running):
    """out[slot] = longest beginning that `hashes` shares with a live reservation of the slot.

    h:       header of the load (load_layout)
    running: uint64[n_slots / 64, rounded up], bits of the slots whose `out` is not 0, of the last
             time and then of this time: only what differs is written.
    Walks the prompt once for all slots of a group, and as far as any of them has it.
    """
    holders, old = u64_view(h, HOLDERS), u64_view(h, HOLDERS + OLD)
    clear_runs(out, running)
    for group in range((running.shape[0] + GROUP_WORDS - 1) // GROUP_WORDS):
        _runs_of_group(holders, old, group, u64_view(h, ALIVE), hashes, out, running)
