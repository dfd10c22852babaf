"""What each (slot, tier) of a snapshot holds, as runs of blocks, parents before children.

The common ground of everything that reads a snapshot per owner: the JSON dump, and the attachment
of recovered blocks to a slot of a living index.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps import dump_kernels
from indexer.hashing.hashes import Hashes
from indexer.index.snapshot import ALIAS_RECORD, ANCHOR_RECORD, IndexSnapshot
from indexer.tiers import N_TIERS, Tier

RUN_BLOCKS_MAX = 4096

Nodes = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Run(NamedTuple):
    """Blocks of one owner, each the parent of the next. All arrays have one length."""

    parent: int | None  # engine hash
    names: Hashes  # engine hashes
    locals: Hashes  # content hashes
    copies: list[int] | None  # announcements of each; None: one of each


class _Holding(NamedTuple):
    """What one (slot, tier) holds."""

    nodes: Nodes  # parents first
    names: Hashes  # [all nodes] the hash its events use for a node
    copies: dict[int, int]  # node -> copies under that hash, where not 1
    others: list[tuple[int, int, int]]  # (node, further hash, copies)


class Bridge(NamedTuple):
    """How a slot with gaps is rebuilt: more in the GPU tier; `removed` leave it at the end."""

    nodes: Nodes  # all that are to be stored in the GPU tier, parents first
    removed: Hashes  # engine hashes
    names: Hashes  # [all nodes] what the parents are called meanwhile


class SnapshotRuns:
    """Readings of one snapshot. O(nodes) memory beside it."""

    def __init__(self, snapshot: IndexSnapshot) -> None:
        self._snapshot = snapshot
        order = np.empty(snapshot.parent.size, np.int32)
        self._order = order[: dump_kernels.preorder(snapshot.parent, order)]
        self._holders = snapshot.holders[self._order]
        """Row of `sets` of each node of the order."""

    def runs(self, slot: int, tier: Tier, bridge: Bridge | None = None) -> Iterator[Run]:
        """Everything that (slot, tier) holds; further names of a block follow at the end.

        With a bridge the GPU tier has what the bridge adds to it as well.
        """
        bridges = bridge is not None and tier == Tier.GPU
        if not bridges and not _plane(self._snapshot, slot, tier).any():
            return
        holding = self._holding(slot, tier)
        if bridge is not None and bridges:
            holding = holding._replace(nodes=bridge.nodes, names=bridge.names)
        parents = holding.names if bridge is None else bridge.names
        yield from self._runs_of(holding, parents)
        for node, name, count in holding.others:
            local = self._snapshot.local[node : node + 1]
            parent = self._parent_name(parents, node)
            yield Run(parent, np.array([name], np.uint64), local, None if count == 1 else [count])

    def bridge(self, slot: int) -> Bridge | None:
        """Needed only by a slot that holds a block, but not all its ancestors.

        The missing ones get names that the slot does not use, their primary ones where that is so,
        as these may be the slot's own of former times; they are stored and taken away again,
        which leaves the blocks below where they belong.
        """
        if not any(_plane(self._snapshot, slot, tier).any() for tier in Tier):
            return None
        held = [self._held(slot, tier) for tier in Tier]
        if self._is_gapless(held):
            return None
        anywhere = np.logical_or.reduce(held)
        ancestors = np.zeros(anywhere.size, np.bool_)
        dump_kernels.mark_ancestors(self._snapshot.parent, self._order, anywhere, ancestors)
        gpu = held[Tier.GPU]
        names = self._known_names(slot)
        names[gpu] = self._holding(slot, Tier.GPU).names[gpu]
        strange = np.flatnonzero(ancestors & ~anywhere)
        names[strange] = self._unused_names(strange, names[anywhere])
        added = ancestors & ~gpu
        nodes = self._order[(added | gpu)[self._order]]
        return Bridge(nodes, names[added], names)

    def _unused_names(self, nodes: NDArray[np.int64], used: Hashes) -> Hashes:
        """A name for each of the nodes, none of them twice, none of `used`."""
        taken = np.concatenate([used, self._snapshot.records["key"]])
        names: Hashes = self._snapshot.engine[nodes]
        _, firsts = np.unique(names, return_index=True)
        is_free = np.zeros(nodes.size, np.bool_)
        is_free[firsts] = True
        is_free &= ~np.isin(names, taken)
        taken = np.concatenate([taken, names])
        candidates = np.arange(1, taken.size + nodes.size + 1, dtype=np.uint64)
        names[~is_free] = np.setdiff1d(candidates, taken)[: np.count_nonzero(~is_free)]
        return names

    def _is_gapless(self, held: list[Flags]) -> bool:
        known = np.zeros(self._snapshot.parent.size, np.bool_)
        known[0] = True
        for mask in held:
            known |= mask
            if not known[self._snapshot.parent[mask]].all():
                return False
        return True

    def _held(self, slot: int, tier: Tier) -> Flags:
        """[all nodes]"""
        held: Flags = _plane(self._snapshot, slot, tier)[self._snapshot.holders]
        return held

    def _runs_of(self, holding: _Holding, parents: Hashes) -> Iterator[Run]:
        nodes, names, copies, _ = holding
        if not nodes.size:
            return
        snapshot = self._snapshot
        breaks = np.flatnonzero(snapshot.parent[nodes][1:] != nodes[:-1]) + 1
        for start, stop in pairwise([0, *breaks.tolist(), nodes.size]):
            for begin in range(start, stop, RUN_BLOCKS_MAX):
                run = nodes[begin : min(stop, begin + RUN_BLOCKS_MAX)]
                counts = [copies.get(node, 1) for node in run.tolist()] if copies else None
                parent = self._parent_name(parents, int(run[0]))
                yield Run(parent, names[run], snapshot.local[run], counts)

    def _parent_name(self, names: Hashes, node: int) -> int | None:
        parent = int(self._snapshot.parent[node])
        return None if parent == 0 else int(names[parent])

    def _holding(self, slot: int, tier: Tier) -> _Holding:
        """Nodes of (slot, tier) and the names its owner has for them and for their parents."""
        snapshot = self._snapshot
        nodes = self._order[_plane(snapshot, slot, tier)[self._holders]]
        mine = snapshot.records[snapshot.records["slot"] == slot]
        if not mine.size or not nodes.size:
            return _Holding(nodes, snapshot.engine, {}, [])
        names = self._known_names(slot)
        here = mine[mine["tier"] == tier]
        anchors = here[here["kind"] == ANCHOR_RECORD]
        copies = dict(zip(anchors["key"].tolist(), anchors["count"].tolist(), strict=True))
        named = {node for node, count in copies.items() if count > 0}
        irregular = _plane(snapshot, slot, N_TIERS + tier)[snapshot.holders[nodes]]
        named |= set(nodes[~irregular].tolist())
        copies = {node: count for node, count in copies.items() if count > 1}
        others = []
        aliases = here[here["kind"] == ALIAS_RECORD]
        columns = (aliases["node"].tolist(), aliases["key"].tolist(), aliases["count"].tolist())
        for node, name, count in zip(*columns, strict=True):
            if node in named:
                others.append((node, name, count))
            else:
                named.add(node)
                names[node] = name
                if count > 1:
                    copies[node] = count
        return _Holding(nodes, names, copies, others)

    def _known_names(self, slot: int) -> Hashes:
        """A name by which the slot knows each node, the primary where it uses it in any tier."""
        snapshot = self._snapshot
        mine = snapshot.records[snapshot.records["slot"] == slot]
        aliases = mine[mine["kind"] == ALIAS_RECORD]
        anchors = mine[(mine["kind"] == ANCHOR_RECORD) & (mine["count"] > 0)]
        primary = np.zeros(snapshot.engine.size, np.bool_)
        primary[anchors["key"]] = True
        for tier in Tier:
            regular = _plane(snapshot, slot, tier) & ~_plane(snapshot, slot, N_TIERS + tier)
            primary |= regular[snapshot.holders]
        names = snapshot.engine.copy()
        foreign = aliases[~primary[aliases["node"]]]
        names[foreign["node"]] = foreign["key"]
        return names


def _plane(snapshot: IndexSnapshot, slot: int, plane: int) -> Flags:
    """[sets] whether the slot's bit is set in this plane."""
    word = snapshot.sets[:, plane, slot >> 6]
    bit: Flags = (word >> np.uint64(slot & 63)) & np.uint64(1) != 0
    return bit
