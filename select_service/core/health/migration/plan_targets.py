"""Migration targets as arrays that a plan updates."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats, Mask
from select_service.core.health.migration.target_choice_kernels import ROOM, WEIGHT
from select_service.core.identity import Rank

FILLABLE_SHARE = 0.95
"""Share of a rank's blocks that migrations may fill."""


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
