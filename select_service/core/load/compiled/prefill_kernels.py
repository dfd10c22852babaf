"""Account of prefill work: the remaining work of each slot, from the reservations booked there.

Own work is the computation of a prompt on its rank: tokens neither cached nor in computation there.
The unfinished prefills of a slot are a linked list through the ledger's rows, in booking order, so
any prefill ends in O(1).  For the oldest prefill, the index shows the engine's progress
(`progress_kernels`) if the prompt is stored; otherwise a peer sends the progress
(`progress_sync_kernels`).
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import i64_view, u64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.ledger_layout import (
    FIELDS,
    LOAD,
    NEWER_PREFILL,
    OLDER_PREFILL,
    PROMPT,
    PROMPT_BLOCKS,
    PROMPT_CHUNKS,
    PROMPT_CHUNKS_MAX,
    SLOT,
    SYNCED_TOKENS,
    WORK,
)
from select_service.core.load.compiled.load_layout import (
    DONE_TOKENS,
    N_PREFILLS,
    NEVER_SEEN,
    OLDEST,
    PREFILLS,
    PROGRESS_STALE,
    REPORTED_SHARE,
    SEEN_LOST,
    WITH_PROGRESS,
    WORK_BOOKED,
    WORK_LEFT,
    YOUNGEST,
)
from select_service.core.load.compiled.reservation_name_kernels import (
    chunks_for,
    free_chain,
    has_chunks,
    put_hashes,
)

U64 = np.uint64
I64 = np.int64

FOLLOWED_BLOCKS_MAX = 4096
"""Leading prompt blocks used for progress; the rest counts as work until the prefill ends."""
REPORTS_REMEMBERED = 64
"""Approximate number of ended prefills in the share of reported ends."""


@compiled()
def slot_prefills(load, slot):
    """Return the numbers of a slot in PREFILLS, a view."""
    return i64_view(load, PREFILLS)[slot * N_PREFILLS : (slot + 1) * N_PREFILLS]


@compiled()
def _set_bit(words, slot, is_set):
    bit = U64(1) << U64(slot & 63)
    if is_set:
        words[slot >> 6] |= bit
    else:
        words[slot >> 6] &= ~bit


@compiled()
def _start_oldest(load, rows, slot, prefills):
    """Start with a new oldest prefill of the slot, or none; the progress is the number sent by a
    peer.
    """
    at, is_followed, done = prefills[OLDEST] * FIELDS, False, I64(0)
    if at != 0:
        is_followed = rows[at + PROMPT] != 0
        done = I64(0) if is_followed else rows[at + SYNCED_TOKENS]
    prefills[DONE_TOKENS], prefills[SEEN_LOST] = done, NEVER_SEEN
    i64_view(load, WORK_LEFT)[slot] = i64_view(load, WORK_BOOKED)[slot] - done
    _set_bit(u64_view(load, WITH_PROGRESS), slot, is_followed)
    _set_bit(u64_view(load, PROGRESS_STALE), slot, is_followed)


@compiled()
def _store_prompt(h, rows, at, prompt):
    """Store the leading blocks of the prompt, if there is room."""
    kept = prompt[:FOLLOWED_BLOCKS_MAX]
    n_chunks = chunks_for(kept.shape[0])
    has_room = h[PROMPT_CHUNKS] + n_chunks <= h[PROMPT_CHUNKS_MAX] and has_chunks(h, n_chunks)
    if kept.shape[0] == 0 or not has_room:
        rows[at + PROMPT], rows[at + PROMPT_BLOCKS] = 0, 0
        return
    rows[at + PROMPT], rows[at + PROMPT_BLOCKS] = put_hashes(h, kept), kept.shape[0]
    h[PROMPT_CHUNKS] += n_chunks


@compiled()
def _drop_prompt(h, rows, at):
    if rows[at + PROMPT] != 0:
        free_chain(h, rows[at + PROMPT], rows[at + PROMPT_BLOCKS])
        h[PROMPT_CHUNKS] -= chunks_for(rows[at + PROMPT_BLOCKS])
        rows[at + PROMPT] = 0


@compiled()
def begin_prefill(h, rows, row, prompt):
    """Enter a row with own work into the account.

    prompt: uint64[n], block hashes; empty means no progress estimate
    """
    at = row * FIELDS
    load, slot, work = i64_view(rows, at + LOAD), rows[at + SLOT], rows[at + WORK]
    rows[at + PROMPT], rows[at + SYNCED_TOKENS] = 0, 0
    if work == 0:
        return
    # Set with each booking because a load has no other way to its ledger.
    load[layout.LEDGER], load[layout.LEDGER + 1] = h.ctypes.data, h.shape[0]
    _store_prompt(h, rows, at, prompt)
    prefills = slot_prefills(load, slot)
    youngest = prefills[YOUNGEST]
    rows[at + OLDER_PREFILL], rows[at + NEWER_PREFILL] = youngest, 0
    prefills[YOUNGEST] = row
    i64_view(load, WORK_BOOKED)[slot] += work
    i64_view(load, WORK_LEFT)[slot] += work
    if youngest != 0:
        rows[youngest * FIELDS + NEWER_PREFILL] = row
    else:
        prefills[OLDEST] = row
        _start_oldest(load, rows, slot, prefills)


@compiled()
def end_prefill(h, load, rows, row):
    """Remove a row from the account.  Return whether the row was there."""
    at = row * FIELDS
    work, slot = rows[at + WORK], rows[at + SLOT]
    if work == 0:
        return False
    prefills = slot_prefills(load, slot)
    older, newer = rows[at + OLDER_PREFILL], rows[at + NEWER_PREFILL]
    if newer != 0:
        rows[newer * FIELDS + OLDER_PREFILL] = older
    else:
        prefills[YOUNGEST] = older
    i64_view(load, WORK_BOOKED)[slot] -= work
    i64_view(load, WORK_LEFT)[slot] -= work
    if older != 0:
        rows[older * FIELDS + NEWER_PREFILL] = newer
    else:
        prefills[OLDEST] = newer
        _start_oldest(load, rows, slot, prefills)
    rows[at + WORK] = 0
    _drop_prompt(h, rows, at)
    return True


@compiled()
def count_report(load, is_reported):
    """Count an ended prefill in the share of reported ends."""
    share = float_from_bits(load[REPORTED_SHARE])
    share += ((1.0 if is_reported else 0.0) - share) / REPORTS_REMEMBERED
    load[REPORTED_SHARE] = float_to_bits(share)
