"""Which ranks have room for what waits."""

import numpy as np

from select_service.core.admission.busy import BusyJudge
from select_service.core.admission.room import Room, room_for
from select_service.core.admission.waiting import PartitionQueue
from select_service.core.arrays import Mask
from select_service.core.fleet.partition import Partition


def bits_of(mask: Mask) -> int:
    """Bit s is set for slot s."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


class QueueView:
    """Which ranks of a partition have room for a class, now; computed when asked for."""

    def __init__(self, judge: BusyJudge, partition: Partition, queue: PartitionQueue) -> None:
        self._judge = judge
        self._partition = partition
        self._queue = queue
        self._free: dict[bool, Mask] = {}
        self._rooms: dict[tuple[int, bool], Room] = {}
        self._bits: dict[tuple[int, bool], int] = {}

    def room(self, class_index: int, pinned: bool) -> Room:
        """pinned: for requests that are judged with the whole worker."""
        key = class_index, pinned
        if key not in self._rooms:
            if pinned not in self._free:
                free = self._judge.free_when_pinned if pinned else self._judge.free_of_all
                self._free[pinned] = free(self._partition)
            not_busy, rules = self._free[pinned], self._queue.rules(class_index)
            self._rooms[key] = room_for(self._partition, not_busy, rules)
        return self._rooms[key]

    def bits(self, class_index: int, pinned: bool) -> int:
        key = class_index, pinned
        if key not in self._bits:
            self._bits[key] = bits_of(self.room(class_index, pinned).ranks)
        return self._bits[key]
