"""Where the reservations of a rank go.

A plan goes through them by priority and age, and books their blocks on the targets as it goes on.
If one worker has room for all of them, it is tried first for each (lockstep): requests that share
a prefix stay together.  Otherwise each goes where it is cheapest (scatter).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from statistics import fmean
from typing import NamedTuple

import numpy as np

from select_service.core.arrays import Floats, Mask
from select_service.core.health.move_cost import (
    PREFILL_TOKENS_PER_S,
    Link,
    Method,
    MoveTerms,
    move_cost,
)
from select_service.core.identity import Rank

ROOM_SHARE = 0.95
"""Of the blocks of a rank, that moves may fill."""
NOT_MIGRATABLE, NO_ROOM = "not migratable", "no room"


class Movable(NamedTuple):
    """A reservation of the rank that is left.

    tokens:  prompt and output that are known
    overlap: float64[n_targets], blocks of it that each target has; None: they have none
    allowed: bool[n_targets], which its constraints admit; None: all
    """

    id: str
    priority: int
    created: float
    tokens: int
    overlap: Floats | None = None
    migratable: bool = True
    allowed: Mask | None = None


class Target(NamedTuple):
    """Where one may go.

    total_blocks: None: unknown, there is room;  active_blocks: of them, in use
    waiting: prefill tokens before it;  rate: learnt, in prefill tokens/s
    """

    rank: Rank
    weight: float
    total_blocks: int | None
    active_blocks: int
    waiting: float
    link: Link
    rate: float = PREFILL_TOKENS_PER_S


class Move(NamedTuple):
    """target: None if it is aborted, and why then says it;  ms: until the request goes on"""

    id: str
    target: Rank | None
    method: Method
    ms: float = 0.0
    missing_blocks: int = 0
    bytes_per_shard: int = 0
    lockstep: bool = False
    why: str | None = None


def plan(
    movables: Sequence[Movable], targets: Sequence[Target], terms: MoveTerms
) -> Iterator[Move]:
    """One move after the other, so that the caller can book each and stop between two.

    O(targets) each
    """
    ordered = sorted(movables, key=lambda m: (-m.priority, m.created, m.id))
    planning = _Planning(targets, terms)
    together = planning.worker_for_all([m for m in ordered if m.migratable])
    for movable in ordered:
        if movable.migratable:
            yield planning.move(movable, together)
        else:
            yield Move(movable.id, None, Method.ABORT, why=NOT_MIGRATABLE)


class _Planning:
    """The targets as arrays, by rank, and what the plan has booked on them so far."""

    def __init__(self, targets: Sequence[Target], terms: MoveTerms) -> None:
        self._terms = terms
        by_rank = sorted(range(len(targets)), key=lambda at: targets[at].rank)
        self._given = np.array([at for at in by_rank if targets[at].weight > 0.0], np.intp)
        """Where each is among those that were given."""
        self._targets = usable = [targets[at] for at in self._given]
        self._room = _floats(_room(t) for t in usable)
        self._waiting = _floats(t.waiting for t in usable)
        self._ms_per_token = _floats(1000.0 / t.rate for t in usable)
        self._setup_ms = _floats(t.link.setup_ms for t in usable)
        self._ms_per_block = _floats(_ms_per_block(t, terms) for t in usable)
        self._per_weight = _floats(1.0 / t.weight for t in usable)
        self._none = np.zeros(len(usable))

    def worker_for_all(self, movables: Sequence[Movable]) -> slice | None:
        """The ranks of the emptiest worker on which all have room and may go; None: there is none.

        O(movables + targets)
        """
        blocks = sum(self._blocks(m) for m in movables)
        admits = np.ones(len(self._targets), np.bool_)
        for movable in movables:
            if movable.allowed is not None:
                admits &= movable.allowed[self._given]
        best, best_active = None, inf
        for ranks in self._workers():
            active = fmean(t.active_blocks for t in self._targets[ranks])
            fits = self._room[ranks].clip(0.0).sum() >= blocks
            if active < best_active and fits and admits[ranks].all():
                best, best_active = ranks, active
        return best

    def _workers(self) -> Iterator[slice]:
        """The ranks of each lie together."""
        start = 0
        for _, ranks in groupby(self._targets, key=lambda t: t.rank.worker_id):
            end = start + len(list(ranks))
            yield slice(start, end)
            start = end

    def move(self, movable: Movable, together: slice | None) -> Move:
        """The cheapest place that has room, on the worker that has room for all if it can be."""
        near = None if together is None else self._cheapest(movable, together)
        at = self._cheapest(movable, slice(0, None)) if near is None else near
        if at is None:
            return Move(movable.id, None, Method.ABORT, why=NO_ROOM)
        return self._booked(movable, at, lockstep=near is not None)

    def _cheapest(self, movable: Movable, among: slice) -> int | None:
        """None: nobody has room."""
        if among.stop == among.start + 1:
            return among.start if self._fits(movable, among.start) else None
        terms, blocks, given = self._terms, self._blocks(movable), self._given[among]
        overlap = self._none[among] if movable.overlap is None else movable.overlap[given]
        ms = movable.tokens - overlap * terms.block_size
        np.maximum(ms, 0.0, out=ms)
        ms += self._waiting[among]
        ms *= self._ms_per_token[among]
        if terms.readable and terms.block_bytes is not None:
            np.minimum(ms, self._carry_ms(blocks - overlap, among), out=ms)
        ms *= self._per_weight[among]
        ms[self._room[among] < blocks] = inf
        if movable.allowed is not None:
            ms[~movable.allowed[given]] = inf
        if not len(ms):
            return None
        at, first = int(ms.argmin()), among.start
        return None if ms[at] == inf else int(first + at)

    def _fits(self, movable: Movable, at: int) -> bool:
        """May it go to this one, and is there room?"""
        allowed = movable.allowed is None or bool(movable.allowed[self._given[at]])
        return allowed and bool(self._room[at] >= self._blocks(movable))

    def _carry_ms(self, missing: Floats, among: slice) -> Floats:
        """inf: it would take too long."""
        ms = missing * self._ms_per_block[among]
        ms += self._setup_ms[among]
        ms[missing <= 0.0] = 0.0
        ms[ms > self._terms.transfer_ms_max] = inf
        return ms

    def _booked(self, movable: Movable, at: int, lockstep: bool) -> Move:
        target = self._targets[at]
        overlap = 0 if movable.overlap is None else int(movable.overlap[self._given[at]])
        waiting = float(self._waiting[at])
        cost = move_cost(self._terms, movable.tokens, overlap, target.link, waiting, target.rate)
        self._room[at] -= cost.blocks
        if cost.method is Method.REPREFILL:
            self._waiting[at] += max(0, movable.tokens - overlap * self._terms.block_size)
        return Move(
            movable.id,
            target.rank,
            cost.method,
            cost.ms,
            cost.missing_blocks,
            cost.bytes_per_shard,
            lockstep,
        )

    def _blocks(self, movable: Movable) -> int:
        return -(-movable.tokens // self._terms.block_size)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


def _room(target: Target) -> float:
    if target.total_blocks is None:
        return inf
    return float(int(ROOM_SHARE * target.total_blocks) - target.active_blocks)


def _ms_per_block(target: Target, terms: MoveTerms) -> float:
    return (terms.block_bytes or 0) / target.link.bandwidth * 1000.0
