"""Compiled entry points for lanes: blocks of cache groups, placed by names that the slot knows."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import HASHES, HEADER, NEED, PARENT, REFUSED, I, i32_view
from indexer.index.holder_kernels import (
    find_in_any_tier,
    find_in_tier,
    hold_child,
    holder_slot,
    holder_tier,
)
from indexer.index.holder_set_kernels import holder_state
from indexer.index.store_kernels import has_room, needs_owner
from indexer.index.tree_kernels import add_child, drop_if_empty, find_child, set_of
from indexer.jit.decorators import compiled

UNKNOWN_NAME = -1


@compiled(f"int64({HEADER}, int64, boolean, uint64, uint64, int64)")
def count_levels(h, slot, is_below, parent, name, levels_max):
    """Return how many blocks the dense block `name` is below a parent; 0 if not below.

    All blocks between must be dense blocks of the slot, too.
    is_below: False counts from the root
    """
    node = find_in_tier(h, slot, I(0), name)
    base = find_in_any_tier(h, slot, I(0), parent) if is_below else I(0)
    if node == 0 or (is_below and base == 0):
        return I(0)
    parents = i32_view(h, PARENT)
    for level in range(1, levels_max + 1):
        node = I(parents[node])
        if node == base:
            return I(level)
        if node <= 0 or holder_state(h, set_of(h, node), slot, I(0)) == 0:
            return I(0)
    return I(0)


@compiled(f"int64({HEADER}, int64, uint64, int64, uint64, uint64)")
def hold_part(h, holder, anchor, levels, local, name):
    """Let the holder hold a part of a block, named `name`, as the child `local` of a node.

    The node is `levels` blocks above the block that the slot names `anchor`.  Returns 1 if held, 0
    if refused or NEED is set, UNKNOWN_NAME if there is no such node.
    """
    h[NEED] = 0
    node = find_in_any_tier(h, holder_slot(holder), holder_tier(holder), anchor)
    if node == 0:
        return I(UNKNOWN_NAME)
    parents = i32_view(h, PARENT)
    for _ in range(levels):
        if node == 0:
            return I(UNKNOWN_NAME)
        node = I(parents[node])
    if needs_owner(h):
        return I(0)
    if not has_room(h):
        h[REFUSED] += 1
        return I(0)
    child = hold_child(h, holder, node, local, name)
    h[REFUSED] += child == 0
    return I(child != 0)


@compiled(f"int64({HEADER}, int64, boolean, uint64, {HASHES}, uint64)")
def hold_descendant(h, holder, is_below, parent, path, name):
    """Let the holder hold the last block of `path` below a parent, and none of the others.

    is_below: False starts at the root.  Returns as `hold_part`; UNKNOWN_NAME for an unknown parent.
    """
    h[NEED] = 0
    node = I(0)
    if is_below:
        node = find_in_any_tier(h, holder_slot(holder), holder_tier(holder), parent)
        if node == 0:
            return I(UNKNOWN_NAME)
    last = path.shape[0] - 1
    for i in range(last):
        if needs_owner(h):
            drop_if_empty(h, node)
            return I(0)
        child = find_child(h, node, path[i])
        if child == 0 and has_room(h):
            child = add_child(h, node, path[i])
        if child == 0:
            drop_if_empty(h, node)
            h[REFUSED] += 1
            return I(0)
        node = child
    if needs_owner(h):
        drop_if_empty(h, node)
        return I(0)
    if not has_room(h):
        drop_if_empty(h, node)
        h[REFUSED] += 1
        return I(0)
    child = hold_child(h, holder, node, path[last], name)
    h[REFUSED] += child == 0
    return I(child != 0)
