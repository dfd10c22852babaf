"""Progress of the oldest unfinished prefill of each slot, from the engine's own KV events.

Engines announce every computed block.  The completed blocks are therefore the prompt's blocks in
the index now, less those present at booking time.  Each slot stores where its walk down the prompt
ended.  The walk continues from there unless the slot has lost blocks, which restarts the walk.
Without any change there is no walk.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import (
    CHANGED,
    LIVE,
    LOST,
    N_TIERS,
    i32_view,
    i64_view,
    live_at,
    lowest_bit,
    u64_view,
)
from indexer.index.held_prefix_kernels import walk_held_prefix
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.ledger_layout import (
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
from select_service.core.load.compiled.load_layout import (
    BLOCKS_THERE,
    DONE_TOKENS,
    LAST_NODE,
    LEDGER,
    NEXT_PROMPT_CHUNK,
    OLDEST,
    PROGRESS_STALE,
    SEEN_CHANGES,
    SEEN_LIVE,
    SEEN_LOST,
    WITH_PROGRESS,
    WORK_BOOKED,
    WORK_LEFT,
)
from select_service.core.load.compiled.prefill_kernels import slot_prefills

U64 = np.uint64
I64 = np.int64

WALKED_BLOCKS_MAX = 1 << 16
"""Block budget of a call for all slots; later calls continue with the remaining slots."""
SLOT_WORK_MIN = 16
"""Minimum cost of a slot, in blocks."""


@compiled()
def _blocks_on_slot(index, slot):
    """Return the number of blocks on a slot, over all tiers."""
    live, blocks = i64_view(index, LIVE), I64(0)
    for tier in range(N_TIERS):
        blocks += live[live_at(live.shape[0], slot, tier)]
    return blocks


@compiled()
def _walk_prompt(index, ledger, slot, prefills, n_blocks):
    """Follow the prompt of `n_blocks` blocks as far as the slot has blocks.  Return the new
    blocks.
    """
    chunks, after = u64_view(ledger, CHUNKS), i32_view(ledger, NEXT_CHUNK)
    there, node, chunk = prefills[BLOCKS_THERE], prefills[LAST_NODE], prefills[NEXT_PROMPT_CHUNK]
    first = there
    while there < n_blocks:
        at = there % CHUNK_WORDS
        end = min(at + n_blocks - there, CHUNK_WORDS)
        part = chunks[chunk * CHUNK_WORDS + at : chunk * CHUNK_WORDS + end]
        node, n = walk_held_prefix(index, slot, node, part)
        there += n
        if n < end - at:
            break
        chunk = I64(after[chunk]) if end == CHUNK_WORDS else chunk
    prefills[BLOCKS_THERE], prefills[LAST_NODE], prefills[NEXT_PROMPT_CHUNK] = there, node, chunk
    return there - first


@compiled()
def _update_slot(index, load, ledger, slot, block_size):
    """Update DONE_TOKENS and WORK_LEFT of a slot.  Return the number of walked blocks."""
    prefills, rows = slot_prefills(load, slot), i64_view(ledger, ROWS)
    lost, live = i64_view(index, LOST)[slot], _blocks_on_slot(index, slot)
    # Equal counters mean that the slot neither lost nor gained a block since the last walk.
    if prefills[SEEN_LOST] == lost and prefills[SEEN_LIVE] == live:
        return I64(0)
    at = prefills[OLDEST] * FIELDS
    # A lost block may be an ancestor of the stored node, which is therefore invalid.
    if prefills[SEEN_LOST] != lost:
        prefills[BLOCKS_THERE], prefills[LAST_NODE], prefills[NEXT_PROMPT_CHUNK] = (
            0,
            0,
            rows[at + PROMPT],
        )
    walked = _walk_prompt(index, ledger, slot, prefills, rows[at + PROMPT_BLOCKS])
    done = block_size * (prefills[BLOCKS_THERE] - rows[at + CACHED])
    prefills[DONE_TOKENS] = min(max(done, 0), rows[at + WORK])
    prefills[SEEN_LOST], prefills[SEEN_LIVE] = lost, live
    i64_view(load, WORK_LEFT)[slot] = i64_view(load, WORK_BOOKED)[slot] - prefills[DONE_TOKENS]
    return walked


@compiled()
def update_progress(index, load, block_size):
    """Update WORK_LEFT of all slots.  The caller holds the locks of index and load.

    Returns the work, in blocks.
    """
    stale = u64_view(load, PROGRESS_STALE)
    if index[CHANGED] != load[SEEN_CHANGES]:
        load[SEEN_CHANGES] = index[CHANGED]
        followed = u64_view(load, WITH_PROGRESS)
        for word in range(stale.shape[0]):
            stale[word] = followed[word]
    budget = I64(WALKED_BLOCKS_MAX)
    for word in range(stale.shape[0]):
        while stale[word] != 0 and budget > 0:
            slot = word * 64 + I64(lowest_bit(stale[word]))
            ledger = i64_view(load, LEDGER)
            budget -= SLOT_WORK_MIN + _update_slot(index, load, ledger, slot, block_size)
            stale[word] &= stale[word] - U64(1)
    return WALKED_BLOCKS_MAX - budget
