"""Recount of everything the kernels keep incrementally. For tests; O(blocks * slots)."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.index import header_kernels as state
from indexer.index.index_memory import IndexMemory

_ALIAS, _ANCHOR = 0, 1


def check_memory(memory: IndexMemory) -> None:
    """Assert that columns, tables and counters agree."""
    nodes = _live_nodes(memory)
    _check_free_list(memory)
    _check_tree(memory, nodes)
    _check_names(memory, nodes)
    _check_sets(memory, nodes)
    _check_holdings(memory, nodes)


def _live_nodes(memory: IndexMemory) -> list[int]:
    used = memory.value(state.NODES_USED)
    parents = memory.column(state.PARENT)[:used]
    nodes: list[int] = np.flatnonzero(parents != state.NODE_FREE).tolist()
    assert nodes[0] == 0
    assert len(nodes) - 1 == memory.value(state.NODES_LIVE) <= memory.value(state.NODES_MAX)
    return nodes[1:]


def _check_free_list(memory: IndexMemory) -> None:
    node, before, count = memory.value(state.NODE_FREE_HEAD), 0, 0
    while node:
        assert memory.column(state.PARENT)[node] == state.NODE_FREE
        assert memory.column(state.KIDS)[node] == before
        before, node = node, int(memory.column(state.MARK)[node])
        count += 1
    assert count == memory.value(state.NODES_USED) - 1 - memory.value(state.NODES_LIVE)


def _check_tree(memory: IndexMemory, nodes: list[int]) -> None:
    parents, marks = memory.column(state.PARENT), memory.column(state.MARK)
    kids = Counter(parents[nodes].tolist())
    for node in (0, *nodes):
        assert memory.column(state.KIDS)[node] == kids[node]
    explicit = []
    for node in nodes:
        assert kids[node] or marks[node] & state.SET_MASK, "a node without purpose"
        assert bool(marks[node] & state.IMPLICIT) == (parents[node] == node - 1)
        if not marks[node] & state.IMPLICIT:
            explicit.append(node)
    edges = _check_table(memory, state.EDGES)
    assert sorted(edges) == explicit
    contents = {(int(parents[n]), int(memory.column(state.LOCAL)[n])) for n in nodes}
    assert len(contents) == len(nodes), "two nodes for one content"


def _check_names(memory: IndexMemory, nodes: list[int]) -> None:
    named = [n for n in nodes if memory.column(state.MARK)[n] & state.SET_MASK]
    assert sorted(_check_table(memory, state.NAMES)) == named
    distinct = len(set(memory.column(state.ENGINE)[named].tolist()))
    assert memory.value(state.NAMES_SHARED) == len(named) - distinct


def _check_table(memory: IndexMemory, table: int) -> list[int]:
    """Return the values of a table of width 1; moved entries must be in the next table as well."""
    values: list[int] = [value for value in memory.column(table).tolist() if value]
    assert len(values) == memory.value(table + state.ENTRIES) <= memory.value(table + state.ROOM)
    if memory.value(table + state.MOVED) == memory.column(table).size:
        following = memory.column(table + state.NEXT)
        assert sorted(following[following != 0].tolist()) == sorted(values)
    return values


def _rows(memory: IndexMemory) -> NDArray[Any]:
    """Return the holder sets in use; the reserved pool has room for millions."""
    planes = state.PLANES + 2 * memory.value(state.LANES)
    rows = memory.column(state.BITS).reshape(-1, planes, memory.value(state.WORDS))
    return rows[: memory.value(state.SETS_USED)]


def split_planes(row: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the planes of holders and of irregular holders of a set, by tier and lane."""
    tiers, lanes = row[: state.N_TIERS], row[state.PLANES :: 2]
    irregular = row[state.N_TIERS : state.PLANES], row[state.PLANES + 1 :: 2]
    return np.concatenate([tiers, lanes]), np.concatenate(irregular)


def _check_sets(memory: IndexMemory, nodes: list[int]) -> None:
    marks = memory.column(state.MARK)[nodes] & state.SET_MASK
    references = Counter(marks[marks != 0].tolist())
    info = memory.column(state.SET_INFO).reshape(-1, state.SET_FIELDS)
    used = memory.value(state.SETS_USED)
    for set_id in range(1, used):
        assert info[set_id, state.SET_REFS] == references[set_id]
    assert len(references) == memory.value(state.SETS_LIVE)
    assert memory.value(state.SETS_UNLISTED) == 0
    assert sorted(_check_table(memory, state.SET_TABLE)) == sorted(references)
    rows = _rows(memory)
    assert len({rows[s].tobytes() for s in references}) == len(references), "a set twice"
    for set_id in references:
        tiers, irregular = split_planes(rows[set_id])
        assert tiers.any()
        assert not (irregular & ~tiers).any()


def _holdings(memory: IndexMemory, nodes: list[int]) -> dict[tuple[int, int, int], bool]:
    """Return (slot, tier, node) -> whether irregular, from the holder sets."""
    found = {}
    marks = memory.column(state.MARK)
    rows = _rows(memory)
    for node in nodes:
        words = np.ascontiguousarray(rows[marks[node] & state.SET_MASK])
        row = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        held, irregular = split_planes(row)
        for tier, slot in np.argwhere(held).tolist():
            found[slot, tier, node] = bool(irregular[tier, slot])
    return found


def _check_holdings(memory: IndexMemory, nodes: list[int]) -> None:
    holdings = _holdings(memory, nodes)
    live = memory.column(state.LIVE).reshape(state.LIVE_TIERS, -1).T
    expected = np.zeros_like(live)
    for slot, tier, _ in holdings:
        expected[slot, tier] += 1
    assert (live == expected).all()
    aliases: Counter[tuple[int, int, int]] = Counter()
    anchors: dict[tuple[int, int, int], tuple[int, int]] = {}
    records_of = np.zeros_like(memory.column(state.RECORDS_OF))
    rows = memory.column(state.RECORDS).reshape(-1, state.RECORD_FIELDS)
    rows = rows[rows[:, state.RECORD_META] != 0]
    for meta, low, high, node, count in rows.tolist():
        place, kind = divmod(meta - 1, 2)
        slot, tier = divmod(place, state.LIVE_TIERS)
        key = low | high << 32
        records_of[slot] += 1
        if kind == _ALIAS:
            assert count >= 1
            assert memory.column(state.ENGINE)[node] != key
            aliases[slot, tier, node] += 1
        else:
            anchors[slot, tier, key] = (count, node)
    assert len(rows) == memory.value(state.RECORDS + state.ENTRIES)
    assert len(rows) <= memory.value(state.RECORDS + state.ROOM)
    assert (memory.column(state.RECORDS_OF) == records_of).all()
    assert set(aliases) | set(anchors) == {
        where for where, irregular in holdings.items() if irregular
    }
    for where, (copies, others) in anchors.items():
        assert others == aliases[where]
        assert copies + others > 0
        assert (copies, others) not in ((1, 0), (0, 1)), "an anchor that says nothing"
    for where, others in aliases.items():
        assert where in anchors or others == 1
