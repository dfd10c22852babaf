"""The path of a prompt as runs of positions with the same holder set, for `reuse_kernels`.

Positions are blocks of the tree, or units of a block where hits may end inside blocks.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import (
    IMPLICIT,
    LOCAL,
    MARK,
    NODES_USED,
    UNIT_HASHES,
    UNIT_NAMES,
    I,
    U,
    mix_bits,
    u32_view,
    u64_view,
)
from indexer.index.match_kernels import matching_run_length
from indexer.index.reuse_keys import NAME_KEY
from indexer.index.tree_kernels import find_child, set_of
from indexer.jit.decorators import compiled

# Fields of a run: holder set, last position, node of the first position, and the holder set of ends
# that may belong to this prefix or to another prefix.
RUN_SET, RUN_END, RUN_NODE, RUN_LOOSE_SET = range(4)
RUN_FIELDS = 4


@compiled(forceinline=True)
def name_key(name):
    """Return the content under which a name inside a block, of unknown place, is a root's child."""
    return mix_bits(U(name) ^ U(NAME_KEY))


@compiled(forceinline=True)
def count_runs(runs):
    return runs.shape[0] // RUN_FIELDS


@compiled(forceinline=True)
def begin_of(runs, j):
    return runs[(j - 1) * RUN_FIELDS + RUN_END] if j > 0 else I(0)


@compiled(forceinline=True)
def end_of(runs, j):
    return runs[j * RUN_FIELDS + RUN_END]


@compiled()
def run_of(runs, j, position):
    """Return the run of a position that is not behind run j."""
    while begin_of(runs, j) >= position:
        j -= 1
    return j


@compiled()
def node_at(runs, j, position):
    """Return the node of a position in run j."""
    return runs[j * RUN_FIELDS + RUN_NODE] + position - begin_of(runs, j) - 1


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
def walk_runs(h, path, last, runs):
    """Write the runs of the first `last` blocks; return the count, -1 without space."""
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
def _find_loose(h, position):
    """Return the holder set of ends of any prefix with the unit that ends at a position."""
    child = find_child(h, I(0), name_key(u64_view(h, UNIT_HASHES)[position - 1]))
    return set_of(h, child) if child != 0 else I(0)


@compiled()
def _find_first_end(h, node, position):
    """Return the holder set of an end behind the first unit below a node."""
    child = find_child(h, node, u64_view(h, UNIT_HASHES)[position - 1])
    return set_of(h, child) if child != 0 else I(0)


@compiled()
def walk_names(h, last, units, runs):
    """Write the runs of positions by names: of the first `last` blocks and the next."""
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
def walk_units(h, path, last, units, runs):
    """Write the runs of the first `last` blocks and of the positions inside and behind."""
    positions = h[UNIT_HASHES + 1] if h[UNIT_HASHES] != 0 else I(0)
    n_runs, node, depth = I(0), I(0), I(0)
    while n_runs >= 0:
        for k in range(1, units):
            position = depth * units + k
            set_id, loose_set = I(0), I(0)
            if position <= positions:
                loose_set = _find_loose(h, position)
                set_id = _find_first_end(h, node, position) if k == 1 else I(0)
            elif depth >= last:
                return n_runs
            n_runs = _append_run(runs, n_runs, set_id, position, I(0), loose_set)
        if depth >= last or n_runs < 0:
            break
        node = find_child(h, node, path[depth])
        if node == 0:
            break
        depth += 1
        # A group of larger blocks than the tree's has ends here, too.
        position = depth * units
        loose_set = _find_loose(h, position) if position <= positions else I(0)
        n_runs = _append_run(runs, n_runs, set_of(h, node), position, node, loose_set)
    return n_runs
