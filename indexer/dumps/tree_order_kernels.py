"""Compiled tree walks of a dump: parents before children, chains in one piece."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer, calloc, free


@compiled()
def _write_preorder(parents, first_child, next_sibling, order):
    """Write the nodes in depth-first order; first_child, next_sibling: int32 [nodes], all 0"""
    # Backwards, so that siblings end up in ascending order.
    for node in range(parents.shape[0] - 1, 0, -1):
        if parents[node] >= 0:
            next_sibling[node] = first_child[parents[node]]
            first_child[parents[node]] = node
    count = 0
    node = first_child[0]
    while node != 0:
        order[count] = node
        count += 1
        if first_child[node] != 0:
            node = first_child[node]
            continue
        while node != 0 and next_sibling[node] == 0:
            node = parents[node]
        node = next_sibling[node]
    return count


@compiled("int64(int32[::1], int32[::1])", nogil=True)
def preorder_nodes(parents, order):
    """Compute the depth-first order of a tree; return the number of nodes written.

    parents: int32 [nodes], node 0 is the root, negative for nodes not in use
    order:   int32 [nodes], out; the nodes without the root, each child right after its parent or
             after the subtree of a sibling
    O(nodes), on copies: other threads may run meanwhile.
    """
    address = calloc(8 * parents.shape[0])
    if address == 0:
        raise MemoryError
    kin = carray(as_pointer(address), (2, parents.shape[0]), np.int32)
    count = _write_preorder(parents, kin[0], kin[1], order)
    free(address)
    return count


@compiled("void(int32[::1], int32[::1], boolean[::1], boolean[::1])", nogil=True)
def mark_ancestors(parents, order, held, ancestors):
    """Mark every node above a held node.

    parents:   int32 [nodes]
    order:     int32 [n], parents before children
    held:      bool [nodes]
    ancestors: bool [nodes], initially all False, out; the root is never marked
    """
    for i in range(order.shape[0] - 1, -1, -1):
        node = order[i]
        if (held[node] or ancestors[node]) and parents[node] > 0:
            ancestors[parents[node]] = True
