"""Reservations of a rank as input of a migration plan."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Mask
from select_service.core.health.migration.migration_plan import MovableReservation, OverlapBlocks
from select_service.core.load.new_reservation import MoveConstraints
from select_service.core.load.reservation_view import ReservationView
from select_service.core.registry.fleet.partition import Partition

TargetSlots: TypeAlias = npt.NDArray[np.intp]
"""int64[n], slots of the targets."""


def make_movable(
    name: str, booking: ReservationView, constraints: MoveConstraints, block_size: int
) -> MovableReservation:
    """Return the reservation as plan input, without its per-target arrays. O(1)"""
    return MovableReservation(
        name,
        constraints.priority,
        booking.booked_at,
        booking.isl_tokens + block_size * booking.output_blocks,
        migratable=constraints.migratable,
    )


def match_overlap(
    constraints: MoveConstraints, partition: Partition, slots: TargetSlots
) -> OverlapBlocks | None:
    """Return int32[n]: prompt blocks cached at each target; None if the block hashes are unknown.

    O(prompt blocks + targets)
    """
    if not len(constraints.block_hashes):
        return None
    # The last column counts all tiers: a transfer can read blocks from any of them.
    found: OverlapBlocks = partition.index.match(constraints.block_hashes)[slots, -1]
    return found


def allowed_targets(
    constraints: MoveConstraints, partition: Partition, slots: TargetSlots
) -> Mask | None:
    """Return bool[n]: targets within the request's constraints; None means all."""
    if not constraints.is_restrictive:
        return None
    table = partition.table
    allowed = np.zeros(table.n_slots, np.bool_)
    if constraints.pinned is not None:
        slot = table.find_slot(constraints.pinned)
        allowed[_slot_list(slot)] = True
    elif constraints.allowed is not None:
        allowed[table.slots_of_any(constraints.allowed)] = True
    else:
        allowed[:] = True
    if constraints.required:
        allowed &= table.ranks_with_taints(constraints.required)
    chosen: Mask = allowed[slots]
    return chosen


def _slot_list(slot: int | None) -> Sequence[int]:
    return [] if slot is None else [slot]
