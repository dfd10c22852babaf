"""Ranks with room for waiting requests."""

from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.headroom import Headroom, compute_headroom
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.policy_classes import HeadroomParameters
from select_service.core.admission.slot_bits import SlotBits, pack_mask, unpack_mask
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.array_types import Mask
from select_service.core.registry.fleet.partition import Partition


def leave_awaited(free: Mask, room: Mask, awaited: SlotBits | None) -> Mask:
    """Return the ranks among which a request with room chooses, without ranks that earlier requests
    wait for.

    free: its candidates that are not busy
    room: ranks with room for its class
    awaited: slots without room for requests that wait for them in particular; None means no slots
    """
    if awaited is None or not awaited.any():
        return free
    # A partition made anew may have fewer slots than the one of which the bits are.
    return free & (room | ~unpack_mask(awaited, len(free)))


class QueueHeadroom:
    """Ranks of a partition with room for each class now, computed on demand."""

    def __init__(self, judge: BusyCheck, partition: Partition, queue: PartitionQueue) -> None:
        self._judge = judge
        self._partition = partition
        self._queue = queue
        self._free: dict[bool, Mask] = {}
        self._rooms: dict[tuple[HeadroomParameters, bool], Headroom] = {}
        self._bits: dict[tuple[HeadroomParameters, bool], SlotBits] = {}

    def headroom_of(self, class_index: int, pinned: bool) -> Headroom:
        """Return the room for a class.

        pinned: whether requests are judged with the whole worker
        """
        rules = self._queue.class_rules(class_index)
        key = rules.headroom_parameters, pinned
        # One view serves one request of the queue: many classes have the same room.
        if key not in self._rooms:
            if pinned not in self._free:
                free = self._judge.free_for_pinned if pinned else self._judge.all_free_ranks
                self._free[pinned] = free(self._partition)
            self._rooms[key] = compute_headroom(self._partition, self._free[pinned], rules)
        return self._rooms[key]

    def ranks_for(self, ticket: WaitingTicket) -> tuple[Mask, Mask]:
        """Return the ranks with room for a request, and the ranks among which it chooses."""
        pinned = ticket.lane.pinned is not None
        room = self.headroom_of(ticket.class_index, pinned).ranks
        awaited = self._queue.awaited_bits(self.headroom_bits)
        return room, leave_awaited(self._free[pinned], room, awaited)

    def headroom_bits(self, class_index: int, pinned: bool) -> SlotBits:
        key = self._queue.class_rules(class_index).headroom_parameters, pinned
        if key not in self._bits:
            self._bits[key] = pack_mask(self.headroom_of(class_index, pinned).ranks)
        return self._bits[key]
