"""Queue of a policy class: flows, lanes and tickets.

Requests with one fairness_id are a *flow*, the others together one more.  Flows with the same
strict_priority of their first requests share the room by start-time fair queueing, in proportion to
weights; a request costs its uncached tokens.

Requests of a flow with equal constraints share a *lane*: all of these can run on the same ranks.
The head of a flow is its first request, in order, among lanes having a rank with room.  A request
thus never waits for another request with disjoint candidates.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from select_service.base.errors import PolicyClassFull
from select_service.core.admission.flow_clock import FlowClock
from select_service.core.admission.lane_table import (
    LaneAges,
    LaneBits,
    LaneRoom,
    LaneTable,
    LaneTickets,
    TableVersion,
)
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.slot_bits import NO_SLOTS, SlotBits
from select_service.core.admission.waiting_ticket import (
    UNNAMED_FLOW,
    ConstraintLane,
    Order,
    QueueUsage,
    WaitingTicket,
)

LANES_MAX = 1024
"""Maximum number of different flows and constraints among the waiting requests of a class."""


@dataclass(slots=True)
class FlowQueue:
    """Waiting requests of a flow.

    number: its number in the class
    cost: uncached tokens, at least 1 per request
    """

    number: int = -1
    usage: QueueUsage = field(default_factory=QueueUsage)
    cached_tokens: int = 0
    cost: int = 0
    lanes: dict[ConstraintLane, LaneTickets] = field(default_factory=dict)

    def count_before(self, order: Order) -> int:
        """Return the number of requests before a place in the order."""
        # A ticket may rank before earlier arrivals, so the number is counted in each lane.
        return sum(each.tickets.bisect(order) for each in self.lanes.values())

    def add_to_counts(self, ticket: WaitingTicket, sign: int) -> None:
        self.usage = self.usage.plus(ticket.usage, sign)
        self.cached_tokens += sign * ticket.size.cached_tokens
        self.cost += sign * ticket.size.cost


class ClassQueue:
    """Queue of a policy class."""

    def __init__(self, rules: PolicyClass, ages: LaneAges) -> None:
        """Start empty.  ages: lanes of all classes of the partition"""
        self.rules = rules
        self._ages = ages
        self.flows: dict[str, FlowQueue] = {}
        self.table = LaneTable()
        self.total = FlowQueue()
        """Counts of all flows together; without lanes."""
        self._clock = FlowClock()

    @property
    def requests(self) -> int:
        return self.total.usage.requests

    def __iter__(self) -> Iterator[WaitingTicket]:
        for lane in self.table.lanes:
            yield from lane.tickets.values()

    def flow_of(self, ticket: WaitingTicket) -> FlowQueue:
        """Return the flow of a ticket; an empty one if no request of it waits."""
        return self.flows.get(ticket.flow) or FlowQueue()

    def weight_of(self, flow: str) -> float:
        return self.rules.fairness_weights.get(flow, 1.0)

    def add(self, ticket: WaitingTicket, bits: LaneBits, found_in: TableVersion | None) -> None:
        """Add a ticket.

        bits: candidates of its lane, found in this version of the rank table
        """
        flow = self.flows.get(ticket.flow)
        if flow is None:
            flow = self.flows[ticket.flow] = FlowQueue(self._clock.add_flow(ticket.flow))
        lane = flow.lanes.get(ticket.lane)
        if lane is None:
            lane = LaneTickets(ticket.lane, flow.number, ticket.request, ticket.pairs)
            flow.lanes[ticket.lane] = lane
            self.table.add_lane(lane, bits)
            self._ages.note_found(lane, found_in)
        elif lane.found_in != found_in:
            self.table.set_bits(lane, bits)
            self._ages.note_found(lane, found_in)
        # Before the ticket is stored, which would count itself.
        ticket.position = 1 + flow.count_before(ticket.order)
        lane.tickets[ticket.order] = ticket
        lane.cost += ticket.size.cost
        if lane.first is ticket:
            self.table.note_first(lane)
        self._add_to_counts(flow, ticket, 1)

    def remove(self, ticket: WaitingTicket) -> None:
        flow = self.flows[ticket.flow]
        lane = flow.lanes[ticket.lane]
        is_first = lane.first is ticket
        del lane.tickets[ticket.order]
        lane.cost -= ticket.size.cost
        if not lane.tickets:
            del flow.lanes[ticket.lane]
            self.table.remove_lane(lane)
            self._ages.remove(lane)
        elif is_first:
            self.table.note_first(lane)
        self._add_to_counts(flow, ticket, -1)
        if not flow.lanes:
            del self.flows[ticket.flow]
            self._clock.remove_flow(ticket.flow, flow.number)

    def _add_to_counts(self, flow: FlowQueue, ticket: WaitingTicket, sign: int) -> None:
        flow.add_to_counts(ticket, sign)
        self.total.add_to_counts(ticket, sign)

    def room_of(self, free: Callable[[bool], SlotBits] | None) -> LaneRoom:
        """Return the room that the lanes need to know.

        free: is the request pinned? -> slots with room for such requests; None means no room
        """
        n_pinned = self.table.n_pinned
        return LaneRoom(
            NO_SLOTS if free is None or n_pinned == len(self.table) else free(False),
            NO_SLOTS if free is None or not n_pinned else free(True),
        )

    def find_head(self, free: Callable[[bool], SlotBits], burst: float) -> WaitingTicket | None:
        """Return the next request in turn with a candidate with room.

        free: as for `room_of`
        burst: tokens that a flow of weight 1 may be served ahead of its share
        """
        if not self.flows:
            return None
        lane = self._clock.find_head(self.table, self.room_of(free), burst)
        return None if lane is None else lane.first

    def take_head(self, ticket: WaitingTicket) -> None:
        """Remove the last result of `find_head`, at the expense of its flow."""
        self._clock.charge_flow(self.flows[ticket.flow].number, self._length_of(ticket))
        self.remove(ticket)

    def start_of(self, flow: str, burst: float) -> float:
        """Return the virtual time at which the next request of a flow starts."""
        found = self.flows.get(flow)
        return self._clock.start_of(flow, None if found is None else found.number, burst)

    def return_head(self, ticket: WaitingTicket) -> None:
        """Return its payment to a ticket that is about to be added again."""
        flow = self.flows.get(ticket.flow)
        number = None if flow is None else flow.number
        self._clock.repay_flow(ticket.flow, number, self._length_of(ticket))

    def _length_of(self, ticket: WaitingTicket) -> float:
        return ticket.size.cost / self.weight_of(ticket.flow)

    def check_room(self, ticket: WaitingTicket, n_workers: int) -> None:
        """Raise PolicyClassFull when the request exceeds a limit."""
        rules, size, flow = self.rules, ticket.size, self.flow_of(ticket)
        for kind, per_worker, current, own, more in (
            (
                "requests",
                rules.request_queue_limit_per_worker,
                self.requests,
                flow.usage.requests,
                1,
            ),
            (
                "raw_isl_tokens",
                rules.raw_isl_token_queue_limit_per_worker,
                self.total.usage.isl_tokens,
                flow.usage.isl_tokens,
                size.isl_tokens,
            ),
            (
                "cached_tokens",
                rules.cached_token_queue_limit_per_worker,
                self.total.cached_tokens,
                flow.cached_tokens,
                size.cached_tokens,
            ),
        ):
            limit = inf if per_worker is None else per_worker * n_workers
            if current + more + space_for_others(ticket, own) > limit:
                raise class_full_error(rules.name, kind, current, int(limit))
        # Constraints are a limit, too: each lane costs time at every release.
        lanes = len(self.table) + space_for_others(ticket, len(flow.lanes))
        if ticket.lane not in flow.lanes and lanes >= LANES_MAX:
            raise class_full_error(rules.name, "constraints", len(self.table), LANES_MAX)

    def check_invariants(self, index: int) -> None:
        """Check the invariants, for tests."""
        total = FlowQueue()
        for name, flow in self.flows.items():
            counted = FlowQueue()
            for lane, waiting in flow.lanes.items():
                assert waiting.tickets
                assert waiting is self.table.lanes[waiting.row]
                assert (waiting.lane, waiting.flow) == (lane, flow.number)
                assert waiting.cost == sum(t.size.cost for t in waiting.tickets.values())
                for order, ticket in waiting.tickets.items():
                    assert (ticket.flow, ticket.lane, ticket.order) == (name, lane, order)
                    assert ticket.class_index == index
                    assert ticket.outcome is None
                    counted.add_to_counts(ticket, 1)
                    total.add_to_counts(ticket, 1)
            assert flow.lanes
            assert (flow.usage, flow.cached_tokens) == (counted.usage, counted.cached_tokens)
            assert flow.cost == counted.cost
        assert self.total == total
        assert len(self.table) == sum(len(flow.lanes) for flow in self.flows.values())
        self.table.check_invariants()
        self._clock.check_invariants([flow.number for flow in self.flows.values()])


def space_for_others(ticket: WaitingTicket, own: int) -> int:
    """Return the part of a limit that a named flow leaves free: as much as it uses itself.

    Otherwise one flow could fill the queue, and the others would be refused instead of served in
    turn.
    """
    return 0 if ticket.flow == UNNAMED_FLOW else own


def class_full_error(name: str, kind: str, current: int, limit: int) -> PolicyClassFull:
    error = PolicyClassFull(
        f'router policy class "{name}" queue {kind} limit reached '
        f"(current={current}, limit={limit})"
    )
    error.details = {
        "policy_class": name,
        "limit_kind": kind,
        "current": current,
        "limit": limit,
    }
    return error
