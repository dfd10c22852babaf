"""The reservations of a rank, as a plan sees them."""

from collections.abc import Sequence

import numpy as np

from select_service.core.arrays import Mask
from select_service.core.fleet.partition import Partition
from select_service.core.health.migration import Movable
from select_service.core.load.held_booking import Booking
from select_service.core.load.move_wishes import MoveWishes
from select_service.core.moving.targets import Targets


def movable_of(
    name: str, booking: Booking, wishes: MoveWishes, partition: Partition, there: Targets
) -> Movable:
    """One of them, of that name.  O(blocks of its prompt + targets)"""
    overlap = None
    if len(wishes.block_hashes):
        matched = partition.index.match(wishes.block_hashes)[:, -1]
        if matched.any():
            overlap = matched[there.slots].astype(np.float64)
    return Movable(
        id=name,
        priority=wishes.priority,
        created=booking.booked_at,
        tokens=booking.isl_tokens + partition.block_size * booking.output_blocks,
        overlap=overlap,
        migratable=wishes.migratable,
        allowed=_allowed(wishes, partition, there) if wishes.is_bound else None,
    )


def _allowed(wishes: MoveWishes, partition: Partition, there: Targets) -> Mask:
    """bool[n_targets]: where it may go by what its request said."""
    table = partition.table
    allowed = np.zeros(table.n_slots, np.bool_)
    if wishes.pinned is not None:
        slot = table.find(wishes.pinned)
        allowed[_only(slot)] = True
    elif wishes.allowed is not None:
        allowed[table.slots_of_any(wishes.allowed)] = True
    else:
        allowed[:] = True
    if wishes.required:
        allowed &= table.having_all(wishes.required)
    chosen: Mask = allowed[there.slots]
    return chosen


def _only(slot: int | None) -> Sequence[int]:
    return [] if slot is None else [slot]
