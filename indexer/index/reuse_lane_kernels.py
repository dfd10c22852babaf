"""Ends at which the cache groups of a rank are good, along the runs of a walked path.

`reuse_kernels` has the rule for each kind of group, `reuse_walk_kernels` the runs.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.hashing.xxh3_kernels import derive_secret, hash_window, secret_buffer
from indexer.index.header_kernels import (
    BITS,
    LANES,
    N_TIERS,
    PROMPT_IDS,
    REUSE_BLOCK,
    REUSE_STEPS,
    SET_WORDS,
    WORDS,
    I,
    U,
    held_plane,
    u32_view,
    u64_view,
)
from indexer.index.reuse_keys import PART_SEED
from indexer.index.reuse_layout import (
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
    R_ALIGN,
    R_N_LANES,
    STATE,
    WINDOW,
)
from indexer.index.reuse_walk_kernels import (
    RUN_FIELDS,
    RUN_LOOSE_SET,
    RUN_SET,
    begin_of,
    count_runs,
    end_of,
    node_at,
    run_of,
)
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled

REUSE_STEPS_MAX = 1 << 16
"""Limit of runs that a match examines for all ranks, about 5 ns each."""


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
def _streak(h, runs, i, position, holder, need):
    """Return the held positions that end at `position` in run i without a gap, up to `need`.

    holder: tier and slot
    """
    count, end = I(0), position
    while i >= 0 and count < need and _run_has(h, runs, i, holder[0], holder[1], True):
        begin = begin_of(runs, i)
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
        i = run_of(runs, i, b - k * size)
        h[REUSE_STEPS] += 1
        if not _run_has(h, runs, i, lane[G_TIER], slot, True):
            return False
    return True


@compiled()
def _part_set(h, runs, i, position, length):
    """Return the holder set of the first `length` tokens of the block at a position of run i.

    Such a part is a child of the block before, by content.
    """
    parent = I(0)
    if position > 1:
        j = run_of(runs, i, position - 1)
        parent = node_at(runs, j, position - 1)
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
        i = run_of(runs, i, position)
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
    while i < count_runs(runs) and end_of(runs, i) < behind:
        i += 1
    return i < count_runs(runs) and _run_has(h, runs, i, lane[G_TIER], slot, True)


@compiled()
def _try_window(h, runs, i, b, lane, slot):
    if lane[G_PARTS] != 0:
        return b if _has_parts(h, runs, i, b, lane, slot) else b - 1
    if lane[G_SIZE] > 1:
        if _has_blocks(h, runs, i, b, lane, slot):
            return b if _holds_behind(h, runs, i, b, lane, slot) else b - 1
        return b - 1
    need = min(b, lane[G_NEED])
    held = _streak(h, runs, i, b, (lane[G_TIER], slot), need)
    if held < need:
        # The gap is even closer to the end of shorter prefixes behind the gap.
        return begin_of(runs, run_of(runs, i, b - held))
    return b if _holds_behind(h, runs, i, b, lane, slot) else b - 1


@compiled()
def _try_chunk(h, runs, i, b, lane, slot):
    start = b // lane[G_NEED] * lane[G_NEED]
    held = _streak(h, runs, i, b, (lane[G_TIER], slot), b - start)
    # Other prefixes behind the gap lack the same blocks, as long as they need this chunk.
    return b if held == b - start else max(start, begin_of(runs, run_of(runs, i, b - held)))


@compiled()
def _try_lane(h, runs, place, lane, slot, with_loose):
    """Return b if the lane is good at b; else the next position to try.

    place: (i, b), the position b of run i
    """
    (i, b), kind = place, lane[G_KIND]
    h[REUSE_STEPS] += 1
    if kind == STATE:
        good = _run_has(h, runs, i, lane[G_TIER], slot, with_loose)
        return b if good else begin_of(runs, i)
    if kind == WINDOW:
        return _try_window(h, runs, i, b, lane, slot)
    if kind == CHUNKED:
        return _try_chunk(h, runs, i, b, lane, slot)
    return b  # DENSE has limited b before, UNKNOWN limits nothing


@compiled()
def reach_inside(h, runs, holder, block, with_loose):
    """Return the furthest position inside the block behind a reach that a tier of a slot holds.

    holder: tier and slot
    block: reach in whole blocks, and size of a block; the reach is returned where nothing is held
    """
    reach, size = block
    j = count_runs(runs) - 1
    while j >= 0 and end_of(runs, j) > reach:
        inside = min(end_of(runs, j), reach + size - 1)
        is_inside = inside > max(reach, begin_of(runs, j))
        if is_inside and _run_has(h, runs, j, holder[0], holder[1], with_loose):
            return inside
        j -= 1
    return reach


@compiled()
def _lane_reach(h, runs, layout, lane, slot, with_loose):
    """Return the positions that a further dense group holds, also inside the next block."""
    reach, size, j, n_runs = I(0), lane[G_SIZE], I(0), count_runs(runs)
    while j < n_runs and _run_has(h, runs, j, lane[G_TIER], slot, True) and size == 1:
        reach = end_of(runs, j)
        j += 1
        h[REUSE_STEPS] += 1
    if size == 1:
        return reach
    while True:
        while j < n_runs and end_of(runs, j) < reach + size:
            j += 1
        h[REUSE_STEPS] += 1
        if j >= n_runs or not _run_has(h, runs, j, lane[G_TIER], slot, with_loose):
            break
        reach += size
    if layout[R_ALIGN] < size:
        return reach_inside(h, runs, (lane[G_TIER], slot), (reach, size), with_loose)
    return reach


@compiled()
def longest_good(h, runs, layout, slot, limit, with_loose):
    """Return the longest prefix of at most `limit` positions at which every group is good."""
    lanes = layout[LAYOUT_FIELDS:]
    n_lanes, align = layout[R_N_LANES], layout[R_ALIGN]
    for k in range(n_lanes):
        lane = lanes[k * LANE_FIELDS : (k + 1) * LANE_FIELDS]
        if lane[G_KIND] == DENSE:
            limit = min(limit, _lane_reach(h, runs, layout, lane, slot, with_loose) - lane[G_DROP])
    i = count_runs(runs) - 1
    limit = min(limit, end_of(runs, i)) if i >= 0 else I(0)
    while i >= 0 and begin_of(runs, i) >= limit:
        i -= 1
    b = limit // align * align
    while b > 0:
        # Not examined to the end: the caller marks the result as a bound.
        if h[REUSE_STEPS] > REUSE_STEPS_MAX:
            return b
        i = run_of(runs, i, b)
        lower = b
        for k in range(n_lanes):
            lane = lanes[k * LANE_FIELDS : (k + 1) * LANE_FIELDS]
            lower = _try_lane(h, runs, (i, b), lane, slot, with_loose)
            if lower < b:
                break
        if lower == b:
            return b
        b = lower // align * align
    return I(0)
