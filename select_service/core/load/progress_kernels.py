"""How far the oldest unfinished prefill of each slot is, as the engine's own KV events tell it.

What an engine has computed it announces, so the blocks of the prompt that the index has of the slot
now, less those it had when the prompt was booked, are done.  Of each slot it is kept where the walk
down its prompt ended.  It goes on from there while the slot loses nothing, else it begins anew; and
where nothing has changed there is no walk.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.held_run_kernels import held_run
from indexer.index.state_kernels import (
    CHANGED,
    LIVE,
    LOST,
    N_TIERS,
    i32_view,
    i64_view,
    lowest_bit,
    u64_view,
)
from select_service.core.load.ledger_layout import (
    CACHED,
    CHUNK_WORDS,
    CHUNKS,
    FIELDS,
    NEXT_CHUNK,
    PROMPT,
    PROMPT_BLOCKS,
    ROWS,
    WORK,
)
from select_service.core.load.load_layout import (
    BLOCKS_THERE,
    BOOKED,
    CHUNK,
    DONE,
    FOLLOWED,
    LEDGER,
    LEFT,
    NODE,
    OLDEST,
    SEEN,
    SEEN_LIVE,
    SEEN_LOST,
    STALE,
)
from select_service.core.load.prefill_kernels import prefills_of

U64 = np.uint64
I64 = np.int64

WALKED_BLOCKS_MAX = 1 << 16
"""Of all slots together, in one call; the other slots are looked at by the next ones."""
LOOK_WORK = 16
"""What looking at a slot counts for at least, in blocks."""


@compiled()
def _live_of(index, slot):
    """Blocks that the slot holds, of all tiers."""
    live, blocks = i64_view(index, LIVE), I64(0)
    for tier in range(N_TIERS):
        blocks += live[slot * N_TIERS + tier]
    return blocks


@compiled()
def _walk_on(index, ledger, slot, prefills, n_blocks):
    """Follow the prompt, of so many blocks, as far as the slot has it.  Returns how far it went."""
    chunks, after = u64_view(ledger, CHUNKS), i32_view(ledger, NEXT_CHUNK)
    there, node, chunk = prefills[BLOCKS_THERE], prefills[NODE], prefills[CHUNK]
    first = there
    while there < n_blocks:
        at = there % CHUNK_WORDS
        end = min(at + n_blocks - there, CHUNK_WORDS)
        part = chunks[chunk * CHUNK_WORDS + at : chunk * CHUNK_WORDS + end]
        node, n = held_run(index, slot, node, part)
        there += n
        if n < end - at:
            break
        chunk = I64(after[chunk]) if end == CHUNK_WORDS else chunk
    prefills[BLOCKS_THERE], prefills[NODE], prefills[CHUNK] = there, node, chunk
    return there - first


@compiled()
def _look_at(index, load, ledger, slot, block_size):
    """Bring DONE and LEFT of a slot up to date.  Returns the blocks that were walked."""
    prefills, rows = prefills_of(load, slot), i64_view(ledger, ROWS)
    lost, live = i64_view(index, LOST)[slot], _live_of(index, slot)
    if prefills[SEEN_LOST] == lost and prefills[SEEN_LIVE] == live:
        return I64(0)
    at = prefills[OLDEST] * FIELDS
    if prefills[SEEN_LOST] != lost:
        prefills[BLOCKS_THERE], prefills[NODE], prefills[CHUNK] = 0, 0, rows[at + PROMPT]
    walked = _walk_on(index, ledger, slot, prefills, rows[at + PROMPT_BLOCKS])
    done = block_size * (prefills[BLOCKS_THERE] - rows[at + CACHED])
    prefills[DONE] = min(max(done, 0), rows[at + WORK])
    prefills[SEEN_LOST], prefills[SEEN_LIVE] = lost, live
    i64_view(load, LEFT)[slot] = i64_view(load, BOOKED)[slot] - prefills[DONE]
    return walked


@compiled()
def look_at_progress(index, load, block_size):
    """Bring LEFT of all slots up to date, to be called under the lock of both.

    Returns the work that it took, in blocks.
    """
    stale = u64_view(load, STALE)
    if index[CHANGED] != load[SEEN]:
        load[SEEN] = index[CHANGED]
        followed = u64_view(load, FOLLOWED)
        for word in range(stale.shape[0]):
            stale[word] = followed[word]
    budget = I64(WALKED_BLOCKS_MAX)
    for word in range(stale.shape[0]):
        while stale[word] != 0 and budget > 0:
            slot = word * 64 + I64(lowest_bit(stale[word]))
            ledger = i64_view(load, LEDGER)
            budget -= LOOK_WORK + _look_at(index, load, ledger, slot, block_size)
            stale[word] &= stale[word] - U64(1)
    return WALKED_BLOCKS_MAX - budget
