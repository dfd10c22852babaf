"""Migration plan: target ranks for the reservations of a rank.

A plan handles reservations by priority and age, and books their blocks on the targets on the way.
If one worker has room for all reservations, that worker is tried first for each (lockstep), so that
requests with a common prefix stay together. Otherwise each reservation goes to its cheapest target
(scatter).
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Mask
from select_service.core.health.migration.move_cost import MoveMethod, MoveTerms
from select_service.core.health.migration.plan_targets import (
    PlanTargets,
    find_worker_for_all,
)
from select_service.core.health.migration.target_choice_kernels import (
    BEGIN,
    BLOCK_BYTES,
    BLOCK_SIZE,
    CARRY_MS_MAX,
    END,
    IS_CARRIED,
    IS_NEAR,
    MISSING,
    MOVE_FIELDS,
    MS,
    OVERLAP,
    RESULTS,
    TOKENS,
    choose_target,
)
from select_service.core.identity import Rank

NOT_MIGRATABLE, NO_ROOM = "not migratable", "no room"
OverlapBlocks = npt.NDArray[np.int32]
_NO_OVERLAP = np.zeros(0, np.int32)
_ALL_ALLOWED = np.zeros(0, np.bool_)


class MovableReservation(NamedTuple):
    """Reservation of the rank being emptied.

    tokens: number of known prompt and output tokens
    """

    id: str
    priority: int
    created: float
    tokens: int
    migratable: bool = True


class PlannedMove(NamedTuple):
    """Planned move of a reservation.

    target: new rank; None means that the reservation is aborted because of `why`
    ms: estimated time until the request continues
    overlap_blocks: number of blocks already cached at the target
    leg: leg of the pair with this id; None for a reservation on one rank
    """

    id: str
    target: Rank | None
    method: MoveMethod
    ms: float = 0.0
    missing_blocks: int = 0
    bytes_per_shard: int = 0
    lockstep: bool = False
    why: str | None = None
    overlap_blocks: int = 0
    leg: Literal["prefill", "decode"] | None = None


def move_order(movable: MovableReservation) -> tuple[int, float, str]:
    """Return the sort key of the moves in a plan."""
    return -movable.priority, movable.created, movable.id


class MigrationPlan:
    """Migration plan in progress: first consider all reservations, then move each in order.

    Masks and overlaps refer to the order of the targets here.
    """

    def __init__(self, targets: PlanTargets, terms: MoveTerms) -> None:
        """Create a plan; targets is modified by the plan."""
        self._targets, self._terms = targets, terms
        is_transferable = terms.readable and terms.block_bytes is not None
        self._blocks = 0
        self._admits = np.ones(len(targets.ranks), np.bool_)
        self._move = np.zeros(MOVE_FIELDS)
        """Move for the kernel; its range are the ranks of the worker with room for all."""
        self._move[BLOCK_SIZE], self._move[CARRY_MS_MAX] = terms.block_size, terms.transfer_ms_max
        self._move[BLOCK_BYTES] = (terms.block_bytes or 0) if is_transferable else -1
        self._has_preferred_range = False
        self._results = np.zeros(RESULTS)

    def consider_reservation(self, movable: MovableReservation, allowed: Mask | None) -> None:
        """Add a reservation to the plan. O(1), or O(targets) if `allowed` is given"""
        if movable.migratable:
            self._blocks += -(-movable.tokens // self._terms.block_size)
            if allowed is not None:
                # Lockstep needs one worker that every reservation may use.
                self._admits &= allowed

    def plan_move(
        self, movable: MovableReservation, overlap: OverlapBlocks | None, allowed: Mask | None
    ) -> PlannedMove:
        """Choose the cheapest target with room, preferring the worker that has room for all.

        overlap: int32[n_targets], blocks of the reservation cached at each target; None: no overlap
        allowed: bool[n_targets], targets within the reservation's constraints; None means all
        O(targets)
        """
        if not movable.migratable:
            return PlannedMove(movable.id, None, MoveMethod.ABORT, why=NOT_MIGRATABLE)
        # Chosen at the first move only: by then every reservation of the plan has been considered.
        if not self._has_preferred_range:
            found = find_worker_for_all(self._targets, self._blocks, self._admits)
            # An empty range means scatter: the kernel then searches all targets at once.
            self._move[BEGIN], self._move[END] = (0, 0) if found is None else found
            self._has_preferred_range = True
        self._move[TOKENS] = movable.tokens
        at = choose_target(
            self._targets.rows,
            self._move,
            _NO_OVERLAP if overlap is None else overlap,
            _ALL_ALLOWED if allowed is None else allowed,
            self._results,
        )
        return (
            PlannedMove(movable.id, None, MoveMethod.ABORT, why=NO_ROOM)
            if at < 0
            else self._build_move(movable, at)
        )

    def _build_move(self, movable: MovableReservation, at: int) -> PlannedMove:
        results = self._results.tolist()
        missing = int(results[MISSING])
        return PlannedMove(
            movable.id,
            self._targets.ranks[at],
            MoveMethod.TRANSFER if results[IS_CARRIED] else MoveMethod.REPREFILL,
            results[MS],
            missing,
            missing * (self._terms.block_bytes or 0),
            bool(results[IS_NEAR]),
            overlap_blocks=int(results[OVERLAP]),
        )
