"""Lanes of a policy class as rows of an array, so that kernels search thousands in microseconds."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from select_service.core.admission import lane_kernels
from select_service.core.admission.lane_layout import (
    BITS,
    FLOW,
    IS_CONSTRAINED,
    IS_PINNED,
    LEGS,
    ORDER_LENGTH,
)
from select_service.core.admission.slot_bits import SlotBits
from select_service.core.admission.waiting_ticket import ConstraintLane, Order, WaitingTicket
from select_service.core.decision_maker import PairChooser
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.rank_table import RankTable
from select_service.schemas.selection import SelectRequest

LaneBits = tuple[SlotBits, ...]
"""Candidates of a lane; of each leg for pairs, each of which needs one with room."""

LANES_AT_FIRST = 8
_FLOATS, _INTEGERS = Struct("=3d"), Struct("=3q")


class TableVersion(NamedTuple):
    """Version of a partition's rank table; versions of different tables may be equal numbers."""

    table: RankTable
    version: int

    @classmethod
    def of_partition(cls, partition: Partition) -> "TableVersion":
        return cls(partition.table, partition.table.version)


class LaneRoom(NamedTuple):
    """Slots with room for a class: for requests in general, and for pinned requests."""

    free: SlotBits
    free_pinned: SlotBits


@dataclass(slots=True, eq=False)
class LaneTickets:
    """Tickets of a lane, in order.

    row:      row in the table of its class
    cost:     uncached tokens, at least 1 per request
    pairs:    chooser of pairs, if the lane is theirs
    found_in: rank table and version behind its candidates; None means unknown
    """

    lane: ConstraintLane
    flow: int
    request: SelectRequest
    pairs: PairChooser | None = None
    found_in: TableVersion | None = None
    row: int = -1
    cost: int = 0
    tickets: SortedDict[Order, WaitingTicket] = field(default_factory=SortedDict)

    @property
    def first(self) -> WaitingTicket:
        ticket: WaitingTicket = self.tickets.peekitem(0)[1]
        return ticket


