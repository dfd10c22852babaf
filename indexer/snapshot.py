"""The /dump document of one partition, encoded chunk by chunk from a snapshot of its index.

A document is {"block_size": B, "events": [...]}: "stored" events that rebuild the index when they
are applied in order. Parents come before children; the device tier comes first, then each lower
tier. An unbranched run of blocks of one owner is one event. Every owner's events use its own engine
hashes; further hashes of the same block follow as events of one block. A block announced several
times has the extra field "copies".
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer import dump_kernels
from indexer.index_snapshot import IndexSnapshot
from indexer.tiers import N_TIERS, Tier

EVENT_BLOCKS_MAX = 4096
CHUNK_BLOCKS_MAX = 4096  # a chunk ends with the event that reaches this

STORAGE_TIERS = {
    Tier.GPU: "device",
    Tier.CPU: "host_pinned",
    Tier.DISK: "disk",
    Tier.EXTERNAL: "external",
}

_ALIAS, _ANCHOR = 0, 1

Nodes = NDArray[np.int32]
Hashes = NDArray[np.uint64]


class _Run(NamedTuple):
    """One event: blocks of one owner, each the parent of the next."""

    parent: int | None  # engine hash
    names: list[int]
    locals: list[int]
    copies: list[int]


class _Holding(NamedTuple):
    """What one (slot, tier) holds."""

    nodes: Nodes  # parents first
    names: Hashes  # [all nodes] the hash its events use for a node
    copies: dict[int, int]  # node -> copies under that hash, where not 1
    others: list[tuple[int, int, int]]  # (node, further hash, copies)


def dump_chunks(
    snapshot: IndexSnapshot, block_size: int, ranks: Mapping[int, tuple[int, int]]
) -> Iterator[bytes]:
    """The document in chunks of JSON. `ranks`: slot -> (worker_id, dp_rank), others are left out.

    Memory beyond the snapshot: O(blocks of the index); a chunk is at most some MB.
    """
    yield b'{"block_size":%d,"events":[' % block_size
    # An unused node's column holds a link of the free list, not a holder set.
    used = snapshot.parent >= 0
    snapshot = snapshot._replace(holders=np.where(used, snapshot.holders, np.uint32(0)))
    order = np.empty(snapshot.parent.size, np.int32)
    order = order[: dump_kernels.preorder(snapshot.parent, order)]
    separator = ""
    for tier in Tier:
        event_id = 0
        for slot in sorted(set(ranks).intersection(snapshot.slots)):
            runs = _runs(snapshot, _holding(snapshot, order, slot, tier))
            for batch in _batches(runs):
                events = [
                    _event(run, ranks[slot], tier, event_id + i) for i, run in enumerate(batch)
                ]
                event_id += len(batch)
                yield (separator + ",".join(events)).encode()
                separator = ","
    yield b"]}"


def _batches(runs: Iterator[_Run]) -> Iterator[list[_Run]]:
    batch: list[_Run] = []
    blocks = 0
    for run in runs:
        batch.append(run)
        blocks += len(run.names)
        if blocks >= CHUNK_BLOCKS_MAX:
            yield batch
            batch, blocks = [], 0
    if batch:
        yield batch


def _event(run: _Run, rank: tuple[int, int], tier: Tier, event_id: int) -> str:
    parent = "null" if run.parent is None else str(run.parent)
    blocks = ",".join(map(_block, run.names, run.locals, run.copies))
    return (
        f'{{"worker_id":{rank[0]},"storage_tier":"{STORAGE_TIERS[tier]}",'
        f'"event":{{"event_id":{event_id},"data":{{"stored":{{"parent_hash":{parent},'
        f'"start_position":null,"blocks":[{blocks}]}}}},"dp_rank":{rank[1]}}}}}'
    )


def _block(name: int, local: int, copies: int) -> str:
    extra = "" if copies == 1 else f',"copies":{copies}'
    return f'{{"block_hash":{name},"tokens_hash":{local},"mm_extra_info":null{extra}}}'


def _runs(snapshot: IndexSnapshot, holding: _Holding) -> Iterator[_Run]:
    """The events of one (slot, tier), parents before children."""
    nodes, names, copies, others = holding
    parents = snapshot.parent[nodes]
    breaks = np.flatnonzero(parents[1:] != nodes[:-1]) + 1
    bounds = [0, *breaks.tolist(), nodes.size]
    for start, stop in pairwise(bounds):
        for begin in range(start, stop, EVENT_BLOCKS_MAX):
            run = nodes[begin : min(stop, begin + EVENT_BLOCKS_MAX)]
            yield _Run(
                _parent_name(snapshot, names, run[0]),
                names[run].tolist(),
                snapshot.local[run].tolist(),
                [copies.get(node, 1) for node in run.tolist()] if copies else [1] * run.size,
            )
    for node, name, count in others:
        parent = _parent_name(snapshot, names, node)
        yield _Run(parent, [name], [int(snapshot.local[node])], [count])


def _parent_name(snapshot: IndexSnapshot, names: Hashes, node: int) -> int | None:
    parent = int(snapshot.parent[node])
    return None if parent == 0 else int(names[parent])


def _holding(snapshot: IndexSnapshot, order: Nodes, slot: int, tier: Tier) -> _Holding:
    """Nodes of (slot, tier) and the names its owner has for them and for their parents."""
    held = _plane(snapshot, slot, tier)[snapshot.holders[order]]
    nodes = order[held]
    mine = snapshot.records[snapshot.records["slot"] == slot]
    if not mine.size or not nodes.size:
        return _Holding(nodes, snapshot.engine, {}, [])
    names = _known_names(snapshot, mine, slot)
    here = mine[mine["tier"] == tier]
    anchors = here[here["kind"] == _ANCHOR]
    copies = dict(zip(anchors["key"].tolist(), anchors["count"].tolist(), strict=True))
    named = {node for node, count in copies.items() if count > 0}
    named |= set(nodes[~_plane(snapshot, slot, N_TIERS + tier)[snapshot.holders[nodes]]].tolist())
    copies = {node: count for node, count in copies.items() if count > 1}
    others = []
    aliases = here[here["kind"] == _ALIAS]
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


def _known_names(snapshot: IndexSnapshot, mine: NDArray[np.void], slot: int) -> Hashes:
    """A name by which the slot knows each node, the primary where it uses it in any tier."""
    aliases = mine[mine["kind"] == _ALIAS]
    anchors = mine[(mine["kind"] == _ANCHOR) & (mine["count"] > 0)]
    primary = np.zeros(snapshot.engine.size, np.bool_)
    primary[anchors["key"]] = True
    for tier in Tier:
        regular = _plane(snapshot, slot, tier) & ~_plane(snapshot, slot, N_TIERS + tier)
        primary |= regular[snapshot.holders]
    names = snapshot.engine.copy()
    foreign = aliases[~primary[aliases["node"]]]
    names[foreign["node"]] = foreign["key"]
    return names


def _plane(snapshot: IndexSnapshot, slot: int, plane: int) -> NDArray[np.bool_]:
    """[sets] whether the slot's bit is set in this plane."""
    word = snapshot.sets[:, plane, slot >> 6]
    bit: NDArray[np.bool_] = (word >> np.uint64(slot & 63)) & np.uint64(1) != 0
    return bit
