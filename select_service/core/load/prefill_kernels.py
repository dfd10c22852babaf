"""The account of work: what each slot still has to prefill, by the reservations booked on it.

Own work is what a prompt computes on its rank: the tokens that are neither cached there nor on
their way.  The unfinished prefills of a slot are a list in the order of booking, through the rows
of the ledger, so that any of them ends in O(1).  Of the oldest the engine's progress can be seen in
the index (`progress_kernels`), if its prompt is kept; else it is what a peer tells
(`told_kernels`).

All of it is done under the lock of the load.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, u64_view
from select_service.core.load import load_layout as layout
from select_service.core.load.bits_kernels import bits_of, float_of
from select_service.core.load.ledger_layout import (
    CACHED,
    FIELDS,
    NEWER_PREFILL,
    OLDER_PREFILL,
    PROMPT,
    PROMPT_BLOCKS,
    PROMPT_CHUNKS,
    PROMPT_CHUNKS_MAX,
    SLOT,
    TOLD,
    WORK,
)
from select_service.core.load.load_layout import (
    BOOKED,
    DONE,
    FOLLOWED,
    LEFT,
    N_PREFILLS,
    NEVER,
    OLDEST,
    PREFILLS,
    REPORTED,
    SEEN_LOST,
    STALE,
    YOUNGEST,
)
from select_service.core.load.name_kernels import chunks_of, free_chain, has_chunks, put_hashes

U64 = np.uint64
I64 = np.int64

FOLLOWED_BLOCKS_MAX = 4096
"""Of a prompt, its first ones; what lies behind counts as work until the prefill ends."""
REPORTS_REMEMBERED = 64
"""About so many ended prefills back go into the share of those that were reported."""


@compiled()
def prefills_of(load, slot):
    """The numbers of a slot in PREFILLS, a view."""
    return i64_view(load, PREFILLS)[slot * N_PREFILLS : (slot + 1) * N_PREFILLS]


@compiled()
def _set_bit(words, slot, is_set):
    bit = U64(1) << U64(slot & 63)
    if is_set:
        words[slot >> 6] |= bit
    else:
        words[slot >> 6] &= ~bit


@compiled()
def _begin_anew(load, rows, slot, prefills):
    """Another prefill is the oldest of the slot, or none: known is what was told of it."""
    at, is_followed, done = prefills[OLDEST] * FIELDS, False, I64(0)
    if at != 0:
        is_followed = rows[at + PROMPT] != 0
        done = I64(0) if is_followed else rows[at + TOLD]
    prefills[DONE], prefills[SEEN_LOST] = done, NEVER
    i64_view(load, LEFT)[slot] = i64_view(load, BOOKED)[slot] - done
    _set_bit(u64_view(load, FOLLOWED), slot, is_followed)
    _set_bit(u64_view(load, STALE), slot, is_followed)


@compiled()
def _keep_prompt(h, rows, at, prompt):
    """Keep as much of it as is followed, if there is room."""
    kept = prompt[:FOLLOWED_BLOCKS_MAX]
    n_chunks = chunks_of(kept.shape[0])
    has_room = h[PROMPT_CHUNKS] + n_chunks <= h[PROMPT_CHUNKS_MAX] and has_chunks(h, n_chunks)
    if kept.shape[0] == 0 or not has_room:
        rows[at + PROMPT], rows[at + PROMPT_BLOCKS] = 0, 0
        return
    rows[at + PROMPT], rows[at + PROMPT_BLOCKS] = put_hashes(h, kept), kept.shape[0]
    h[PROMPT_CHUNKS] += n_chunks


@compiled()
def _forget_prompt(h, rows, at):
    if rows[at + PROMPT] != 0:
        free_chain(h, rows[at + PROMPT], rows[at + PROMPT_BLOCKS])
        h[PROMPT_CHUNKS] -= chunks_of(rows[at + PROMPT_BLOCKS])
        rows[at + PROMPT] = 0


@compiled()
def begin_prefill(h, load, rows, row, work, cached, prompt):
    """Enter a new row into the account.

    work: its own work, in tokens, 0: none;  cached: blocks of the prompt that the rank has
    prompt: uint64[n], its block hashes; none of them: it is not to be followed
    """
    at = row * FIELDS
    slot = rows[at + SLOT]
    rows[at + WORK], rows[at + CACHED], rows[at + PROMPT] = work, cached, 0
    rows[at + TOLD] = 0
    if work == 0:
        return
    load[layout.LEDGER], load[layout.LEDGER + 1] = h.ctypes.data, h.shape[0]
    _keep_prompt(h, rows, at, prompt)
    prefills = prefills_of(load, slot)
    youngest = prefills[YOUNGEST]
    rows[at + OLDER_PREFILL], rows[at + NEWER_PREFILL] = youngest, 0
    prefills[YOUNGEST] = row
    i64_view(load, BOOKED)[slot] += work
    i64_view(load, LEFT)[slot] += work
    if youngest != 0:
        rows[youngest * FIELDS + NEWER_PREFILL] = row
    else:
        prefills[OLDEST] = row
        _begin_anew(load, rows, slot, prefills)


@compiled()
def end_prefill(h, load, rows, row):
    """Take a row out of the account, if it is in there.  Returns whether it was."""
    at = row * FIELDS
    work, slot = rows[at + WORK], rows[at + SLOT]
    if work == 0:
        return False
    prefills = prefills_of(load, slot)
    older, newer = rows[at + OLDER_PREFILL], rows[at + NEWER_PREFILL]
    if newer != 0:
        rows[newer * FIELDS + OLDER_PREFILL] = older
    else:
        prefills[YOUNGEST] = older
    i64_view(load, BOOKED)[slot] -= work
    i64_view(load, LEFT)[slot] -= work
    if older != 0:
        rows[older * FIELDS + NEWER_PREFILL] = newer
    else:
        prefills[OLDEST] = newer
        _begin_anew(load, rows, slot, prefills)
    rows[at + WORK] = 0
    _forget_prompt(h, rows, at)
    return True


@compiled()
def count_report(load, is_reported):
    """A prefill has ended, and the caller has said so or not."""
    share = float_of(load[REPORTED])
    share += ((1.0 if is_reported else 0.0) - share) / REPORTS_REMEMBERED
    load[REPORTED] = bits_of(share)
