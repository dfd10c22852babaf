"""Assumptions of a match: blocks that bookings put on a rank, and the floor of a session.

An assumption extends the device prefix of a slot to the longer of both, confirmed and assumed.
From there on the tiers continue with the confirmed blocks, as in a match of their union, so no
block is counted twice:

    device = max(confirmed device prefix, assumed prefix, floor), then confirmed device blocks
    lower  = blocks behind it that the slot holds in the next tiers

Where an engine computes tokens again behind a hit (`R_REPLAY`), the engine does so behind an
assumed hit.

ASSUMED_BLOCKS of a slot are the device blocks by which the assumption extends the confirmed device
prefix; 0 where events confirm at least as much.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import (
    INSIDE,
    LANES,
    LAYOUT_OF,
    LAYOUTS,
    LIVE,
    N_TIERS,
    I,
    U,
    has_live_row,
    i32_view,
    i64_view,
    live_at,
    lowest_bit,
    tiers_view,
    u64_view,
)
from indexer.index.held_prefix_kernels import walk_blocks, walk_tier
from indexer.index.match_kernels import match_prompt_incremental
from indexer.index.reuse_kernels import replayed_tokens
from indexer.jit.decorators import compiled
from select_service.core.placement.plan_layout import (
    ASSUMED_BLOCKS,
    ASSUMED_HOLDING,
    ASSUMED_INDEX,
    ASSUMED_MATCHED,
    ASSUMES,
    BLOCK_SIZE,
    FLOOR_SLOT,
    FLOOR_TOKENS,
    HAS_ASSUMED_INDEX,
    HAS_ASSUMED_ROWS,
    HAS_FLOOR,
    HOLDING,
    INDEX,
    MATCHED,
    REQUEST_ISL_TOKENS,
)

WALKED_BLOCKS_MAX = 1 << 15
"""Blocks that a match walks to continue slots in their lower tiers, about 5 ns each.  Beyond it
the rest of the slots keeps the longer of both prefixes, which is never too long.
"""


class BlockPosition(NamedTuple):
    """Node of the confirmed index at a depth of the prompt; node 0 behind the end of the tree."""

    node: int
    depth: int


@compiled()
def held_columns(plan):
    """Return LIVE of the confirmed and of the assumed index, else empty, and the lanes."""
    confirmed, assumed = i64_view(plan, INDEX), i64_view(plan, ASSUMED_INDEX)
    live, lanes = i64_view(confirmed, LIVE), confirmed[LANES]
    if plan[ASSUMES] & HAS_ASSUMED_INDEX == 0:
        return live, live[:0], lanes
    return live, i64_view(assumed, LIVE), lanes


@compiled(forceinline=True)
def held_blocks(columns, slot):
    """Return the device blocks that a slot holds by events, or by assumption if these are more.

    Blocks of all cache groups count, because the groups of an engine share its memory.
    """
    confirmed, assumed, lanes = columns
    found = I(0)
    if has_live_row(confirmed, slot):
        found = confirmed[slot]
        for lane in range(N_TIERS, N_TIERS + lanes):
            found += confirmed[live_at(confirmed.shape[0], slot, lane)]
    return max(found, assumed[slot]) if has_live_row(assumed, slot) else found


@compiled()
def set_session_floor(plan, slot, tokens):
    """Let the next match assume that a slot holds at least `tokens` leading tokens."""
    plan[FLOOR_SLOT], plan[FLOOR_TOKENS] = slot, tokens
    plan[ASSUMES] |= HAS_FLOOR


@compiled()
def _clear_assumed(plan):
    """Clear the rows that the last match wrote."""
    holding, blocks = u64_view(plan, ASSUMED_HOLDING), i32_view(plan, ASSUMED_BLOCKS)
    matched = tiers_view(plan, ASSUMED_MATCHED)
    for word in range(holding.shape[0]):
        if holding[word] != 0:
            blocks[word * 64 : word * 64 + 64] = 0
            matched[word * 64 : word * 64 + 64] = 0
            holding[word] = U(0)


@compiled()
def _apply_floor(plan):
    """Extend the assumed prefix of the floor's slot, within the prompt."""
    matched, slot = tiers_view(plan, ASSUMED_MATCHED), plan[FLOOR_SLOT]
    tokens = min(plan[FLOOR_TOKENS], plan[REQUEST_ISL_TOKENS])
    blocks = tokens // plan[BLOCK_SIZE]
    plan[FLOOR_TOKENS] = 0
    if 0 <= slot < matched.shape[0] and blocks > matched[slot, 0]:
        matched[slot, 0] = blocks
        u64_view(plan, ASSUMED_HOLDING)[slot >> 6] |= U(1) << U(slot & 63)


