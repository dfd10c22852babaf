"""Holders of a node and engine hashes: a block added to or taken from a (slot, tier).

Per (slot, tier) the state is a multiset of engine hashes, each naming a node; the slot holds a node
while any of these hashes names the node. The first holder's hash becomes the node's primary; a slot
that uses the primary once costs only a bit. record_kernels describes the other cases.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import (
    CHANGED,
    ENGINE,
    IMPLICIT,
    KIDS,
    LANES,
    LIVE,
    LOST,
    MARK,
    N_TIERS,
    NAMES,
    NAMES_SHARED,
    RECORDS_OF,
    TIER_BITS,
    TIER_MASK,
    I,
    home_slot,
    i32_view,
    i64_view,
    live_at,
    u32_view,
    u64_view,
)
from indexer.index.holder_set_kernels import (
    ABSENT,
    IRREGULAR,
    REGULAR,
    holder_state,
    move_reference,
    set_with_change,
)
from indexer.index.overflow_record_kernels import (
    ALIAS,
    add_record,
    anchor_aliases,
    anchor_copies,
    delete_record,
    find_record,
    has_record_room,
    record_count,
    record_meta,
    record_node,
    set_anchor,
    set_record_count,
)
from indexer.index.snapshot_kernels import copy_node_on_write
from indexer.index.tree_kernels import (
    add_child,
    drop_if_empty,
    find_child,
    name_node,
    primary_name,
    set_of,
    unname_node,
)
from indexer.jit.decorators import compiled


@compiled()
def holder_slot(holder):
    return holder >> 1 + TIER_BITS


@compiled()
def holder_tier(holder):
    return holder >> 1 & TIER_MASK


@compiled()
def _count_gain(h, slot, tier):
    i64_view(h, LIVE)[live_at(h[LIVE + 1], slot, tier)] += 1
    h[CHANGED] += 1


@compiled()
def _count_loss(h, slot, tier):
    i64_view(h, LIVE)[live_at(h[LIVE + 1], slot, tier)] -= 1
    i64_view(h, LOST)[slot] += 1
    h[CHANGED] += 1


@compiled()
def _holds_primary(h, slot, tier, node):
    """Return whether the slot holds the node in the tier under the node's primary engine hash."""
    state = holder_state(h, set_of(h, node), slot, tier)
    if state == IRREGULAR:
        return anchor_copies(h, slot, tier, node) > 0
    return state == REGULAR


