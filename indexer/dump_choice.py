"""Several dumps that tell of the same ranks: which one is believed, rank by rank.

A rank that one source has comes from there.  Of two, the newer one is taken, that is the one whose
stream had come further; where that is not known of both, the source that is named first.  But a
source that follows a stream since a short while is up to date and holds next to nothing, so one
that has less than FULL_ENOUGH of the other's blocks is passed over for the fuller one: the stream
of the rank goes on from the place that comes along, and a replay brings what is missing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.held_blocks import DumpedPartition, RankKey, narrowed
from indexer.index_snapshot import Place
from indexer.tiers import N_TIERS

FULL_ENOUGH = 0.5

Dump = Sequence[DumpedPartition]


class _Candidate(NamedTuple):
    """One dump's account of one rank; `at` is (source, partition of it)."""

    at: tuple[int, int]
    place: Place | None
    blocks: int


def best_of(sources: Sequence[Dump]) -> list[list[DumpedPartition]]:
    """What to take of each source; no rank of a partition is taken twice.

    Partitions are the same when name and block size are.  O(blocks of all sources).
    """
    told: dict[tuple[str, int, RankKey], list[_Candidate]] = {}
    for i, dump in enumerate(sources):
        for j, part in enumerate(dump):
            blocks = blocks_by_slot(part)
            for rank, slot in part.ranks.items():
                place = part.snapshot.places.get(slot)
                mine = _Candidate((i, j), place, int(blocks[slot]))
                told.setdefault((part.name, part.block_size, rank), []).append(mine)
    taken: list[list[dict[RankKey, int]]] = [[{} for _ in dump] for dump in sources]
    for (_, _, rank), candidates in told.items():
        best = candidates[0]
        for other in candidates[1:]:
            best = _better(best, other)
        i, j = best.at
        taken[i][j][rank] = sources[i][j].ranks[rank]
    return [
        [narrowed(part._replace(ranks=ranks)) for part, ranks in zip(*each, strict=True) if ranks]
        for each in zip(sources, taken, strict=True)
    ]


def _better(first: _Candidate, second: _Candidate) -> _Candidate:
    """`first` is that of the source named first."""
    comparable = first.place is not None and second.place is not None
    if comparable and first.place == second.place:
        return max(first, second, key=lambda each: each.blocks)
    newer, older = first, second
    if first.place is not None and second.place is not None and second.place > first.place:
        newer, older = second, first
    return newer if newer.blocks >= FULL_ENOUGH * older.blocks else older


def blocks_by_slot(part: DumpedPartition) -> NDArray[np.int64]:
    """int64 [64 * words]: distinct blocks that each slot of the snapshot holds in any tier."""
    snapshot = part.snapshot
    n_sets, _, words = snapshot.sets.shape
    nodes = np.bincount(snapshot.holders, minlength=n_sets)
    held = np.bitwise_or.reduce(snapshot.sets[:, :N_TIERS], axis=1)
    counts = np.zeros(64 * words, np.int64)
    for slot in part.ranks.values():
        bits = held[:, slot >> 6] >> np.uint64(slot & 63) & np.uint64(1)
        counts[slot] = nodes @ bits.astype(np.int64)
    return counts
