"""Nodes of the prefix tree: names, edges, allocation. holding_kernels decides about holders.

Node ids are assigned so that a block's only child usually has the next id. Such an edge is
implicit: no table entry is needed, and a match streams over consecutive ids. To keep this after
evictions, freed nodes form a doubly linked list from which a new child takes the id right after
the parent if free, else the start of a free run.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.hash_table_kernels import find_value, mask_of, table_functions
from indexer.index.header_kernels import (
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
    home_slot,
    i32_view,
    mix_secretly,
    u32_view,
    u64_view,
)
from indexer.index.snapshot_kernels import copy_node_on_write
from indexer.jit.decorators import compiled

FREE_RUN_WALK_MAX = 64
NAMESAKES_MAX = 64
"""Maximum number of nodes with holders and the same primary engine hash."""


@compiled()
def set_of(h, node):
    """Return the holder set id of a node in use."""
    return I(u32_view(h, MARK)[node] & SET_MASK)


# Names: primary engine hash -> nodes with holders.


@compiled()
def name_home(h, column, i, mask):
    """Return the preferred table slot of the node in table slot i."""
    return home_slot(h, u64_view(h, ENGINE)[I(u32_view(h, column)[i])], mask)


_put_next_name, _, _erase_name, move_names = table_functions(NAMES, 1, 1, name_home)


@compiled()
def name_node(h, node):
    """Enter a node with a first holder under the primary engine hash."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    key = engine[node]
    first = home_slot(h, key, mask)
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
    """Take a node without holders out of the name table."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    key = engine[node]
    i = home_slot(h, key, mask)
    found = i
    shared = I(0)
    while names[i] != 0:
        other = I(names[i])
        # The whole run is scanned: NAMES_SHARED depends on other nodes with the same hash.
        if other == node:
            found = i
        elif engine[other] == key:
            shared = I(1)
        i = (i + 1) & mask
    _erase_name(h, found)
    h[NAMES + ENTRIES] -= 1
    h[NAMES_SHARED] -= shared


@compiled()
def _count_namesakes(h, engine_hash):
    """Return the number of nodes with holders and this primary engine hash."""
    engine = u64_view(h, ENGINE)
    names = u32_view(h, NAMES)
    mask = I(names.shape[0] - 1)
    i = home_slot(h, engine_hash, mask)
    found = I(0)
    while names[i] != 0:
        if engine[I(names[i])] == engine_hash:
            found += 1
        i = (i + 1) & mask
    return found


@compiled()
def primary_name(h, node, engine_hash):
    """Return the primary engine hash of a node with a first holder that announces `engine_hash`.

    Lookups by name examine every node with the hash.  Beyond the limit a node gets a hash that no
    engine uses, and its holders have aliases.
    """
    # Hashes of different blocks differ, unless an engine is broken or hostile.
    if h[NAMES_SHARED] + 1 < NAMESAKES_MAX or _count_namesakes(h, engine_hash) < NAMESAKES_MAX:
        return U(engine_hash)
    return mix_secretly(h, node)


# Edges: only children that do not follow the parent in memory are in the table.


@compiled()
def _edge_home(h, parent, local, mask):
    return home_slot(h, local ^ (U(parent) * U(0xD6E8FEB86659FD93)), mask)


@compiled()
def edge_home(h, column, i, mask):
    """Return the preferred table slot of the node in table slot i."""
    node = I(u32_view(h, column)[i])
    return _edge_home(h, I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)


_put_next_edge, _, _erase_edge, move_edges = table_functions(EDGES, 1, 1, edge_home)


@compiled()
def find_edge(h, parent, local):
    """Return the child of `parent` in the edge table, or 0."""
    parents = i32_view(h, PARENT)
    locals_ = u64_view(h, LOCAL)
    edges = u32_view(h, EDGES)
    mask = I(edges.shape[0] - 1)
    i = _edge_home(h, parent, local, mask)
    while edges[i] != 0:
        node = I(edges[i])
        if parents[node] == parent and locals_[node] == local:
            return node
        i = (i + 1) & mask
    return I(0)


@compiled()
def _insert_edge(h, node):
    """Put a node, with parent and content set, into the edge table."""
    edges = u32_view(h, EDGES)
    mask = I(edges.shape[0] - 1)
    first = _edge_home(h, I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)
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
    first = _edge_home(h, I(i32_view(h, PARENT)[node]), u64_view(h, LOCAL)[node], mask)
    _erase_edge(h, find_value(h, EDGES, first, node))
    h[EDGES + ENTRIES] -= 1


@compiled()
def find_child(h, node, local):
    """Return the child of `node` with this content, or 0."""
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


# Allocation of node ids.


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
    # Bounded, since a free run may have a million nodes; any free id is correct, only less compact.
    for _ in range(FREE_RUN_WALK_MAX):
        if parents[node - 1] != NODE_FREE:
            break
        node -= 1
    return node


@compiled()
def _take_node(h, parent):
    """Return an unused id, directly after `parent` if possible; 0 if the index is full."""
    if h[NODES_LIVE] >= h[NODES_MAX]:
        return I(0)
    parents = i32_view(h, PARENT)
    node = parent + 1
    used = h[NODES_USED]
    if node < used and parents[node] == NODE_FREE:
        _unlink_free(h, node)
    # Fresh ids after the last node extend the parent's chain, which a free run would break.
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
    copy_node_on_write(h, node)
    return node


@compiled()
def add_child(h, parent, local):
    """Add a child without holders, name or children; return 0 if the index is full.

    The caller must add a holder at once. Requires room in the name and edge tables.
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
    """Free a node without holders and children, and every ancestor that becomes such a node."""
    parents = i32_view(h, PARENT)
    mark = u32_view(h, MARK)
    kids = i32_view(h, KIDS)
    while node != 0 and kids[node] == 0 and mark[node] & SET_MASK == 0:
        parent = I(parents[node])
        copy_node_on_write(h, node)
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
