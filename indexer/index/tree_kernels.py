"""Nodes of the prefix tree: names, edges, allocation. Holders are decided in holding_kernels.

Node ids are handed out so that a block's only child usually has the next id. Such an edge is
implicit: it costs no table entry, and a match streams over consecutive ids. To keep it so after
evictions, freed nodes form a doubly linked list from which a new child takes the id right after
its parent if that is free, else the start of a free run.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.snapshot_kernels import keep_node
from indexer.index.state_kernels import (
    BYTES_LEFT,
    EDGES,
    ENGINE,
    ENTRIES,
    IMPLICIT,
    KIDS,
    LOCAL,
    MARK,
    MOVED,
    NAMES,
    NAMES_SHARED,
    NODE_BYTES,
    NODE_FREE,
    NODE_FREE_HEAD,
    NODES_LIVE,
    NODES_MAX,
    NODES_USED,
    PARENT,
    SET_MASK,
    I,
    U,
    home,
    i32_view,
    u32_view,
    u64_view,
)
from indexer.index.table_kernels import find_value, mask_of, table_functions

FREE_RUN_WALK_MAX = 64


@compiled()
def set_of(h, node):
    """Holder set id of a node in use."""
    return I(u32_view(h, MARK)[node] & SET_MASK)


# --- names: primary engine hash -> nodes with holders -----------------------------------------


@compiled()
def name_home(h, column, i, mask):
    """Preferred table slot of the node in table slot i."""
    return home(u64_view(h, ENGINE)[I(u32_view(h, column)[i])], mask)


_put_next_name, _, _erase_name, move_names = table_functions(NAMES, 1, 1, name_home)


@compiled()
def name_node(h, node):
    """Enter a node that got its first holder under its primary engine hash."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    key = engine[node]
    first = home(key, mask)
    i = first
    shared = I(0)
    while names[i] != 0:
        if engine[I(names[i])] == key:
            shared = I(1)
        i = (i + 1) & mask
    names[i] = node
    if first < h[NAMES + MOVED]:
        _put_next_name(h, i)
    h[NAMES_SHARED] += shared
    h[NAMES + ENTRIES] += 1


