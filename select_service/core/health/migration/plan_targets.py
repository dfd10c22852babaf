"""Migration targets as arrays that a plan updates."""

from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats, Mask
from select_service.core.health.migration.move_cost import PREFILL_TOKENS_PER_S, WorkerLink
from select_service.core.health.migration.target_choice_kernels import FIELDS, ROOM, WEIGHT
from select_service.core.identity import Rank

FILLABLE_SHARE = 0.95
"""Share of a rank's blocks that migrations may fill."""


class MigrationTarget(NamedTuple):
    """Candidate rank of a migration.

    total_blocks: capacity; None means unknown, and the room is unlimited
    active_blocks: number of blocks in use
    waiting: waiting prefill, tokens
    rate: learnt prefill rate, tokens/s
    """

    rank: Rank
    weight: float
    total_blocks: int | None
    active_blocks: int
    waiting: float
    link: WorkerLink
    rate: float = PREFILL_TOKENS_PER_S


class PlanTargets(NamedTuple):
    """Targets sorted by rank.

    rows: float64[n, FIELDS], see `target_choice_kernels`; written by the plan
    active: float64[n], active blocks
    workers: int64[n_workers], index of the first rank of each worker
    """

    ranks: Sequence[Rank]
    rows: npt.NDArray[np.float64]
    active: Floats
    workers: npt.NDArray[np.intp]


def build_plan_targets(targets: Sequence[MigrationTarget]) -> PlanTargets:
    """Build the arrays from targets sorted by rank."""
    rows = np.empty((len(targets), FIELDS))
    for row, t in zip(rows, targets, strict=True):
        total = inf if t.total_blocks is None else t.total_blocks
        free = free_blocks(total, t.active_blocks) if t.weight > 0.0 else -inf
        row[:] = free, t.waiting, t.rate, t.link.setup_ms, t.link.bandwidth, t.weight or 1.0
    ranks = [target.rank for target in targets]
    active = np.array([float(target.active_blocks) for target in targets])
    return PlanTargets(ranks, rows, active, _workers_of(ranks))


def free_blocks(total_blocks: float, active_blocks: float) -> float:
    """Return the number of blocks that migrations may fill."""
    return (
        total_blocks if total_blocks == inf else int(FILLABLE_SHARE * total_blocks) - active_blocks
    )


def _workers_of(ranks: Sequence[Rank]) -> npt.NDArray[np.intp]:
    """Return int64[n_workers], the index of each worker's first rank; ranks of a worker are
    adjacent.
    """
    groups = groupby(range(len(ranks)), key=lambda at: ranks[at].worker_id)
    return np.array([next(group) for _, group in groups], np.intp)


def find_worker_for_all(targets: PlanTargets, blocks: int, admits: Mask) -> tuple[int, int] | None:
    """Return begin and end of the emptiest worker that admits and has room for all reservations.

    The emptiest worker has the fewest active blocks by weight of its ranks.
    None means no such worker. admits: bool[n]. O(n)
    """
    free, starts = targets.rows[:, ROOM], targets.workers
    if not len(starts):
        return None
    usable = free > -inf
    # reduceat sums the adjacent ranks of each worker without a Python loop.
    counts = np.add.reduceat(usable, starts, dtype=np.int64)
    active = np.add.reduceat(np.where(usable, targets.active, 0.0), starts)
    good = np.add.reduceat(free.clip(0.0), starts) >= blocks
    # Unusable ranks must not veto their worker.
    good &= np.logical_and.reduceat(admits | ~usable, starts) & (counts > 0)
    if not good.any():
        return None
    weights = np.add.reduceat(np.where(usable, targets.rows[:, WEIGHT], 0.0), starts)
    # One block more, so that the weight also counts for idle workers.
    blocks_by_weight = (active + counts) / np.where(counts > 0, weights, 1.0)
    best = int(np.where(good, blocks_by_weight, inf).argmin())
    end = starts[best + 1] if best + 1 < len(starts) else len(free)
    return int(starts[best]), int(end)
