"""Reusable prefix of ranks with several cache groups, after a match of their dense group.

`reuse_layout` describes the groups of a rank.  The rule, with b the end of a prefix:

    reusable = the largest b before the last token of the prompt, at a multiple of the alignment,
               at which every group is good; 0 if there is none

    dense    all blocks up to b are held (further, by R_DROP, if the engine drops the last match)
    window   the last NEED blocks before b are held, or all if there are fewer
    state    the block that ends at b is held
    chunked  the blocks from the start of b's chunk to b are held

The walk down the path is noted as runs of nodes with the same holder set.  Per rank, the runs are
tried from the end of the dense match backwards; within a run the largest multiple decides, since a
longer prefix only adds held blocks to a window.  Work is bounded by REUSE_STEPS_MAX; beyond this
limit the dense match stays, marked as a bound.

Source: the coordinator and the managers of vLLM's KV cache, v1/core, 0.23 to 0.33,
https://github.com/vllm-project/vllm
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    BOUNDED,
    HASHES,
    HEADER,
    INSIDE,
    LAYOUT_OF,
    LAYOUTS,
    N_TIERS,
    PROMPT_IDS,
    PROMPT_TOKENS,
    REUSE_BLOCK,
    REUSE_RUNS,
    REUSE_STEPS,
    UNIT_HASHES,
    UNIT_NAMES,
    UNITS_MAX,
    I,
    U,
    i64_view,
)
from indexer.index.reuse_lane_kernels import REUSE_STEPS_MAX, longest_good, reach_inside
from indexer.index.reuse_layout import (
    AT_LEAST,
    AT_MOST,
    BLIND,
    EXACT,
    G_SIZE,
    LANE_FIELDS,
    LAYOUT_FIELDS,
    LAYOUT_LENGTH,
    NEVER,
    R_AHEAD,
    R_BOUND,
    R_DROP,
    R_ENDS_TIER,
    R_HAS_DENSE,
    R_HAS_PARTS,
    R_IS_BY_NAME,
    R_IS_SINGLE,
    R_N_LANES,
    R_REPLAY,
    R_UNITS,
    UNCERTAIN,
    UNSURE,
)
from indexer.index.reuse_walk_kernels import (
    RUN_FIELDS,
    count_runs,
    end_of,
    walk_names,
    walk_runs,
    walk_units,
)
from indexer.jit.decorators import compiled


@compiled()
def _dense_reach(h, runs, layout, slot, blocks, with_loose):
    """Return the positions that the dense group holds, also inside the next block."""
    units = layout[R_UNITS]
    reach = blocks * units
    if layout[R_ENDS_TIER] != 0:
        holder = layout[R_ENDS_TIER], slot
        return reach_inside(h, runs, holder, (reach, units), with_loose)
    return reach


@compiled()
def _reuse_positions(h, runs, layout, slot, blocks, with_loose):
    units = layout[R_UNITS]
    last = count_runs(runs) - 1
    limit = end_of(runs, last) if last >= 0 else I(0)
    if layout[R_HAS_DENSE] != 0:
        limit = _dense_reach(h, runs, layout, slot, blocks, with_loose)
    end = limit
    if h[PROMPT_TOKENS] > 0:
        # The engine computes the last token in any case.
        end = (h[PROMPT_TOKENS] - 1) // (h[REUSE_BLOCK] // units)
    if layout[R_IS_SINGLE] != 0:
        limit = min(limit, end)
    limit = min(limit - layout[R_DROP], end)
    if limit <= 0:
        return I(0)
    return longest_good(h, runs, layout, slot, limit, with_loose)


@compiled()
def _set_certainty(h, layout, slot, is_bound):
    """Record the certainty of the reusable prefix of a slot.

    Hashes of a caller may cover fewer tokens behind a block than the engine's, and miss blocks.
    """
    may_miss = layout[R_AHEAD] > 1 and h[PROMPT_IDS] == 0
    if layout[R_BOUND] == UNSURE or (may_miss and is_bound):
        certainty = I(UNCERTAIN)
    elif may_miss:
        certainty = I(AT_LEAST)
    else:
        certainty = I(AT_MOST) if is_bound else I(EXACT)
    i64_view(h, BOUNDED)[slot] = certainty


@compiled()
def _set_reuse(h, matched, slot, layout, positions):
    """Record the reusable positions of a slot in place of the dense match.

    Returns whether lower tiers make the result an upper bound.
    """
    tokens = positions * (h[REUSE_BLOCK] // layout[R_UNITS])
    # The engine computes so many tokens again: a shorter prefix saves nothing.
    if tokens <= layout[R_REPLAY]:
        tokens = I(0)
    blocks = tokens // h[REUSE_BLOCK]
    dense = matched[slot, 0]
    again = layout[R_REPLAY] if tokens > 0 else I(0)
    i64_view(h, INSIDE)[slot] = tokens - blocks * h[REUSE_BLOCK] - again
    is_bound = False
    for tier in range(N_TIERS):
        # Lower tiers that continue the dense match have no groups that are known: a bound.
        if tier > 0 and matched[slot, tier] > dense:
            is_bound = True
        else:
            matched[slot, tier] = blocks
    return is_bound


@compiled()
def _most_positions(h, layout, dense, n_blocks):
    """Return the longest prefix that a dense match of `dense` blocks leaves possible."""
    units = layout[R_UNITS]
    blocks = dense if layout[R_HAS_DENSE] != 0 else I(n_blocks)
    most = blocks * units + units - 1
    if h[PROMPT_TOKENS] > 0:
        most = min(most, (h[PROMPT_TOKENS] - 1) // (h[REUSE_BLOCK] // units))
    return most


@compiled()
def _bound_slot(h, layout, slot, matched, n_blocks):
    """Record all that the dense match of a slot leaves possible, as a bound."""
    _set_certainty(h, layout, slot, True)
    most = _most_positions(h, layout, I(matched[slot, 0]), n_blocks)
    _set_reuse(h, matched, slot, layout, most)


@compiled()
def _refine_slot(h, runs, layout, slot, matched, n_blocks):
    # Lanes may lack earlier blocks, so only the dense group limits the prefix.
    if layout[R_BOUND] == BLIND:
        _bound_slot(h, layout, slot, matched, n_blocks)
        return
    is_bound = layout[R_BOUND] != NEVER
    dense = I(matched[slot, 0])
    if layout[R_HAS_DENSE] != 0 and dense == 0 and layout[R_UNITS] == 1:
        i64_view(h, INSIDE)[slot] = 0
        _set_certainty(h, layout, slot, is_bound or matched[slot, N_TIERS - 1] > 0)
        return
    is_bound |= layout[R_HAS_PARTS] != 0 and h[PROMPT_IDS] == 0
    inside = UNIT_NAMES if layout[R_IS_BY_NAME] != 0 else UNIT_HASHES
    if layout[R_UNITS] > 1 and h[inside] == 0:
        _bound_slot(h, layout, slot, matched, n_blocks)
        return
    positions = _reuse_positions(h, runs, layout, slot, dense, True)
    if layout[R_UNITS] > 1 and layout[R_IS_BY_NAME] == 0:
        # Loose ends may belong to another prefix: where they decide, the result is a bound.
        sure = _reuse_positions(h, runs, layout, slot, dense, False)
        is_bound |= sure != positions
    is_bound |= h[REUSE_STEPS] > REUSE_STEPS_MAX
    is_bound |= _set_reuse(h, matched, slot, layout, positions)
    _set_certainty(h, layout, slot, is_bound)


@compiled()
def _blocks_behind(layout):
    """Return the number of blocks behind the dense match that may decide, of the longest lane."""
    behind = I(1)
    for k in range(layout[R_N_LANES]):
        size = layout[LAYOUT_FIELDS + k * LANE_FIELDS + G_SIZE]
        behind = max(behind, size // layout[R_UNITS])
    return behind


@compiled()
def _blocks_needed(h, layouts, path, matched, units, is_by_name):
    """Return the blocks of the path that decide for layouts of `units` positions per block.

    0 means that no slot has such a layout.
    """
    layout_of = i64_view(h, LAYOUT_OF)
    last = I(0)
    for slot in range(min(layout_of.shape[0], matched.shape[0])):
        if layout_of[slot] == 0:
            continue
        layout = layouts[(layout_of[slot] - 1) * LAYOUT_LENGTH :]
        if layout[R_UNITS] == units and layout[R_IS_BY_NAME] == is_by_name:
            dense = I(matched[slot, 0]) + _blocks_behind(layout)
            last = max(last, dense if layout[R_HAS_DENSE] != 0 else I(path.shape[0]))
    return min(last, I(path.shape[0]))


@compiled()
def _refine_kind(h, path, matched, units, is_by_name):
    """Refine the slots with layouts of `units` positions per block."""
    layouts, layout_of = i64_view(h, LAYOUTS), i64_view(h, LAYOUT_OF)
    runs = i64_view(h, REUSE_RUNS)
    last = _blocks_needed(h, layouts, path, matched, units, is_by_name)
    if is_by_name != 0:
        n_runs = walk_names(h, last, units, runs)
    elif units > 1:
        n_runs = walk_units(h, path, last, units, runs)
    else:
        n_runs = walk_runs(h, path, last, runs)
    for slot in range(min(layout_of.shape[0], matched.shape[0])):
        if layout_of[slot] != 0:
            at = (layout_of[slot] - 1) * LAYOUT_LENGTH
            layout = layouts[at : at + LAYOUT_LENGTH]
            if layout[R_UNITS] == units and layout[R_IS_BY_NAME] == is_by_name:
                # Without space for the runs nothing is known beyond the dense match.
                if n_runs < 0:
                    _bound_slot(h, layout, slot, matched, path.shape[0])
                else:
                    noted = runs[: n_runs * RUN_FIELDS]
                    _refine_slot(h, noted, layout, slot, matched, path.shape[0])


@compiled()
def refine_layouts(h, path, matched):
    """Replace the dense matches of ranks with several groups by the reusable prefixes.

    matched: int32 [slots, N_TIERS], in: result of a match of `path`; out: rows with a layout
    Sets INSIDE and BOUNDED (the certainty) of these rows.  INSIDE are the tokens behind the last
    whole block, minus the tokens that the engine computes again, which are part of a prompt's cost.
    """
    h[REUSE_STEPS] = 0
    _refine_kind(h, path, matched, I(1), I(0))
    if h[UNITS_MAX] > 1:
        _refine_kind(h, path, matched, h[UNITS_MAX], I(0))
        _refine_kind(h, path, matched, h[UNITS_MAX], I(1))


@compiled(f"void({HEADER}, {HASHES}, int32[:, ::1])")
def refine_matches(h, path, matched):
    """Refine matches as `refine_layouts`: the entry for Python."""
    refine_layouts(h, path, matched)


@compiled()
def replayed_tokens(h, slot):
    """Return the tokens that the engine of a slot computes again behind a reusable prefix."""
    layout_of = i64_view(h, LAYOUT_OF)
    if h[LAYOUTS] == 0 or slot >= layout_of.shape[0] or layout_of[slot] == 0:
        return I(0)
    return i64_view(h, LAYOUTS)[(layout_of[slot] - 1) * LAYOUT_LENGTH + R_REPLAY]


@compiled()
def mark_layout_slots(h, holding):
    """Set the bits of all slots with a layout: a match may have written their rows."""
    layout_of = i64_view(h, LAYOUT_OF)
    for slot in range(min(layout_of.shape[0], holding.shape[0] * 64)):
        if layout_of[slot] != 0:
            holding[slot >> 6] |= U(1) << U(slot & 63)
