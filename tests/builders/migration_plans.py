"""Plans of migrations to given targets, computed as in the service."""

from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np

from select_service.core.health.migration.migration_plan import (
    MigrationPlan,
    MovableReservation,
    move_order,
)
from select_service.core.health.migration.move_cost import PREFILL_TOKENS_PER_S, WorkerLink
from select_service.core.health.migration.plan_targets import FILLABLE_SHARE, PlanTargets
from select_service.core.health.migration.target_choice_kernels import FIELDS
from select_service.core.identity import Rank


class GivenTarget(NamedTuple):
    """Rank that takes reservations.

    total_blocks: number of blocks; None means unlimited room
    rate: prefill rate, tokens per second
    """

    rank: Rank
    weight: float
    total_blocks: int | None
    active_blocks: int
    waiting: float
    link: WorkerLink
    rate: float = PREFILL_TOKENS_PER_S


class GivenReservation(NamedTuple):
    """Reservation with the blocks cached at each target and the allowed targets."""

    id: str
    priority: int
    created: float
    tokens: int
    overlap: np.ndarray | None = None
    migratable: bool = True
    allowed: np.ndarray | None = None


def plan_moves(reservations, targets, terms):
    """Yield the moves in the order of the plan."""
    # Sorted by rank, as the snapshots of the service are.
    by_rank = sorted(range(len(targets)), key=lambda at: targets[at].rank)
    planning = MigrationPlan(_plan_targets([targets[at] for at in by_rank]), terms)
    found = []
    for given in reservations:
        overlap = None if given.overlap is None else given.overlap[by_rank].astype(np.int32)
        allowed = None if given.allowed is None else given.allowed[by_rank]
        movable = MovableReservation(*given[:4], given.migratable)
        planning.consider_reservation(movable, allowed)
        found.append((movable, overlap, allowed))
    for each in sorted(found, key=lambda each: move_order(each[0])):
        yield planning.plan_move(*each)


def _plan_targets(targets):
    rows = np.empty((len(targets), FIELDS))
    for row, t in zip(rows, targets, strict=True):
        total = inf if t.total_blocks is None else int(FILLABLE_SHARE * t.total_blocks)
        free = total - t.active_blocks if t.weight > 0.0 else -inf
        row[:] = free, t.waiting, t.rate, t.link.setup_ms, t.link.bandwidth, t.weight or 1.0
    ranks = [target.rank for target in targets]
    active = np.array([float(target.active_blocks) for target in targets])
    groups = groupby(range(len(ranks)), key=lambda at: ranks[at].worker_id)
    return PlanTargets(ranks, rows, active, np.array([next(group) for _, group in groups], np.intp))
