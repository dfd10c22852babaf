"""Ranks with room for waiting requests."""

import numpy as np

from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.headroom import Headroom, compute_headroom
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.array_types import Mask
from select_service.core.registry.fleet.partition import Partition


def mask_to_int(mask: Mask) -> int:
    """Return a mask as an integer, with bit s for slot s."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def leave_awaited(free: Mask, room: Mask, awaited: int) -> Mask:
    """Return the ranks among which a request with room chooses, without ranks that earlier requests
    wait for.

    free: its candidates that are not busy
    room: ranks with room for its class
    awaited: slots without room for requests that wait for them in particular, as bits
    """
    # A partition made anew may have fewer slots than the one of which the bits are.
    awaited &= (1 << len(free)) - 1
    if not awaited:
        return free
    bits = np.frombuffer(awaited.to_bytes(-(-len(free) // 8), "little"), np.uint8)
    mask = np.unpackbits(bits, count=len(free), bitorder="little").view(np.bool_)
    return free & (room | ~mask)


class QueueHeadroom:
    """Ranks of a partition with room for each class now, computed on demand."""

    def __init__(self, judge: BusyCheck, partition: Partition, queue: PartitionQueue) -> None:
        self._judge = judge
        self._partition = partition
        self._queue = queue
        self._free: dict[bool, Mask] = {}
        self._rooms: dict[tuple[int, bool], Headroom] = {}
        self._bits: dict[tuple[int, bool], int] = {}

    def headroom_of(self, class_index: int, pinned: bool) -> Headroom:
        """Return the room for a class.

        pinned: whether requests are judged with the whole worker
        """
        key = class_index, pinned
        # One view serves one request of the queue: the same room is needed for many lanes.
        if key not in self._rooms:
            if pinned not in self._free:
                free = self._judge.free_for_pinned if pinned else self._judge.all_free_ranks
                self._free[pinned] = free(self._partition)
            not_busy, rules = self._free[pinned], self._queue.class_rules(class_index)
            self._rooms[key] = compute_headroom(self._partition, not_busy, rules)
        return self._rooms[key]

    def ranks_for(self, ticket: WaitingTicket) -> tuple[Mask, Mask]:
        """Return the ranks with room for a request, and the ranks among which it chooses."""
        pinned = ticket.lane.pinned is not None
        room = self.headroom_of(ticket.class_index, pinned).ranks
        awaited = self._queue.awaited_bits(self.headroom_bits)
        return room, leave_awaited(self._free[pinned], room, awaited)

    def headroom_bits(self, class_index: int, pinned: bool) -> int:
        key = class_index, pinned
        if key not in self._bits:
            self._bits[key] = mask_to_int(self.headroom_of(class_index, pinned).ranks)
        return self._bits[key]
