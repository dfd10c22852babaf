"""Where the reservations of a rank go.

A plan goes through them by priority and age, and books their blocks on the targets as it goes on.
If one worker has room for all of them, it is tried first for each (lockstep): requests that share
a prefix stay together.  Otherwise each goes where it is cheapest (scatter).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Mask
from select_service.core.health.move_cost import Method, MoveTerms
from select_service.core.health.plan_kernels import (
    IS_CARRIED,
    IS_NEAR,
    MISSING,
    MS,
    OVERLAP,
    RESULTS,
    choose,
)
from select_service.core.health.plan_targets import (
    PlanTargets,
    Target,
    plan_targets,
    worker_for_all,
)
from select_service.core.identity import Rank

NOT_MIGRATABLE, NO_ROOM = "not migratable", "no room"
Overlap = npt.NDArray[np.int32]
_NO_OVERLAP = np.zeros(0, np.int32)
_ALL_ALLOWED = np.zeros(0, np.bool_)


class Movable(NamedTuple):
    """A reservation of the rank that is left.

    tokens:  prompt and output that are known
    overlap: int32[n_targets], blocks of it that each target has; None: they have none
    allowed: bool[n_targets], which its constraints admit; None: all
    """

    id: str
    priority: int
    created: float
    tokens: int
    overlap: Overlap | None = None
    migratable: bool = True
    allowed: Mask | None = None


class Move(NamedTuple):
    """target: None if it is aborted, and why then says it;  ms: until the request goes on

    overlap_blocks: that the target has already
    """

    id: str
    target: Rank | None
    method: Method
    ms: float = 0.0
    missing_blocks: int = 0
    bytes_per_shard: int = 0
    lockstep: bool = False
    why: str | None = None
    overlap_blocks: int = 0


def plan(
    movables: Sequence[Movable], targets: Sequence[Target], terms: MoveTerms
) -> Iterator[Move]:
    """One move after the other, so that the caller can book each and stop between two.

    O(targets) each
    """
    by_rank = sorted(range(len(targets)), key=lambda at: targets[at].rank)
    planning = Planning(plan_targets([targets[at] for at in by_rank]), terms)
    found = [_reordered(movable, by_rank) for movable in movables]
    for movable in found:
        planning.consider(movable, movable.allowed)
    for movable in sorted(found, key=turn_of):
        yield planning.move(movable, movable.overlap, movable.allowed)


def turn_of(movable: Movable) -> tuple[int, float, str]:
    """By which those of one plan are sorted."""
    return -movable.priority, movable.created, movable.id


class Planning:
    """One plan.  All that are to be moved are considered first, then each is moved in its turn.

    What they may and have is said of the targets in their order here.
    """

    def __init__(self, targets: PlanTargets, terms: MoveTerms) -> None:
        """targets: is written"""
        self._targets, self._terms = targets, terms
        known = terms.readable and terms.block_bytes is not None
        self._carried_bytes = (terms.block_bytes or 0) if known else -1
        self._blocks = 0
        self._admits = np.ones(len(targets.ranks), np.bool_)
        self._first: tuple[int, int] | None = None
        """Those of the worker on which all have room."""
        self._results = np.zeros(RESULTS)

    def consider(self, movable: Movable, allowed: Mask | None) -> None:
        """It is to be moved, too, to where it may go.  O(1), O(targets) if that is said"""
        if movable.migratable:
            self._blocks += -(-movable.tokens // self._terms.block_size)
            if allowed is not None:
                self._admits &= allowed

    def move(self, movable: Movable, overlap: Overlap | None, allowed: Mask | None) -> Move:
        """To the cheapest place that has room, on the worker that has room for all if it can be.

        overlap, allowed: its own, as they are now.  O(targets)
        """
        if not movable.migratable:
            return Move(movable.id, None, Method.ABORT, why=NOT_MIGRATABLE)
        if self._first is None:
            found = worker_for_all(self._targets, self._blocks, self._admits)
            self._first = (0, 0) if found is None else found
        at = choose(
            self._targets.rows,
            *self._first,
            _NO_OVERLAP if overlap is None else overlap,
            _ALL_ALLOWED if allowed is None else allowed,
            movable.tokens,
            self._terms.block_size,
            self._carried_bytes,
            self._terms.transfer_ms_max,
            self._results,
        )
        return (
            Move(movable.id, None, Method.ABORT, why=NO_ROOM) if at < 0 else self._to(movable, at)
        )

    def _to(self, movable: Movable, at: int) -> Move:
        results = self._results.tolist()
        missing = int(results[MISSING])
        return Move(
            movable.id,
            self._targets.ranks[at],
            Method.TRANSFER if results[IS_CARRIED] else Method.REPREFILL,
            results[MS],
            missing,
            missing * (self._terms.block_bytes or 0),
            bool(results[IS_NEAR]),
            overlap_blocks=int(results[OVERLAP]),
        )


def _reordered(movable: Movable, order: Sequence[int]) -> Movable:
    """What is said of each target, in another order of them."""
    overlap, allowed = movable.overlap, movable.allowed
    return movable._replace(
        overlap=None if overlap is None else overlap[order].astype(np.int32),
        allowed=None if allowed is None else allowed[order],
    )