class LaneAges:
    """Lanes of a partition, the lane with the oldest candidates first.

    As the ranks change over time only, the lanes with current candidates are the last.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[LaneTickets, None] = OrderedDict()

    def note_found(self, lane: LaneTickets, found_in: TableVersion | None) -> None:
        """Note that the candidates of a lane were found just now, in the current ranks."""
        lane.found_in = found_in
        self._lanes[lane] = None
        self._lanes.move_to_end(lane)

    def remove(self, lane: LaneTickets) -> None:
        del self._lanes[lane]

    def first_stale(self, table: TableVersion) -> LaneTickets | None:
        """Return the lane with the oldest candidates, if these are not of this version."""
        lane = next(iter(self._lanes), None)
        return None if lane is None or lane.found_in == table else lane

    def check_invariants(self, lanes: list[LaneTickets]) -> None:
        """Check the invariants, for tests.

        lanes: all lanes of the partition
        """
        assert self._lanes.keys() == set(lanes)
        found = [lane.found_in for lane in self._lanes if lane.found_in is not None]
        for older, newer in pairwise(found):
            assert older.table is not newer.table or older.version <= newer.version


class LaneTable:
    """Rows of lanes without gaps, see lane_layout."""

    def __init__(self) -> None:
        self.lanes: list[LaneTickets] = []
        self.width = 1
        """Words of candidates per leg."""
        self.n_pinned = self.n_constrained = 0
        self._rows: NDArray[np.int64] = np.zeros(LANES_AT_FIRST * self._stride, np.int64)

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def _stride(self) -> int:
        return BITS + LEGS * self.width

    def add_lane(self, lane: LaneTickets, bits: LaneBits) -> None:
        """Add a lane; its tickets are stored next."""
        lane.row = len(self.lanes)
        self.lanes.append(lane)
        if len(self.lanes) * self._stride > len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        row = lane.row * self._stride
        is_pinned, is_constrained = lane.lane.pinned is not None, lane.lane.is_constrained
        self._rows[row + FLOW : row + BITS] = lane.flow, is_pinned, is_constrained
        self.n_pinned += is_pinned
        self.n_constrained += is_constrained
        self.set_bits(lane, bits)

    def remove_lane(self, lane: LaneTickets) -> None:
        self.n_pinned -= lane.lane.pinned is not None
        self.n_constrained -= lane.lane.is_constrained
        last, stride = self.lanes.pop(), self._stride
        if last is not lane:
            old = last.row * stride
            self._rows[lane.row * stride :][:stride] = self._rows[old : old + stride]
            self.lanes[lane.row] = last
            last.row = lane.row

    def set_bits(self, lane: LaneTickets, bits: LaneBits) -> None:
        """Replace the candidates of a lane."""
        n_words = len(bits[0])
        if n_words > self.width:
            self._widen(n_words)
        first = lane.row * self._stride + BITS
        # A lane without legs is stored like two equal legs, so that kernels know one kind of lane.
        for leg in range(LEGS):
            words = self._rows[first + leg * self.width :][: self.width]
            words[:n_words] = bits[leg % len(bits)]
            words[n_words:] = 0

    def _widen(self, width: int) -> None:
        old = self._rows[: len(self._rows) // self._stride * self._stride].reshape(-1, self._stride)
        given, self.width = self.width, width
        new = np.zeros((len(old), self._stride), np.int64)
        new[:, :BITS] = old[:, :BITS]
        for leg in range(LEGS):
            words = old[:, BITS + leg * given :][:, :given]
            new[:, BITS + leg * width :][:, :given] = words
        self._rows = new.reshape(-1)

    def note_first(self, lane: LaneTickets) -> None:
        """Write the order of a lane's first ticket."""
        row = lane.row * self._stride
        self._rows[row : row + ORDER_LENGTH] = _comparable(lane.first.order)

    def find_heads(self, room: LaneRoom, heads: NDArray[np.int64]) -> int:
        """Write the rows of the heads of all flows to `heads`; return their number."""
        return int(lane_kernels.find_heads(len(self), self._rows, self.width, *room, heads))

    def choose_flow(
        self,
        heads: NDArray[np.int64],
        starts: NDArray[np.float64],
        had_head: NDArray[np.bool_],
        floor: float,
    ) -> int:
        """Return the flow of the next head."""
        return int(
            lane_kernels.choose_flow(self._rows, self._stride, heads, starts, had_head, floor)
        )

    def collect_awaited(self, room: LaneRoom, out: SlotBits) -> None:
        """Add the candidates of constrained lanes without room to `out`."""
        lane_kernels.collect_awaited(len(self), self._rows, self.width, *room, out)

    def collect_candidates(self, out: SlotBits) -> None:
        """Add the candidates of all lanes to `out`."""
        lane_kernels.collect_candidates(len(self), self._rows, self.width, out)

    def find_rivals(
        self, legs: tuple[SlotBits, SlotBits], used: SlotBits, lanes_max: int
    ) -> list[tuple[LaneTickets, bool]]:
        """Return lanes with room whenever a request has room, and whether only on its slots.

        legs: slots of the request for each leg; those of its only leg twice
        used: at least as wide as the table; gets the slots of these lanes added
        """
        out = np.empty(min(lanes_max, len(self)), np.int64)
        found = lane_kernels.find_rivals(len(self), self._rows, self.width, *legs, used, out)
        return [(self.lanes[row >> 1], bool(row & 1)) for row in out[:found].tolist()]

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        rows = self._rows[: len(self) * self._stride].reshape(len(self), self._stride)
        for row, lane in enumerate(self.lanes):
            facts = lane.flow, lane.lane.pinned is not None, lane.lane.is_constrained
            assert lane.row == row
            assert tuple(rows[row, :ORDER_LENGTH]) == _comparable(lane.first.order)
            assert tuple(rows[row, ORDER_LENGTH:BITS]) == facts
        assert self.n_pinned == rows[:, IS_PINNED].sum()
        assert self.n_constrained == rows[:, IS_CONSTRAINED].sum()


def _comparable(order: Order) -> tuple[int, ...]:
    """Return integers that compare like an order."""
    # The bits of floats compare like integers, of negative ones the other way round.
    strict, due_at, score, arrival = order
    bits = _INTEGERS.unpack(_FLOATS.pack(strict + 0.0, due_at + 0.0, score + 0.0))
    return *(b if b >= 0 else b ^ 0x7FFF_FFFF_FFFF_FFFF for b in bits), arrival
