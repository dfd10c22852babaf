"""Blocks of each (slot, tier) of a snapshot, as runs of blocks, parents before children.

Shared by everything that reads a snapshot per owner: the JSON dump, and the attachment of recovered
blocks to a slot of a live index.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps import tree_order_kernels
from indexer.hashing.block_hashing import Hashes
from indexer.index.index_snapshot import ALIAS_RECORD, ANCHOR_RECORD, IndexSnapshot
from indexer.index.set_planes import held_plane, irregular_plane
from indexer.tiers import Tier

RUN_BLOCKS_MAX = 4096

Nodes = NDArray[np.int32]
Flags = NDArray[np.bool_]


class BlockRun(NamedTuple):
    """Blocks of an owner, each the parent of the next. All arrays have one length."""

    parent: int | None  # engine hash
    engine_hashes: Hashes  # engine hashes
    content_hashes: Hashes  # content hashes
    copies: list[int] | None  # announcements of each block; None: one of each


class _Holding(NamedTuple):
    """Blocks of a (slot, tier)."""

    nodes: Nodes  # parents first
    names: Hashes  # [all nodes] the hash its events use for a node
    copies: dict[int, int]  # node -> copies under that hash, where not 1
    others: list[tuple[int, int, int]]  # (node, further hash, copies)


class GapBridge(NamedTuple):
    """Extra blocks that rebuild a slot with gaps, stored in the GPU tier and `removed` at the
    end.
    """

    nodes: Nodes  # all nodes to store in the GPU tier, parents first
    removed: Hashes  # engine hashes
    names: Hashes  # [all nodes] temporary name of each parent


class SnapshotRuns:
    """Reader of a snapshot by owner. O(nodes) memory beside it."""

    def __init__(self, snapshot: IndexSnapshot) -> None:
        self._snapshot = snapshot
        order = np.empty(snapshot.parent.size, np.int32)
        self._order = order[: tree_order_kernels.preorder_nodes(snapshot.parent, order)]
        self._holders = snapshot.holders[self._order]
        """Row of `sets` of each node of the order."""

    @property
    def tiers(self) -> range:
        """Numbers of the tiers and lanes of the snapshot."""
        return self._snapshot.tiers

    def read_runs(
        self, slot: int, tier: int, bridge: GapBridge | None = None
    ) -> Iterator[BlockRun]:
        """Yield everything that (slot, tier) holds; further names of a block follow at the end.

        With a bridge the runs of the GPU tier include its extra blocks.
        """
        bridges = bridge is not None and tier == Tier.GPU
        if not bridges and not _slot_mask(self._snapshot, slot, held_plane(tier)).any():
            return
        holding = self._read_holding(slot, tier)
        if bridge is not None and bridges:
            holding = holding._replace(nodes=bridge.nodes, names=bridge.names)
        parents = holding.names if bridge is None else bridge.names
        yield from self._runs_of(holding, parents)
        for node, name, count in holding.others:
            local = self._snapshot.local[node : node + 1]
            parent = self._parent_name(parents, node)
            yield BlockRun(
                parent, np.array([name], np.uint64), local, None if count == 1 else [count]
            )

    def build_bridge(self, slot: int) -> GapBridge | None:
        """Return the bridge of a slot with a gap above a block; else None.

        The missing ancestors get names that the slot does not use, the primary names if possible,
        as these may be former names of the slot. Storing and removing the ancestors leaves the
        blocks below in place.
        """
        tiers = self._snapshot.tiers
        if not any(_slot_mask(self._snapshot, slot, held_plane(tier)).any() for tier in tiers):
            return None
        held = [self._held_mask(slot, tier) for tier in tiers]
        if self._is_gapless(held):
            return None
        anywhere = np.logical_or.reduce(held)
        ancestors = np.zeros(anywhere.size, np.bool_)
        tree_order_kernels.mark_ancestors(self._snapshot.parent, self._order, anywhere, ancestors)
        gpu = held[Tier.GPU]
        names = self._slot_names(slot)
        names[gpu] = self._read_holding(slot, Tier.GPU).names[gpu]
        strange = np.flatnonzero(ancestors & ~anywhere)
        names[strange] = self._unused_names(strange, names[anywhere])
        added = ancestors & ~gpu
        nodes = self._order[(added | gpu)[self._order]]
        return GapBridge(nodes, names[added], names)

    def _unused_names(self, nodes: NDArray[np.int64], used: Hashes) -> Hashes:
        """Return a name for each of the nodes, all different, and different from `used`."""
        taken = np.concatenate([used, self._snapshot.records["key"]])
        names: Hashes = self._snapshot.engine[nodes]
        _, firsts = np.unique(names, return_index=True)
        is_free = np.zeros(nodes.size, np.bool_)
        is_free[firsts] = True
        is_free &= ~np.isin(names, taken)
        taken = np.concatenate([taken, names])
        # Small numbers suffice: among that many candidates enough are unused.
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

    def _held_mask(self, slot: int, tier: int) -> Flags:
        """Return a mask [all nodes] of the nodes held."""
        held: Flags = _slot_mask(self._snapshot, slot, held_plane(tier))[self._snapshot.holders]
        return held

    def _runs_of(self, holding: _Holding, parents: Hashes) -> Iterator[BlockRun]:
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
                yield BlockRun(parent, names[run], snapshot.local[run], counts)

    def _parent_name(self, names: Hashes, node: int) -> int | None:
        parent = int(self._snapshot.parent[node])
        return None if parent == 0 else int(names[parent])

    def _read_holding(self, slot: int, tier: int) -> _Holding:
        """Return the nodes of (slot, tier) and the owner's names for nodes and parents."""
        snapshot = self._snapshot
        nodes = self._order[_slot_mask(snapshot, slot, held_plane(tier))[self._holders]]
        mine = snapshot.records[snapshot.records["slot"] == slot]
        if not mine.size or not nodes.size:
            return _Holding(nodes, snapshot.engine, {}, [])
        names = self._slot_names(slot)
        here = mine[mine["tier"] == tier]
        anchors = here[here["kind"] == ANCHOR_RECORD]
        copies = dict(zip(anchors["key"].tolist(), anchors["count"].tolist(), strict=True))
        named = {node for node, count in copies.items() if count > 0}
        irregular = _slot_mask(snapshot, slot, irregular_plane(tier))[snapshot.holders[nodes]]
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

    def _slot_names(self, slot: int) -> Hashes:
        """Return the slot's name of each node, the primary one if used in any tier."""
        snapshot = self._snapshot
        mine = snapshot.records[snapshot.records["slot"] == slot]
        aliases = mine[mine["kind"] == ALIAS_RECORD]
        anchors = mine[(mine["kind"] == ANCHOR_RECORD) & (mine["count"] > 0)]
        primary = np.zeros(snapshot.engine.size, np.bool_)
        primary[anchors["key"]] = True
        for tier in snapshot.tiers:
            irregular = _slot_mask(snapshot, slot, irregular_plane(tier))
            regular = _slot_mask(snapshot, slot, held_plane(tier)) & ~irregular
            primary |= regular[snapshot.holders]
        names = snapshot.engine.copy()
        foreign = aliases[~primary[aliases["node"]]]
        names[foreign["node"]] = foreign["key"]
        return names


def _slot_mask(snapshot: IndexSnapshot, slot: int, plane: int) -> Flags:
    """Return a mask [sets] of the sets with the slot's bit in this plane."""
    word = snapshot.sets[:, plane, slot >> 6]
    bit: Flags = (word >> np.uint64(slot & 63)) & np.uint64(1) != 0
    return bit
