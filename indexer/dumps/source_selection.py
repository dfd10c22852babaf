"""Selection among dumps with the same ranks: the source of each rank.

A rank that one source has comes from there.  Of two sources, the newer one is taken: the source
with the later live batch, or, if unknown or nearly equal, the source with the higher position of
the stream, or the first in order.

The higher position is not always newer, because an engine that restarts counts from 0 again.  So a
source that is newer by the clock with a lower position shows a new life, and the blocks of the
other source are gone.  The same holds for equal positions with different last batches.  A file is
from the past: a live source with a lower position than a file also shows a new life, even if the
clock of either is unknown.

Within one life, a source that started to follow a stream recently is up to date and holds next to
nothing, so a source with less than FULL_ENOUGH of the other's blocks loses to the fuller one: the
stream of the rank continues from the place in that dump, and a replay brings the rest.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps.dump_time import CLOCK_TOLERANCE_S
from indexer.dumps.recovered_blocks import DumpedPartition, RankKey, narrow_to_ranks
from indexer.index.index_snapshot import StreamPosition
from indexer.tiers import N_TIERS

FULL_ENOUGH = 0.5

Dump = Sequence[DumpedPartition]


class _Candidate(NamedTuple):
    """Content of a dump for a rank; `at` is (source, partition of it)."""

    at: tuple[int, int]
    place: StreamPosition | None
    blocks: int
    live_at: float | None
    tells_times: bool
    is_past: bool


def select_sources(live: Sequence[Dump], past: Sequence[Dump] = ()) -> list[list[DumpedPartition]]:
    """Return the parts to take from each source, live parts first; no rank of a partition repeats.

    past: dumps from files, outdated since they were written.  Partitions are the same when name and
    block size are.  O(blocks of all sources).
    """
    sources = [*live, *past]
    told: dict[tuple[str, int, RankKey], list[_Candidate]] = {}
    for i, dump in enumerate(sources):
        for j, part in enumerate(dump):
            for rank, mine in _list_candidates(part, (i, j), is_past=i >= len(live)):
                told.setdefault((part.name, part.block_size, rank), []).append(mine)
    taken: list[list[dict[RankKey, int]]] = [[{} for _ in dump] for dump in sources]
    for (_, _, rank), candidates in told.items():
        best = candidates[0]
        for other in candidates[1:]:
            best = _better_candidate(best, other)
        i, j = best.at
        taken[i][j][rank] = sources[i][j].ranks[rank]
    return [
        [
            narrow_to_ranks(part._replace(ranks=ranks))
            for part, ranks in zip(*each, strict=True)
            if ranks
        ]
        for each in zip(sources, taken, strict=True)
    ]


def _better_candidate(first: _Candidate, second: _Candidate) -> _Candidate:
    """Return the better of two candidates; `first` comes from the source named first."""
    at_one_place = _is_same_number(first.place, second.place)
    # The same batches are applied in both: only completeness differs.
    if at_one_place and not _are_of_two_lives(first.place, second.place):
        return max(first, second, key=lambda each: each.blocks)
    newer, older = first, second
    if _is_newer(second, first):
        newer, older = second, first
    if at_one_place or _is_behind(newer, older):
        return newer  # the engine has restarted in between
    return newer if newer.blocks >= FULL_ENOUGH * older.blocks else older


def _is_newer(this: _Candidate, other: _Candidate) -> bool:
    """Return whether `this` is newer; False if nothing shows it."""
    if this.live_at is not None and other.live_at is not None:
        if abs(this.live_at - other.live_at) > CLOCK_TOLERANCE_S:
            return this.live_at > other.live_at
    elif this.is_past != other.is_past:
        live, past = (other, this) if this.is_past else (this, other)
        # A source that records times, but none for this rank, has its place from a replay or from
        # others.
        if _is_behind(live, past) and (live.live_at is not None or not live.tells_times):
            return this is live
    return _is_behind(other, this)


def _is_behind(this: _Candidate, other: _Candidate) -> bool:
    return (
        this.place is not None
        and other.place is not None
        and this.place.sort_key < other.place.sort_key
    )


def _is_same_number(this: StreamPosition | None, other: StreamPosition | None) -> bool:
    return this is not None and other is not None and this.sort_key == other.sort_key


def _are_of_two_lives(this: StreamPosition | None, other: StreamPosition | None) -> bool:
    """Return whether two places with one number are known to have different last batches."""
    digests = [None if place is None else place.digest for place in (this, other)]
    return None not in digests and digests[0] != digests[1]


def _list_candidates(
    part: DumpedPartition, at: tuple[int, int], *, is_past: bool
) -> Iterator[tuple[RankKey, _Candidate]]:
    blocks = blocks_by_slot(part)
    live_at = part.snapshot.live_at
    for rank, slot in part.ranks.items():
        time = None if live_at is None else live_at.get(slot)
        place = part.snapshot.positions.get(slot)
        told = live_at is not None
        yield rank, _Candidate(at, place, int(blocks[slot]), time, told, is_past)


def blocks_by_slot(part: DumpedPartition) -> NDArray[np.int64]:
    """Return int64 [64 * words]: distinct blocks that each slot of the snapshot holds in any
    tier.
    """
    snapshot = part.snapshot
    n_sets, _, words = snapshot.sets.shape
    nodes = np.bincount(snapshot.holders, minlength=n_sets)
    held = np.bitwise_or.reduce(snapshot.sets[:, :N_TIERS], axis=1)
    counts = np.zeros(64 * words, np.int64)
    for slot in part.ranks.values():
        bits = held[:, slot >> 6] >> np.uint64(slot & 63) & np.uint64(1)
        counts[slot] = nodes @ bits.astype(np.int64)
    return counts
