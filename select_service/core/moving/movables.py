"""The reservations of a rank, as a plan sees them."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Mask
from select_service.core.fleet.partition import Partition
from select_service.core.health.migration import Movable, Overlap
from select_service.core.load.booking import MoveWishes
from select_service.core.load.held_booking import Booking

Slots: TypeAlias = npt.NDArray[np.intp]
"""int64[n], of the targets."""


def movable_of(name: str, booking: Booking, wishes: MoveWishes, block_size: int) -> Movable:
    """One of them, of that name, without what it may and has at the targets.  O(1)"""
    return Movable(
        name,
        wishes.priority,
        booking.booked_at,
        booking.isl_tokens + block_size * booking.output_blocks,
        migratable=wishes.migratable,
    )


def overlap_of(wishes: MoveWishes, partition: Partition, slots: Slots) -> Overlap | None:
    """int32[n]: blocks of its prompt that ranks have; None: that is not known.

    O(blocks of its prompt + targets)
    """
    if not len(wishes.block_hashes):
        return None
    found: Overlap = partition.index.match(wishes.block_hashes)[slots, -1]
    return found


def allowed_of(wishes: MoveWishes, partition: Partition, slots: Slots) -> Mask | None:
    """bool[n]: where it may go by what its request said; None: everywhere."""
    if not wishes.is_bound:
        return None
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
    chosen: Mask = allowed[slots]
    return chosen


def _only(slot: int | None) -> Sequence[int]:
    return [] if slot is None else [slot]