@compiled()
def _has_confirmed_blocks(index, slot):
    """Return whether the slot has blocks with a continuation that follows from the tree alone."""
    if index[LAYOUTS] != 0 and i64_view(index, LAYOUT_OF)[slot] != 0:
        return False
    live, some = i64_view(index, LIVE), I(0)
    if not has_live_row(live, slot):
        return False
    for tier in range(N_TIERS):
        some += live[live_at(live.shape[0], slot, tier)]
    return some != 0


@compiled()
def _continue_tiers(index, path, slot, row, position):
    """Continue the match of a slot behind its assumed prefix; `row` gets the ends of the tiers."""
    node, depth = position
    for tier in range(N_TIERS):
        if node != 0:
            node, more = walk_tier(index, slot, tier, node, path[depth:])
            depth += more
        row[tier] = max(I(row[tier]), depth)


@compiled()
def _extend_slot(plan, path, slot, position, walked):
    """Extend one slot; return the position and the walked blocks, for the next slot."""
    row, assumed = tiers_view(plan, MATCHED)[slot], tiers_view(plan, ASSUMED_MATCHED)[slot, 0]
    index = i64_view(plan, INDEX)
    replayed = replayed_tokens(index, slot)
    # A reusable prefix of not more tokens than the engine computes again saves nothing.
    if assumed <= row[0] or assumed * plan[BLOCK_SIZE] <= replayed:
        return position, walked
    i32_view(plan, ASSUMED_BLOCKS)[slot] = assumed - row[0]
    u64_view(plan, HOLDING)[slot >> 6] |= U(1) << U(slot & 63)
    inside = i64_view(index, INSIDE)
    if slot < inside.shape[0]:
        # The tokens behind the end of the confirmed prefix are part of the assumed one.
        inside[slot] = -replayed
    may_continue = assumed < path.shape[0] and walked < WALKED_BLOCKS_MAX
    if may_continue and _has_confirmed_blocks(index, slot):
        if position.depth > assumed or position.node == 0:
            position = BlockPosition(I(0), I(0))
        node, more = walk_blocks(index, position.node, path[position.depth : assumed])
        walked += more + path.shape[0] - assumed
        position = BlockPosition(node, position.depth + more)
        _continue_tiers(index, path, slot, row, position)
    for tier in range(N_TIERS):
        row[tier] = max(row[tier], np.int32(assumed))
    return position, walked


@compiled()
def apply_assumptions(plan, path):
    """Extend MATCHED by what is assumed of each slot; fill ASSUMED_BLOCKS.

    Called after a match of the confirmed blocks, with the index locked, only where ASSUMES is not
    0.  O(blocks + slots)
    """
    _clear_assumed(plan)
    assumes = plan[ASSUMES]
    matched, holding = tiers_view(plan, ASSUMED_MATCHED), u64_view(plan, ASSUMED_HOLDING)
    plan[ASSUMES] = assumes & HAS_ASSUMED_INDEX
    if assumes & HAS_ASSUMED_INDEX:
        match_prompt_incremental(i64_view(plan, ASSUMED_INDEX), path, matched, holding)
    if assumes & HAS_FLOOR:
        _apply_floor(plan)
    position, walked = BlockPosition(I(0), I(0)), I(0)
    for word in range(holding.shape[0]):
        rest = holding[word]
        if rest != 0:
            plan[ASSUMES] |= HAS_ASSUMED_ROWS
        while rest:
            slot = word * 64 + I(lowest_bit(rest))
            position, walked = _extend_slot(plan, path, slot, position, walked)
            rest &= rest - U(1)


@compiled()
def assumed_blocks_of(plan, slot):
    """Return the device blocks of the last match that are only assumed on a slot."""
    if plan[ASSUMES] == 0:
        return I(0)
    return I(i32_view(plan, ASSUMED_BLOCKS)[slot])
