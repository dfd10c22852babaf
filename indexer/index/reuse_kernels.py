"""Reusable prefix of ranks with several cache groups, after a match of their dense group.

`reuse_layout` describes the groups of a rank.  The rule, with b the end of a prefix:

    reusable = the largest b before the last token of the prompt, at a multiple of the alignment,
               at which every group is good; 0 if there is none

    dense    its blocks are held up to b (further, by R_DROP, if the engine drops the last match)
    window   its last NEED blocks before b are held, or all if there are fewer
    state    its block that ends at b is held
    chunked  its blocks from the start of b's chunk to b are held

The walk down the path is noted as runs of nodes with one holder set.  Per rank, the runs are tried
from the end of its dense match backwards; within a run the largest multiple decides, since a longer
prefix only adds held blocks to a window.  Work is bounded by REUSE_STEPS_MAX; beyond it the dense
match stays, marked as a bound.

Source: the coordinator and the managers of vLLM's KV cache, v1/core, 0.23 to 0.33,
https://github.com/vllm-project/vllm
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.hashing.xxh3_kernels import derive_secret, hash_window, secret_buffer
from indexer.index.header_kernels import (
    BITS,
    BOUNDED,
    HASHES,
    HEADER,
    IMPLICIT,
    INSIDE,
    LANES,
    LAYOUT_OF,
    LAYOUTS,
    LOCAL,
    MARK,
    N_TIERS,
    NODES_USED,
    PROMPT_IDS,
    PROMPT_TOKENS,
    REUSE_BLOCK,
    REUSE_RUNS,
    REUSE_STEPS,
    SET_WORDS,
    UNIT_HASHES,
    UNIT_NAMES,
    UNITS_MAX,
    WORDS,
    I,
    U,
    held_plane,
    i64_view,
    mix_bits,
    u32_view,
    u64_view,
)
from indexer.index.match_kernels import matching_run_length
from indexer.index.reuse_keys import NAME_KEY, PART_SEED
from indexer.index.reuse_layout import (
    BLIND,
    CHUNKED,
    DENSE,
    G_AHEAD,
    G_DROP,
    G_KIND,
    G_NEED,
    G_PARTS,
    G_SIZE,
    G_TIER,
    LANE_FIELDS,
    LAYOUT_FIELDS,
    LAYOUT_LENGTH,
    R_ALIGN,
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
    STATE,
    WINDOW,
)
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled

REUSE_STEPS_MAX = 1 << 16
"""Limit of runs that one match examines for all ranks, about 5 ns each."""

# Fields of a run: holder set, last position, node of the first position, and the holder set of ends
# that may belong to this prefix or to another one.
RUN_SET, RUN_END, RUN_NODE, RUN_LOOSE_SET = range(4)
RUN_FIELDS = 4


@compiled(forceinline=True)
def name_key(name):
    """Return the content under which a name inside a block, of unknown place, is a root's child."""
    return mix_bits(U(name) ^ U(NAME_KEY))


@compiled(forceinline=True)
def _count_runs(runs):
    return runs.shape[0] // RUN_FIELDS


@compiled(forceinline=True)
def _begin(runs, j):
    return runs[(j - 1) * RUN_FIELDS + RUN_END] if j > 0 else I(0)


@compiled(forceinline=True)
def _end(runs, j):
    return runs[j * RUN_FIELDS + RUN_END]


@compiled()
def _set_has(h, set_id, tier, slot):
    if tier >= N_TIERS + h[LANES]:
        return False  # the lane has no planes yet, and so no blocks
    word = set_id * h[SET_WORDS] + held_plane(tier) * h[WORDS] + (slot >> 6)
    return u64_view(h, BITS)[word] >> U(slot & 63) & U(1) != U(0)


@compiled(forceinline=True)
def _run_has(h, runs, j, tier, slot, with_loose):
    at = j * RUN_FIELDS
    if _set_has(h, runs[at + RUN_SET], tier, slot):
        return True
    return with_loose and _set_has(h, runs[at + RUN_LOOSE_SET], tier, slot)


