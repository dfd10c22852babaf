"""The ranks where reservations may go, as arrays that a plan books on."""

from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Floats, Mask
from select_service.core.health.move_cost import PREFILL_TOKENS_PER_S, Link
from select_service.core.health.plan_kernels import FIELDS, ROOM
from select_service.core.identity import Rank

ROOM_SHARE = 0.95
"""Of the blocks of a rank, that moves may fill."""


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


class PlanTargets(NamedTuple):
    """By rank.

    rows:    float64[n, FIELDS], see `plan_kernels`; written by the plan
    active:  float64[n], active blocks
    workers: int64[n_workers], where the ranks of each begin
    """

    ranks: Sequence[Rank]
    rows: npt.NDArray[np.float64]
    active: Floats
    workers: npt.NDArray[np.intp]


def plan_targets(targets: Sequence[Target]) -> PlanTargets:
    """They are sorted already."""
    rows = np.empty((len(targets), FIELDS))
    for row, t in zip(rows, targets, strict=True):
        total = inf if t.total_blocks is None else t.total_blocks
        room = room_of(total, t.active_blocks) if t.weight > 0.0 else -inf
        row[:] = room, t.waiting, t.rate, t.link.setup_ms, t.link.bandwidth, t.weight or 1.0
    ranks = [target.rank for target in targets]
    active = np.array([float(target.active_blocks) for target in targets])
    return PlanTargets(ranks, rows, active, _workers_of(ranks))


def room_of(total_blocks: float, active_blocks: float) -> float:
    """That moves may fill."""
    return total_blocks if total_blocks == inf else int(ROOM_SHARE * total_blocks) - active_blocks


def _workers_of(ranks: Sequence[Rank]) -> npt.NDArray[np.intp]:
    """int64[n_workers]: where the ranks of each begin, which lie together."""
    groups = groupby(range(len(ranks)), key=lambda at: ranks[at].worker_id)
    return np.array([next(group) for _, group in groups], np.intp)


def worker_for_all(targets: PlanTargets, blocks: int, admits: Mask) -> tuple[int, int] | None:
    """Where the ranks of the emptiest worker begin and end on which all have room and may go.

    None: there is none.  admits: bool[n].  O(n)
    """
    room, starts = targets.rows[:, ROOM], targets.workers
    if not len(starts):
        return None
    usable = room > -inf
    counts = np.add.reduceat(usable, starts, dtype=np.int64)
    active = np.add.reduceat(np.where(usable, targets.active, 0.0), starts)
    good = np.add.reduceat(room.clip(0.0), starts) >= blocks
    good &= np.logical_and.reduceat(admits | ~usable, starts) & (counts > 0)
    if not good.any():
        return None
    best = int(np.where(good, active / np.maximum(counts, 1), inf).argmin())
    end = starts[best + 1] if best + 1 < len(starts) else len(room)
    return int(starts[best]), int(end)
