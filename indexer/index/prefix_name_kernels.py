"""Engine hashes under which a slot holds the leading blocks of a path, in the GPU tier."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import ENGINE, HASHES, HEADER, I, u64_view
from indexer.index.holder_set_kernels import ABSENT, REGULAR, holder_state
from indexer.index.overflow_record_kernels import anchor_copies
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled

GPU = 0


@compiled(f"int64({HEADER}, int64, {HASHES}, int64[::1], uint64[::1])")
def name_held_prefix(h, slot, path, nodes, names):
    """Write the primary engine hash of each leading block that the slot holds.

    nodes: int64 [len(path)], out: the node where the slot uses another hash, else 0
    names: uint64 [len(path)], out
    Returns the number of blocks.
    """
    engine = u64_view(h, ENGINE)
    node, n = I(0), I(0)
    while n < path.shape[0]:
        node = find_child(h, node, path[n])
        if node == 0:
            break
        held = holder_state(h, set_of(h, node), slot, GPU)
        if held == ABSENT:
            break
        uses_primary = held == REGULAR or anchor_copies(h, slot, GPU, node) > 0
        nodes[n] = 0 if uses_primary else node
        names[n] = engine[node]
        n += 1
    return n
