"""Matching of a prompt: one walk down the tree for all slots."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import (
    BITS,
    HASHES,
    HEADER,
    IMPLICIT,
    LOCAL,
    MARK,
    N_TIERS,
    NODES_USED,
    SCRATCH,
    SET_WORDS,
    WORDS,
    I,
    U,
    lowest_bit,
    u32_view,
    u64_view,
)
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled

# SCRATCH during a match: N_TIERS planes with the slots still matching, by tier; behind these the
# indexes of the plane words with any such slot, in ascending order.


NARROWED_WORDS_MAX = 1 << 19
"""Limit of bitmap words that a match examines where holders change, some 5 ns each.  Slots that
drop out never come near the limit; holders alternating from block to block, with thousands of
slots remaining, would.
"""


@compiled(forceinline=True)
def _start_alive(h, set_id):
    """Start each holder of the first block in the best tier. Return the number of words in use."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    alive = u64_view(h, SCRATCH)
    row = set_id * h[SET_WORDS]
    n_live = I(0)
    for k in range(words):
        taken = U(0)
        for tier in range(N_TIERS):
            plane = bits[row + tier * words + k]
            alive[tier * words + k] = plane & ~taken
            taken |= plane
        if taken != 0:
            alive[N_TIERS * words + n_live] = U(k)
            n_live += 1
    return n_live


@compiled(forceinline=True)
def _record_depth(slots, k, tier, depth, matched):
    """Record `depth` for slots of word k that left `tier`; later tiers overwrite this."""
    while slots:
        slot = k * 64 + I(lowest_bit(slots))
        for later in range(tier, N_TIERS):
            matched[slot, later] = depth
        slots &= slots - U(1)


@compiled(forceinline=True)
def _narrow_word(alive, planes, words, k, depth, matched):
    """Apply `_narrow_alive` to 64 slots. Return whether any is left."""
    some = U(0)
    leaving = U(0)
    for tier in range(N_TIERS):
        own = alive[tier * words + k]
        if own | leaving:
            plane = planes[tier * words + k]
            stay = (own | leaving) & plane
            leaving = (own | leaving) ^ stay
            alive[tier * words + k] = stay
            some |= stay
            _record_depth(own & ~plane, k, tier, depth, matched)
    return some != U(0)


@compiled(forceinline=True)
def _narrow_alive(h, n_live, set_id, depth, matched):
    """Apply a block's holder set: slots stay in a tier, move to a later tier or drop out.

    A tier that a slot leaves is final at `depth`. Returns the number of words with slots left.
    """
    words = h[WORDS]
    planes = u64_view(h, BITS)[set_id * h[SET_WORDS] :]
    alive = u64_view(h, SCRATCH)
    listed = N_TIERS * words
    left = I(0)
    for i in range(n_live):
        k = I(alive[listed + i])
        if _narrow_word(alive, planes, words, k, depth, matched):
            alive[listed + left] = U(k)
            left += 1
    return left


@compiled(forceinline=True)
def _finish_alive(h, n_live, depth, matched):
    """Record `depth` for the slots still alive, at the end of the path or of the holders."""
    words = h[WORDS]
    alive = u64_view(h, SCRATCH)
    for i in range(n_live):
        k = I(alive[N_TIERS * words + i])
        for tier in range(N_TIERS):
            _record_depth(alive[tier * words + k], k, tier, depth, matched)


@compiled(forceinline=True)
def matching_run_length(locals_, marks, path, mark):
    """Return the number of leading nodes on implicit edges that match with the same holder set."""
    limit = min(path.shape[0], locals_.shape[0])
    j = 0
    # Eight nodes per branch: the loop vectorizes and a long prefix costs one test per eight blocks.
    while j + 8 <= limit:
        other = U(0)
        other_mark = np.uint32(0)
        for k in range(8):
            other |= locals_[j + k] ^ path[j + k]
            other_mark |= marks[j + k] ^ mark
        if other != 0 or other_mark != 0:
            break
        j += 8
    while j < limit and locals_[j] == path[j] and marks[j] == mark:
        j += 1
    return j


@compiled(forceinline=True)
def _walk_tree(h, path, matched):
    """Fill the rows of slots that hold the first block; other rows stay as they are.

    Returns the holder set of the first block.
    """
    used = h[NODES_USED]
    locals_ = u64_view(h, LOCAL)[:used]
    marks = u32_view(h, MARK)[:used]
    node = find_child(h, I(0), path[0])
    first = set_id = set_of(h, node)
    n_live = _start_alive(h, set_id)
    depth = 1
    narrowed = I(0)
    while n_live != 0:
        mark = np.uint32(set_id) | IMPLICIT
        # Implicit edges join neighbours, so most of a prompt is compared as two arrays.
        run = matching_run_length(locals_[node + 1 :], marks[node + 1 :], path[depth:], mark)
        node += run
        depth += run
        if depth == path.shape[0]:
            break
        node = find_child(h, node, path[depth])
        if node == 0:
            break
        if set_of(h, node) != set_id:
            set_id = set_of(h, node)
            narrowed += n_live
            if narrowed > NARROWED_WORDS_MAX:
                break
            n_live = _narrow_alive(h, n_live, set_id, depth, matched)
        depth += 1
    _finish_alive(h, n_live, depth, matched)
    return first


@compiled(f"void({HEADER}, {HASHES}, int32[:, ::1])")
def match_prompt(h, path, matched):
    """Compute the matched blocks of every slot, tiers cumulated.

    path:    uint64 [n_blocks], content hashes, first block first
    matched: int32 [n_slots, N_TIERS], out; column t counts the blocks found in tiers 0..t

    A slot is matched in tier 0 as far as possible, from there in tier 1, and so on, never returning
    to an earlier tier. O(path), plus O(slots) where the holders change; after NARROWED_WORDS_MAX of
    such work a match ends there.
    """
    matched[:] = 0
    if path.shape[0] != 0:
        _walk_tree(h, path, matched)


@compiled(forceinline=True)
def _clear_rows(matched, holding):
    """Clear the rows of 64 slots at a time: adjacent in memory."""
    for k in range(holding.shape[0]):
        if holding[k] != 0:
            holding[k] = U(0)
            matched[k * 64 : k * 64 + 64] = 0


@compiled(forceinline=True)
def match_prompt_incremental(h, path, matched, holding):
    """Match as `match_prompt`, in arrays reused between matches: only differences are written.

    matched: int32 [64 * words, N_TIERS]
    holding: uint64 [words], bits of the slots with rows other than 0
    """
    _clear_rows(matched, holding)
    if path.shape[0] == 0:
        return
    words = h[WORDS]
    bits = u64_view(h, BITS)
    row = _walk_tree(h, path, matched) * h[SET_WORDS]
    for k in range(min(words, holding.shape[0])):
        for tier in range(N_TIERS):
            holding[k] |= bits[row + tier * words + k]
