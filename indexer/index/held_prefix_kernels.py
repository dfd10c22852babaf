"""Length of a prompt's prefix in a slot: a walk that can be continued."""

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
    SET_WORDS,
    WORDS,
    I,
    U,
    u32_view,
    u64_view,
)
from indexer.index.match_kernels import matching_run_length
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled


@compiled()
def _has_slot(h, set_id, slot):
    """Return whether a set has the slot in any tier."""
    words, bits = h[WORDS], u64_view(h, BITS)
    row, some = set_id * h[SET_WORDS] + (slot >> 6), U(0)
    for tier in range(N_TIERS):
        some |= bits[row + tier * words]
    return (some >> U(slot & 63)) & U(1) != 0


@compiled()
def walk_held_prefix(h, slot, node, path):
    """Return (last node, count) of the leading blocks of `path` below `node` that the slot holds.

    A block counts in any tier.
    node: 0, the root, or a node that the slot holds;  path: uint64[n], content hashes.  O(n)
    """
    used = h[NODES_USED]
    locals_, marks = u64_view(h, LOCAL)[:used], u32_view(h, MARK)[:used]
    known, n = set_of(h, node) if node != 0 else I(-1), I(0)
    while n < path.shape[0]:
        child = find_child(h, node, path[n])
        if child == 0:
            break
        set_id = set_of(h, child)
        # Chains mostly share a holder set, so the bits are read only where the set changes.
        if set_id != known and not _has_slot(h, set_id, slot):
            break
        known, node = set_id, child
        mark = np.uint32(set_id) | IMPLICIT
        run = matching_run_length(locals_[node + 1 :], marks[node + 1 :], path[n + 1 :], mark)
        node += run
        n += 1 + run
    return node, n


@compiled()
def walk_blocks(h, node, path):
    """Return (last node, count) of the leading blocks of `path` below `node` that any slot holds.

    The node is 0 if none is there and `path` is not empty.  O(n)
    """
    n = I(0)
    while n < path.shape[0]:
        child = find_child(h, node, path[n])
        if child == 0:
            return I(0), n
        node = child
        n += 1
    return I(node), n


@compiled()
def walk_tier(h, slot, tier, node, path):
    """Return (last node, count) of the leading blocks of `path` below `node` that the slot holds
    in a tier.  O(n)
    """
    used, words = h[NODES_USED], h[WORDS]
    locals_, marks = u64_view(h, LOCAL)[:used], u32_view(h, MARK)[:used]
    bits, n = u64_view(h, BITS), I(0)
    while n < path.shape[0]:
        child = find_child(h, node, path[n])
        if child == 0:
            break
        set_id = set_of(h, child)
        plane = bits[set_id * h[SET_WORDS] + tier * words + (slot >> 6)]
        if (plane >> U(slot & 63)) & U(1) == 0:
            break
        node = child
        mark = np.uint32(set_id) | IMPLICIT
        run = matching_run_length(locals_[node + 1 :], marks[node + 1 :], path[n + 1 :], mark)
        node += run
        n += 1 + run
    return I(node), n


@compiled(f"int64({HEADER}, int64, int64, {HASHES})")
def count_held_blocks(h, slot, tier, path):
    """Return the leading blocks of `path` that the slot holds in a tier.  O(n)"""
    return walk_tier(h, slot, tier, I(0), path)[1]