@compiled()
def unname_node(h, node):
    """Take a node that lost its last holder out of the name table."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    key = engine[node]
    i = home(key, mask)
    found = i
    shared = I(0)
    while names[i] != 0:
        other = I(names[i])
        if other == node:
            found = i
        elif engine[other] == key:
            shared = I(1)
        i = (i + 1) & mask
    _erase_name(h, found)
    h[NAMES + ENTRIES] -= 1
    h[NAMES_SHARED] -= shared


# --- edges ------------------------------------------------------------------------------------


@compiled()
def _edge_home(parent, local, mask):
    return home(local ^ (U(parent) * U(0xD6E8FEB86659FD93)), mask)


@compiled()
def edge_home(h, column, i, mask):
    """Preferred table slot of the node in table slot i."""
    node = I(u32_view(h, column)[i])
    return _edge_home(I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)


_put_next_edge, _, _erase_edge, move_edges = table_functions(EDGES, 1, 1, edge_home)


@compiled()
def find_edge(h, parent, local):
    """Child of `parent` by a tabled edge, 0 when there is none."""
    parents = i32_view(h, PARENT)
    locals_ = u64_view(h, LOCAL)
    edges = u32_view(h, EDGES)
    mask = I(edges.shape[0] - 1)
    i = _edge_home(parent, local, mask)
    while edges[i] != 0:
        node = I(edges[i])
        if parents[node] == parent and locals_[node] == local:
            return node
        i = (i + 1) & mask
    return I(0)


@compiled()
def _insert_edge(h, node):
    """Put a node, its parent and content set, into the edge table."""
    edges = u32_view(h, EDGES)
    mask = I(edges.shape[0] - 1)
    first = _edge_home(I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)
    i = first
    while edges[i] != 0:
        i = (i + 1) & mask
    edges[i] = node
    if first < h[EDGES + MOVED]:
        _put_next_edge(h, i)
    h[EDGES + ENTRIES] += 1


@compiled()
def _delete_edge(h, node):
    mask = mask_of(h, EDGES, 1)
    first = _edge_home(I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)
    _erase_edge(h, find_value(h, EDGES, first, node))
    h[EDGES + ENTRIES] -= 1


@compiled()
def find_child(h, node, local):
    """Child of `node` with this content, 0 when there is none."""
    following = node + 1
    if (
        following < h[NODES_USED]
        and i32_view(h, PARENT)[following] == node
        and u64_view(h, LOCAL)[following] == local
    ):
        return following
    if i32_view(h, KIDS)[node] == 0:
        return I(0)
    return find_edge(h, node, local)


# --- allocation -------------------------------------------------------------------------------


@compiled()
def _unlink_free(h, node):
    following = u32_view(h, MARK)
    previous = i32_view(h, KIDS)
    after = I(following[node])
    before = I(previous[node])
    if before:
        following[before] = after
    else:
        h[NODE_FREE_HEAD] = after
    if after:
        previous[after] = before


@compiled()
def _start_of_free_run(parents, node):
    for _ in range(FREE_RUN_WALK_MAX):
        if parents[node - 1] != NODE_FREE:
            break
        node -= 1
    return node


@compiled()
def _take_node(h, parent):
    """An unused id, the one after `parent` if possible; 0 when the index is full."""
    if h[NODES_LIVE] >= h[NODES_MAX]:
        return I(0)
    parents = i32_view(h, PARENT)
    node = parent + 1
    used = h[NODES_USED]
    if node < used and parents[node] == NODE_FREE:
        _unlink_free(h, node)
    elif h[NODE_FREE_HEAD] != 0 and node != used:
        node = _start_of_free_run(parents, h[NODE_FREE_HEAD])
        _unlink_free(h, node)
    elif used <= h[NODES_MAX] and h[BYTES_LEFT] >= NODE_BYTES:
        node = used
        h[NODES_USED] += 1
        h[BYTES_LEFT] -= NODE_BYTES
    elif h[NODE_FREE_HEAD] != 0:
        node = h[NODE_FREE_HEAD]
        _unlink_free(h, node)
    else:
        return I(0)
    keep_node(h, node)
    return node


@compiled()
def add_child(h, parent, local):
    """New child without holders, name or children; 0 when the index is full.

    The caller gives it a holder before it returns. Requires room in the name and edge tables.
    """
    node = _take_node(h, parent)
    if node == 0:
        return node
    u64_view(h, LOCAL)[node] = local
    i32_view(h, PARENT)[node] = parent
    kids = i32_view(h, KIDS)
    kids[node] = 0
    kids[parent] += 1
    h[NODES_LIVE] += 1
    mark = u32_view(h, MARK)
    if node == parent + 1:
        mark[node] = IMPLICIT
    else:
        mark[node] = 0
        _insert_edge(h, node)
    return node


@compiled()
def drop_if_empty(h, node):
    """Free a node without holders and children, and every ancestor that becomes such."""
    parents = i32_view(h, PARENT)
    mark = u32_view(h, MARK)
    kids = i32_view(h, KIDS)
    while node != 0 and kids[node] == 0 and mark[node] & SET_MASK == 0:
        parent = I(parents[node])
        keep_node(h, node)
        if mark[node] & IMPLICIT == 0:
            _delete_edge(h, node)
        kids[parent] -= 1
        h[NODES_LIVE] -= 1
        parents[node] = NODE_FREE
        kids[node] = 0
        mark[node] = h[NODE_FREE_HEAD]
        if h[NODE_FREE_HEAD] != 0:
            kids[h[NODE_FREE_HEAD]] = node
        h[NODE_FREE_HEAD] = node
        node = parent