@compiled()
def find_in_tier(h, slot, tier, engine_hash):
    """Return the node that (slot, tier) holds under this engine hash, or 0."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    i = home_slot(h, engine_hash, mask)
    while names[i] != 0:
        node = I(names[i])
        # Several nodes may share a hash; only a node that this slot holds under it counts.
        if engine[node] == engine_hash and _holds_primary(h, slot, tier, node):
            return node
        i = (i + 1) & mask
    i = find_record(h, slot, tier, ALIAS, engine_hash)
    return I(0) if i < 0 else record_node(h, i)


@compiled()
def find_in_any_tier(h, slot, tier, engine_hash):
    """Return the node that the slot holds under this hash in any tier or lane, or 0.

    `tier` comes first.
    """
    node = find_in_tier(h, slot, tier, engine_hash)
    other = I(0)
    while node == 0 and other < N_TIERS + h[LANES]:
        if other != tier:
            node = find_in_tier(h, slot, other, engine_hash)
        other += 1
    return node


@compiled()
def move_node(h, node, old, new):
    """Move a node from holder set `old` to `new`, and update the name table."""
    copy_node_on_write(h, node)
    mark = u32_view(h, MARK)
    mark[node] = (mark[node] & IMPLICIT) | new
    move_reference(h, old, new)
    if old == 0:
        name_node(h, node)
    elif new == 0:
        unname_node(h, node)


@compiled()
def _set_state(h, node, slot, tier, state):
    old = set_of(h, node)
    new = set_with_change(h, old, slot, tier, state)
    if new != old:
        move_node(h, node, old, new)


@compiled()
def _add_alias(h, slot, tier, node, engine_hash, counted):
    """Let the slot name the node by another hash than the primary; known aliases count up."""
    i = find_record(h, slot, tier, ALIAS, engine_hash)
    if i >= 0:
        set_record_count(h, i, record_count(h, i) + counted)
        return True
    if not has_record_room(h):
        return False
    state = holder_state(h, set_of(h, node), slot, tier)
    if state == REGULAR:
        set_anchor(h, slot, tier, node, 1, 1)
    elif state == IRREGULAR:
        copies = anchor_copies(h, slot, tier, node)
        set_anchor(h, slot, tier, node, copies, anchor_aliases(h, slot, tier, node) + 1)
    else:
        _count_gain(h, slot, tier)
    add_record(h, record_meta(slot, tier, ALIAS), engine_hash, node, 1)
    _set_state(h, node, slot, tier, IRREGULAR)
    return True


@compiled()
def _add_copy(h, slot, tier, node, counted):
    """Let the slot, already a holder, announce the node `counted` more times by primary name."""
    state = holder_state(h, set_of(h, node), slot, tier)
    copies = I(1)
    aliases = I(0)
    if state == IRREGULAR:
        copies = anchor_copies(h, slot, tier, node)
        aliases = anchor_aliases(h, slot, tier, node)
    if copies > 0 and not counted:
        return True
    if not has_record_room(h):
        return False
    set_anchor(h, slot, tier, node, copies + max(counted, I(1)), aliases)
    _set_state(h, node, slot, tier, IRREGULAR)
    return True


@compiled()
def add_holding(h, slot, tier, node, engine_hash, counted):
    """Let (slot, tier) hold the node under this hash; a holder announces it `counted` times more.

    The hash must not name another node for (slot, tier). Returns False, without effect, if the
    overflow records are full. Requires `has_set_room`.
    """
    engine = u64_view(h, ENGINE)
    old = set_of(h, node)
    if old == 0:
        copy_node_on_write(h, node)
        engine[node] = primary_name(h, node, engine_hash)
    if engine[node] != engine_hash:
        return _add_alias(h, slot, tier, node, engine_hash, counted)
    if holder_state(h, old, slot, tier) != ABSENT:
        return _add_copy(h, slot, tier, node, counted)
    _count_gain(h, slot, tier)
    move_node(h, node, old, set_with_change(h, old, slot, tier, REGULAR))
    return True


@compiled()
def _set_counts(h, slot, tier, node, copies, aliases):
    """Set holder state and anchor to (copies, aliases); free the node if no holder is left."""
    if copies == 0 and aliases == 0:
        set_anchor(h, slot, tier, node, 0, 1)
        _count_loss(h, slot, tier)
        _set_state(h, node, slot, tier, ABSENT)
        drop_if_empty(h, node)
        return
    set_anchor(h, slot, tier, node, copies, aliases)
    regular = copies == 1 and aliases == 0
    _set_state(h, node, slot, tier, REGULAR if regular else IRREGULAR)


@compiled()
def remove_primary(h, slot, tier, node, every_copy):
    """Undo an announcement, or all, of the node under the primary name, which the slot uses."""
    copies = I(1)
    aliases = I(0)
    if holder_state(h, set_of(h, node), slot, tier) == IRREGULAR:
        copies = anchor_copies(h, slot, tier, node)
        aliases = anchor_aliases(h, slot, tier, node)
    _set_counts(h, slot, tier, node, I(0) if every_copy else copies - 1, aliases)


@compiled()
def _remove_alias(h, slot, tier, node, record, every_copy):
    count = record_count(h, record)
    if count > 1 and not every_copy:
        set_record_count(h, record, count - 1)
        return
    copies = anchor_copies(h, slot, tier, node)
    aliases = anchor_aliases(h, slot, tier, node)
    delete_record(h, record)
    _set_counts(h, slot, tier, node, copies, aliases - 1)


@compiled()
def remove_holding(h, slot, tier, node, engine_hash, every_copy):
    """Undo an announcement of the hash, or all. `node` is a result of `find_in_tier`, not 0.

    Requires `has_set_room`.
    """
    i = find_record(h, slot, tier, ALIAS, engine_hash)
    if i >= 0 and record_node(h, i) == node:
        _remove_alias(h, slot, tier, node, i, every_copy)
    else:
        remove_primary(h, slot, tier, node, every_copy)


@compiled()
def _remove_elsewhere(h, slot, tier, held, engine_hash, keep):
    """Undo everything the hash names now, because a later announcement moves the name.

    `keep` stays in the tree, even without a holder.
    """
    kids = i32_view(h, KIDS)
    # A made-up child keeps drop_if_empty from freeing the parent that the caller still needs.
    kids[keep] += 1
    remove_holding(h, slot, tier, held, engine_hash, True)
    kids[keep] -= 1


@compiled()
def _is_only_name(h, slot, node, engine_hash):
    """Return True if the slot surely uses the hash for this node only (cheap, sufficient test)."""
    return (
        u64_view(h, ENGINE)[node] == engine_hash
        and set_of(h, node) != 0
        and h[NAMES_SHARED] == 0
        and i64_view(h, RECORDS_OF)[slot] == 0
    )


@compiled()
def hold_child(h, holder, parent, local, engine_hash):
    """Let the holder hold the child of `parent` with this content. Return the child, 0 if full.

    holder: slot, tier and counted, see `block_tree.holder_of`
    Requires `has_set_room` and room in the name and edge tables.
    """
    slot, tier = holder_slot(holder), holder_tier(holder)
    # Most stores repeat a known chain under unique names; then the lookup by name is skipped.
    node = find_child(h, parent, local)
    if node == 0 or not _is_only_name(h, slot, node, engine_hash):
        held = find_in_tier(h, slot, tier, engine_hash)
        if held != 0 and held != node:
            _remove_elsewhere(h, slot, tier, held, engine_hash, parent)
            node = find_child(h, parent, local)
    if node == 0:
        node = add_child(h, parent, local)
    if node == 0 or not add_holding(h, slot, tier, node, engine_hash, holder & 1):
        drop_if_empty(h, parent if node == 0 else node)
        return I(0)
    return node