@compiled()
def _run_of(runs, j, position):
    """Return the run of a position that is not behind run j."""
    while _begin(runs, j) >= position:
        j -= 1
    return j


@compiled()
def _node_at(runs, j, position):
    """Return the node of a position in run j."""
    return runs[j * RUN_FIELDS + RUN_NODE] + position - _begin(runs, j) - 1


@compiled()
def _streak(h, runs, i, position, tier, slot, need):
    """Return the held positions that end at `position` in run i without a gap, up to `need`."""
    count, end = I(0), position
    while i >= 0 and count < need and _run_has(h, runs, i, tier, slot, True):
        begin = _begin(runs, i)
        count += end - begin
        end = begin
        i -= 1
        h[REUSE_STEPS] += 1
    return min(count, need)


@compiled()
def _has_blocks(h, runs, i, b, lane, slot):
    """Return whether the last NEED blocks, each of several positions, before b are held."""
    size = lane[G_SIZE]
    for k in range(min(b // size, lane[G_NEED])):
        i = _run_of(runs, i, b - k * size)
        h[REUSE_STEPS] += 1
        if not _run_has(h, runs, i, lane[G_TIER], slot, True):
            return False
    return True


@compiled()
def _part_set(h, runs, i, position, length):
    """Return the holder set of the first `length` tokens of the block at a position of run i.

    They are a child of the block before, by their content.
    """
    parent = I(0)
    if position > 1:
        j = _run_of(runs, i, position - 1)
        parent = _node_at(runs, j, position - 1)
    shifted = secret_buffer()
    derive_secret(U(PART_SEED), shifted)
    first = (position - 1) * h[REUSE_BLOCK]
    tokens = u32_view(h, PROMPT_IDS)
    local = hash_window(tokens, U(first), U(length), U(PART_SEED), shifted)
    child = find_child(h, parent, local)
    return set_of(h, child) if child != 0 else I(0)


@compiled()
def _has_parts(h, runs, i, b, lane, slot):
    """Return whether the last NEED parts of blocks before b are held."""
    parts, ahead = lane[G_PARTS], lane[G_AHEAD]
    if u32_view(h, PROMPT_IDS).shape[0] < b * h[REUSE_BLOCK]:
        return True  # without tokens a bound
    for k in range(min(b * parts, lane[G_NEED])):
        position = b - k // parts
        to_end = k % parts
        i = _run_of(runs, i, position)
        h[REUSE_STEPS] += 1
        set_id = runs[i * RUN_FIELDS + RUN_SET]
        if to_end != 0:
            length = h[REUSE_BLOCK] - to_end * (h[REUSE_BLOCK] // parts) + ahead
            set_id = _part_set(h, runs, i, position, length)
        if not _set_has(h, set_id, lane[G_TIER], slot):
            return False
    return True


@compiled()
def _holds_behind(h, runs, i, b, lane, slot):
    """Return whether a lane that drops its last match holds the position behind b."""
    if lane[G_DROP] == 0:
        return True
    behind = b + lane[G_SIZE]
    while i < _count_runs(runs) and _end(runs, i) < behind:
        i += 1
    return i < _count_runs(runs) and _run_has(h, runs, i, lane[G_TIER], slot, True)


@compiled()
def _try_window(h, runs, i, b, lane, slot):
    if lane[G_PARTS] != 0:
        return b if _has_parts(h, runs, i, b, lane, slot) else b - 1
    if lane[G_SIZE] > 1:
        if _has_blocks(h, runs, i, b, lane, slot):
            return b if _holds_behind(h, runs, i, b, lane, slot) else b - 1
        return b - 1
    need = min(b, lane[G_NEED])
    held = _streak(h, runs, i, b, lane[G_TIER], slot, need)
    if held < need:
        # Shorter prefixes that end behind the gap have it even closer.
        return _begin(runs, _run_of(runs, i, b - held))
    return b if _holds_behind(h, runs, i, b, lane, slot) else b - 1


@compiled()
def _try_chunk(h, runs, i, b, lane, slot):
    start = b // lane[G_NEED] * lane[G_NEED]
    held = _streak(h, runs, i, b, lane[G_TIER], slot, b - start)
    # Prefixes that end behind the gap miss it as well, as long as they need this chunk.
    return b if held == b - start else max(start, _begin(runs, _run_of(runs, i, b - held)))


@compiled()
def _try_lane(h, runs, i, b, lane, slot, with_loose):
    """Return b if the lane is good at b, a position of run i; else the next position to try."""
    kind = lane[G_KIND]
    h[REUSE_STEPS] += 1
    if kind == STATE:
        good = _run_has(h, runs, i, lane[G_TIER], slot, with_loose)
        return b if good else _begin(runs, i)
    if kind == WINDOW:
        return _try_window(h, runs, i, b, lane, slot)
    if kind == CHUNKED:
        return _try_chunk(h, runs, i, b, lane, slot)
    return b  # DENSE has limited b before, UNKNOWN limits nothing


@compiled()
def _lane_reach(h, runs, layout, lane, slot, with_loose):
    """Return the positions that a further dense group holds, with those inside the next block."""
    reach, size, j, n_runs = I(0), lane[G_SIZE], I(0), _count_runs(runs)
    while j < n_runs and _run_has(h, runs, j, lane[G_TIER], slot, True) and size == 1:
        reach = _end(runs, j)
        j += 1
        h[REUSE_STEPS] += 1
    if size == 1:
        return reach
    while True:
        while j < n_runs and _end(runs, j) < reach + size:
            j += 1
        h[REUSE_STEPS] += 1
        if j >= n_runs or not _run_has(h, runs, j, lane[G_TIER], slot, True):
            break
        reach += size
    j = n_runs - 1
    while layout[R_ALIGN] < size and j >= 0 and _end(runs, j) > reach:
        inside = min(_end(runs, j), reach + size - 1)
        is_inside = inside > max(reach, _begin(runs, j))
        if is_inside and _run_has(h, runs, j, lane[G_TIER], slot, with_loose):
            return inside
        j -= 1
    return reach


@compiled()
def _longest_good(h, runs, layout, slot, limit, with_loose):
    """Return the longest prefix of at most `limit` positions at which every group is good."""
    lanes = layout[LAYOUT_FIELDS:]
    n_lanes, align = layout[R_N_LANES], layout[R_ALIGN]
    for k in range(n_lanes):
        lane = lanes[k * LANE_FIELDS : (k + 1) * LANE_FIELDS]
        if lane[G_KIND] == DENSE:
            limit = min(limit, _lane_reach(h, runs, layout, lane, slot, with_loose) - lane[G_DROP])
    i = _count_runs(runs) - 1
    limit = min(limit, _end(runs, i)) if i >= 0 else I(0)
    while i >= 0 and _begin(runs, i) >= limit:
        i -= 1
    b = limit // align * align
    while b > 0:
        if h[REUSE_STEPS] > REUSE_STEPS_MAX:
            return b
        i = _run_of(runs, i, b)
        lower = b
        for k in range(n_lanes):
            lane = lanes[k * LANE_FIELDS : (k + 1) * LANE_FIELDS]
            lower = _try_lane(h, runs, i, b, lane, slot, with_loose)
            if lower < b:
                break
        if lower == b:
            return b
        b = lower // align * align
    return I(0)


@compiled()
def _append_run(runs, n_runs, set_id, end, node, loose_set):
    """Append a run; return the number of runs, or -1 if there is no space."""
    at = n_runs * RUN_FIELDS
    if n_runs < 0 or at + RUN_FIELDS > runs.shape[0]:
        return I(-1)
    runs[at + RUN_SET], runs[at + RUN_END] = set_id, end
    runs[at + RUN_NODE], runs[at + RUN_LOOSE_SET] = node, loose_set
    return n_runs + 1


@compiled()
def _walk_runs(h, path, last, runs):
    """Write the runs of the first `last` blocks; return their number, -1 without space."""
    used = h[NODES_USED]
    locals_ = u64_view(h, LOCAL)[:used]
    marks = u32_view(h, MARK)[:used]
    n_runs, depth, node = I(0), I(0), I(0)
    while depth < last and n_runs >= 0:
        node = find_child(h, node, path[depth])
        if node == 0:
            break
        set_id, first = set_of(h, node), node
        depth += 1
        mark = np.uint32(set_id) | IMPLICIT
        more = matching_run_length(locals_[node + 1 :], marks[node + 1 :], path[depth:last], mark)
        node += more
        depth += more
        n_runs = _append_run(runs, n_runs, set_id, depth, first, I(0))
    return n_runs


@compiled()
def _find_name(h, position):
    """Return the holder set of the name of the prompt's prefix at a position."""
    child = find_child(h, I(0), name_key(u64_view(h, UNIT_NAMES)[position - 1]))
    return set_of(h, child) if child != 0 else I(0)


@compiled()
def _find_inside(h, node, first_in_block, position):
    """Return the holder sets (of this prefix, of any with this unit) at a position in a block."""
    local = u64_view(h, UNIT_HASHES)[position - 1]
    child = find_child(h, node, local) if first_in_block else I(0)
    loose = find_child(h, I(0), name_key(local))
    return (
        set_of(h, child) if child != 0 else I(0),
        set_of(h, loose) if loose != 0 else I(0),
    )


@compiled()
def _walk_names(h, last, units, runs):
    """Write the runs of positions by names: of the first `last` blocks and of one behind."""
    n_runs = I(0)
    for position in range(1, min((last + 1) * units, h[UNIT_NAMES + 1] + 1)):
        set_id = _find_name(h, position)
        before = (n_runs - 1) * RUN_FIELDS
        if n_runs > 0 and runs[before + RUN_SET] == set_id:
            runs[before + RUN_END] = position
        else:
            n_runs = _append_run(runs, n_runs, set_id, position, I(0), I(0))
    return n_runs


@compiled()
def _walk_units(h, path, last, units, runs):
    """Write the runs of the first `last` blocks and of the positions inside them and behind."""
    positions = h[UNIT_HASHES + 1] if h[UNIT_HASHES] != 0 else I(0)
    n_runs, node, depth = I(0), I(0), I(0)
    while n_runs >= 0:
        for k in range(1, units):
            position = depth * units + k
            set_id, loose_set = I(0), I(0)
            if position <= positions:
                set_id, loose_set = _find_inside(h, node, k == 1, position)
            elif depth >= last:
                return n_runs
            n_runs = _append_run(runs, n_runs, set_id, position, I(0), loose_set)
        if depth >= last or n_runs < 0:
            break
        node = find_child(h, node, path[depth])
        if node == 0:
            break
        depth += 1
        n_runs = _append_run(runs, n_runs, set_of(h, node), depth * units, node, I(0))
    return n_runs


@compiled()
def _dense_reach(h, runs, layout, slot, blocks, with_loose):
    """Return the positions that the dense group holds, with those inside the next block."""
    units = layout[R_UNITS]
    reach = blocks * units
    j = _count_runs(runs) - 1
    while layout[R_ENDS_TIER] != 0 and j >= 0 and _end(runs, j) > reach:
        inside = min(_end(runs, j), reach + units - 1)
        is_inside = inside > max(reach, _begin(runs, j))
        if is_inside and _run_has(h, runs, j, layout[R_ENDS_TIER], slot, with_loose):
            return inside
        j -= 1
    return reach


@compiled()
def _reuse_positions(h, runs, layout, slot, blocks, with_loose):
    units = layout[R_UNITS]
    last = _count_runs(runs) - 1
    limit = _end(runs, last) if last >= 0 else I(0)
    if layout[R_HAS_DENSE] != 0:
        limit = _dense_reach(h, runs, layout, slot, blocks, with_loose)
    end = limit
    if h[PROMPT_TOKENS] > 0:
        end = (h[PROMPT_TOKENS] - 1) // (h[REUSE_BLOCK] // units)
    if layout[R_IS_SINGLE] != 0:
        limit = min(limit, end)
    limit = min(limit - layout[R_DROP], end)
    if limit <= 0:
        return I(0)
    return _longest_good(h, runs, layout, slot, limit, with_loose)


@compiled()
def _set_reuse(h, matched, slot, layout, positions):
    """Record the reusable positions of a slot in place of its dense match."""
    tokens = positions * (h[REUSE_BLOCK] // layout[R_UNITS])
    if tokens <= layout[R_REPLAY]:
        tokens = I(0)
    blocks = tokens // h[REUSE_BLOCK]
    dense = matched[slot, 0]
    i64_view(h, INSIDE)[slot] = tokens - blocks * h[REUSE_BLOCK]
    for tier in range(N_TIERS):
        # Lower tiers that continue the dense match have no groups that are known: a bound.
        if tier > 0 and matched[slot, tier] > dense:
            i64_view(h, BOUNDED)[slot] = 1
        else:
            matched[slot, tier] = blocks


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
    i64_view(h, BOUNDED)[slot] = 1
    most = _most_positions(h, layout, I(matched[slot, 0]), n_blocks)
    _set_reuse(h, matched, slot, layout, most)


@compiled()
def _refine_slot(h, runs, layout, slot, matched, n_blocks):
    bounded = i64_view(h, BOUNDED)
    if layout[R_BOUND] == BLIND:
        _bound_slot(h, layout, slot, matched, n_blocks)
        return
    bounded[slot] = layout[R_BOUND]
    dense = I(matched[slot, 0])
    if layout[R_HAS_DENSE] != 0 and dense == 0 and layout[R_UNITS] == 1:
        i64_view(h, INSIDE)[slot] = 0
        if matched[slot, N_TIERS - 1] > 0:
            bounded[slot] = 1
        return
    if layout[R_HAS_PARTS] != 0 and h[PROMPT_IDS] == 0:
        bounded[slot] = 1
    inside = UNIT_NAMES if layout[R_IS_BY_NAME] != 0 else UNIT_HASHES
    if layout[R_UNITS] > 1 and h[inside] == 0:
        _bound_slot(h, layout, slot, matched, n_blocks)
        return
    positions = _reuse_positions(h, runs, layout, slot, dense, True)
    if layout[R_UNITS] > 1 and layout[R_IS_BY_NAME] == 0:
        sure = _reuse_positions(h, runs, layout, slot, dense, False)
        if sure != positions:
            bounded[slot] = 1
    if h[REUSE_STEPS] > REUSE_STEPS_MAX:
        bounded[slot] = 1
    _set_reuse(h, matched, slot, layout, positions)


@compiled()
def _blocks_behind(layout):
    """Return the blocks behind the dense match that may decide: those of the longest lane."""
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
        n_runs = _walk_names(h, last, units, runs)
    elif units > 1:
        n_runs = _walk_units(h, path, last, units, runs)
    else:
        n_runs = _walk_runs(h, path, last, runs)
    for slot in range(min(layout_of.shape[0], matched.shape[0])):
        if layout_of[slot] != 0:
            at = (layout_of[slot] - 1) * LAYOUT_LENGTH
            layout = layouts[at : at + LAYOUT_LENGTH]
            if layout[R_UNITS] == units and layout[R_IS_BY_NAME] == is_by_name:
                if n_runs < 0:
                    _bound_slot(h, layout, slot, matched, path.shape[0])
                else:
                    noted = runs[: n_runs * RUN_FIELDS]
                    _refine_slot(h, noted, layout, slot, matched, path.shape[0])


@compiled()
def refine_layouts(h, path, matched):
    """Replace the dense matches of ranks with several groups by what is reusable there.

    matched: int32 [slots, N_TIERS], in: result of a match of `path`; out: rows with a layout
    Sets INSIDE (tokens behind the last whole block) and BOUNDED (1: an upper bound) of these rows.
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
def mark_layout_slots(h, holding):
    """Set the bits of all slots with a layout: a match may have written their rows."""
    layout_of = i64_view(h, LAYOUT_OF)
    for slot in range(min(layout_of.shape[0], holding.shape[0] * 64)):
        if layout_of[slot] != 0:
            holding[slot >> 6] |= U(1) << U(slot & 63)
