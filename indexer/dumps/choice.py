"""Several dumps that tell of the same ranks: which one is believed, rank by rank.

A rank that one source has comes from there.  Of two, the newer one is taken: the one that has heard
the stream later, or, where that is not known or much the same, whose stream had come further, or
the source that is named first.

The one that had come further need not be the newer, because an engine that restarts counts from 0
again.  So one that is newer by the clock and not so far tells of a new life, and the other of
blocks that are gone.  So does one at the same number whose last batch was another.  A file is of
the past: a live source behind it shows the same even when the clock of one of them is not known.

Within one life, a source that follows a stream since a short while is up to date and holds next to
nothing, so one that has less than FULL_ENOUGH of the other's blocks is passed over for the fuller
one: the stream of the rank goes on from the place that comes along, and a replay brings what is
missing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.dumps.held_blocks import DumpedPartition, RankKey, narrowed
from indexer.dumps.moment import CLOCK_DOUBT_S
from indexer.index.snapshot import Place
from indexer.tiers import N_TIERS

FULL_ENOUGH = 0.5

Dump = Sequence[DumpedPartition]


class _Candidate(NamedTuple):
    """One dump's account of one rank; `at` is (source, partition of it)."""

    at: tuple[int, int]
    place: Place | None
    blocks: int
    live_at: float | None
    tells_times: bool
    is_past: bool


def best_of(live: Sequence[Dump], past: Sequence[Dump] = ()) -> list[list[DumpedPartition]]:
    """What to take of each source, first the live ones; no rank of a partition is taken twice.

    past: of files, which nobody has kept up to date.  Partitions are the same when name and block
    size are.  O(blocks of all sources).
    """
    sources = [*live, *past]
    told: dict[tuple[str, int, RankKey], list[_Candidate]] = {}
    for i, dump in enumerate(sources):
        for j, part in enumerate(dump):
            for rank, mine in _candidates(part, (i, j), is_past=i >= len(live)):
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
    at_one_place = _is_same_number(first.place, second.place)
    if at_one_place and not _are_of_two_lives(first.place, second.place):
        return max(first, second, key=lambda each: each.blocks)
    newer, older = first, second
    if _is_newer(second, first):
        newer, older = second, first
    if at_one_place or _is_behind(newer, older):
        return newer  # the engine has restarted in between
    return newer if newer.blocks >= FULL_ENOUGH * older.blocks else older


def _is_newer(this: _Candidate, other: _Candidate) -> bool:
    """False when nothing tells it."""
    if this.live_at is not None and other.live_at is not None:
        if abs(this.live_at - other.live_at) > CLOCK_DOUBT_S:
            return this.live_at > other.live_at
    elif this.is_past != other.is_past:
        live, past = (other, this) if this.is_past else (this, other)
        # One that tells times, but none of this rank, has its place from a replay or from others.
        if _is_behind(live, past) and (live.live_at is not None or not live.tells_times):
            return this is live
    return _is_behind(other, this)


def _is_behind(this: _Candidate, other: _Candidate) -> bool:
    return this.place is not None and other.place is not None and this.place.at < other.place.at


def _is_same_number(this: Place | None, other: Place | None) -> bool:
    return this is not None and other is not None and this.at == other.at


def _are_of_two_lives(this: Place | None, other: Place | None) -> bool:
    """Of two places with one number: is it known that their last batches differ?"""
    digests = [None if place is None else place.digest for place in (this, other)]
    return None not in digests and digests[0] != digests[1]


def _candidates(
    part: DumpedPartition, at: tuple[int, int], *, is_past: bool
) -> Iterator[tuple[RankKey, _Candidate]]:
    blocks = blocks_by_slot(part)
    live_at = part.snapshot.live_at
    for rank, slot in part.ranks.items():
        time = None if live_at is None else live_at.get(slot)
        place = part.snapshot.places.get(slot)
        told = live_at is not None
        yield rank, _Candidate(at, place, int(blocks[slot]), time, told, is_past)


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
