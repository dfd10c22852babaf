"""Queue of one policy class: flows, lanes and tickets.

Requests with one fairness_id are a *flow*, the others together one more.  Flows whose first
requests have the same strict_priority share the room by deficit round robin, in proportion to their
weights; a request costs its uncached tokens.  A flow without requests is forgotten.

Requests of a flow with equal constraints share a *lane*: all of these can run on the same ranks.
The head of a flow is its first request, in order, among lanes having a rank with room.  A request
thus never waits for another request with disjoint candidates.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from sortedcontainers import SortedDict

from select_service.base.errors import PolicyClassFull
from select_service.core.admission.deficit_ring import DeficitRing
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.waiting_ticket import (
    UNNAMED_FLOW,
    ConstraintLane,
    Order,
    QueueUsage,
    WaitingTicket,
)
from select_service.core.decision_maker import PairChooser
from select_service.core.workers.rank_table import RankTable
from select_service.schemas.selection import SelectRequest

LANES_MAX = 1024
"""Maximum number of different flows and constraints among the waiting requests of one class."""

WEIGHT_UNIT = 1000
"""Credit of weight 1 per round, and price of a token: weights have three decimal places."""

LaneBits = tuple[int, ...]
"""Masks as integers, each of which needs a slot with room."""


class TableVersion(NamedTuple):
    """Version of a partition's rank table; versions of different tables may be equal numbers."""

    table: RankTable
    version: int


@dataclass(slots=True)
class LaneTickets:
    """Tickets of one lane, in order.

    bits:     candidates of the lane, bit s for slot s; of each leg for pairs
    pairs:    chooser of pairs, if the lane is theirs
    found_in: rank table and version behind `bits`
    """

    request: SelectRequest
    bits: LaneBits
    is_constrained: bool
    pairs: PairChooser | None = None
    found_in: TableVersion | None = None
    tickets: SortedDict[Order, WaitingTicket] = field(default_factory=SortedDict)

    def has_room(self, free: int) -> bool:
        """Return whether every leg has a candidate with room.  free: slots with room, as bits"""
        # The shorter way for one leg is some times as fast, and a search has thousands of lanes.
        if len(self.bits) == 1:
            return bool(self.bits[0] & free)
        return all(bits & free for bits in self.bits)


@dataclass(slots=True)
class FlowQueue:
    """Waiting requests of one flow.  cost: uncached tokens, at least 1 per request"""

    usage: QueueUsage = field(default_factory=QueueUsage)
    cached_tokens: int = 0
    cost: int = 0
    lanes: dict[ConstraintLane, LaneTickets] = field(default_factory=dict)

    def count_before(self, order: Order) -> int:
        """Return the number of requests before a place in the order."""
        # A ticket may rank before earlier arrivals, so the number is counted in each lane.
        return sum(each.tickets.bisect(order) for each in self.lanes.values())

    def first_servable(self, free: Callable[[bool], int]) -> WaitingTicket | None:
        """Return the next request with a candidate with room.

        free: as for `ClassQueue.find_head`
        """
        first: WaitingTicket | None = None
        for lane, waiting in self.lanes.items():
            if waiting.has_room(free(lane.pinned is not None)):
                ticket: WaitingTicket = waiting.tickets.peekitem(0)[1]
                if first is None or ticket.order < first.order:
                    first = ticket
        return first

    def add_to_counts(self, ticket: WaitingTicket, sign: int) -> None:
        self.usage = self.usage.plus(ticket.usage, sign)
        self.cached_tokens += sign * ticket.size.cached_tokens
        self.cost += sign * ticket.size.cost


class ClassQueue:
    """Queue of one policy class."""

    def __init__(self, rules: PolicyClass) -> None:
        self.rules = rules
        self.flows: dict[str, FlowQueue] = {}
        self.n_lanes = self.n_constrained = 0
        self.total = FlowQueue()
        """Counts of all flows together; without lanes."""
        self._ring: DeficitRing[str] = DeficitRing()

    @property
    def requests(self) -> int:
        return self.total.usage.requests

    def lanes(self) -> Iterator[tuple[ConstraintLane, LaneTickets]]:
        for flow in self.flows.values():
            yield from flow.lanes.items()

    def flow_of(self, ticket: WaitingTicket) -> FlowQueue:
        """Return the flow of a ticket; an empty one if no request of it waits."""
        return self.flows.get(ticket.flow) or FlowQueue()

    def weight_of(self, flow: str) -> float:
        return self.rules.fairness_weights.get(flow, 1.0)

    def add(self, ticket: WaitingTicket, bits: LaneBits) -> None:
        """Add a ticket.

        bits: candidates of its lane
        """
        flow = self.flows.get(ticket.flow)
        if flow is None:
            flow = self.flows[ticket.flow] = FlowQueue()
            self._ring.add_member(ticket.flow)
        waiting = flow.lanes.get(ticket.lane)
        if waiting is None:
            is_constrained = ticket.lane.is_constrained
            waiting = LaneTickets(ticket.request, bits, is_constrained, ticket.pairs)
            flow.lanes[ticket.lane] = waiting
            self.n_lanes += 1
            self.n_constrained += is_constrained
        # Before the ticket is stored, which would count itself.
        ticket.position = 1 + flow.count_before(ticket.order)
        waiting.tickets[ticket.order] = ticket
        self._add_to_counts(flow, ticket, 1)

    def remove(self, ticket: WaitingTicket) -> None:
        flow = self.flows[ticket.flow]
        waiting = flow.lanes[ticket.lane]
        del waiting.tickets[ticket.order]
        if not waiting.tickets:
            del flow.lanes[ticket.lane]
            self.n_lanes -= 1
            self.n_constrained -= waiting.is_constrained
        self._add_to_counts(flow, ticket, -1)
        # Forgetting loses no debt: a flow pays before its request is served.
        if not flow.lanes:
            del self.flows[ticket.flow]
            self._ring.remove_member(ticket.flow)

    def _add_to_counts(self, flow: FlowQueue, ticket: WaitingTicket, sign: int) -> None:
        flow.add_to_counts(ticket, sign)
        self.total.add_to_counts(ticket, sign)

    def find_head(self, free: Callable[[bool], int]) -> WaitingTicket | None:
        """Return the next request in turn with a candidate with room.

        free: is the request pinned? -> slots with room for such requests, as bits
        """
        heads: dict[str, WaitingTicket] = {}
        costs: dict[str, int] = {}
        highest = inf
        for name, flow in self.flows.items():
            head = flow.first_servable(free)
            # Priorities come before shares: a flow of lower priority must not use up its turn now.
            if head is None or head.order[0] > highest:
                continue
            if head.order[0] < highest:
                highest, heads, costs = head.order[0], {}, {}
            heads[name], costs[name] = head, head.size.cost * WEIGHT_UNIT
        return heads[self._ring.choose_member(costs, self._quantum_of)] if heads else None

    def take_head(self, ticket: WaitingTicket) -> None:
        """Remove the last result of `find_head`, at the expense of its flow."""
        self._ring.charge_first(ticket.size.cost * WEIGHT_UNIT)
        self.remove(ticket)

    def _quantum_of(self, flow: str) -> int:
        weight = self.rules.fairness_weights.get(flow)
        return WEIGHT_UNIT if weight is None else round(weight * WEIGHT_UNIT)

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
                raise _class_full_error(rules.name, kind, current, int(limit))
        # Constraints are a limit, too: each lane costs time at every release.
        lanes = self.n_lanes + space_for_others(ticket, len(flow.lanes))
        if ticket.lane not in flow.lanes and lanes >= LANES_MAX:
            raise _class_full_error(rules.name, "constraints", self.n_lanes, LANES_MAX)

    def check_invariants(self, index: int) -> None:
        """Check the invariants, for tests."""
        total = FlowQueue()
        for name, flow in self.flows.items():
            counted = FlowQueue()
            for lane, waiting in flow.lanes.items():
                assert waiting.tickets
                for order, ticket in waiting.tickets.items():
                    assert (ticket.flow, ticket.lane, ticket.order) == (name, lane, order)
                    assert ticket.class_index == index
                    assert ticket.outcome is None
                    counted.add_to_counts(ticket, 1)
                    total.add_to_counts(ticket, 1)
            assert flow.lanes
            assert name in self._ring
            assert (flow.usage, flow.cached_tokens) == (counted.usage, counted.cached_tokens)
            assert flow.cost == counted.cost
        assert self.total == total
        assert self.n_lanes == sum(1 for _ in self.lanes())
        assert self.n_constrained == sum(lane.is_constrained for lane, _ in self.lanes())
        assert len(self._ring) == len(self.flows)
        self._ring.check_invariants()


def space_for_others(ticket: WaitingTicket, own: int) -> int:
    """Return the part of a limit that a named flow leaves free: as much as it uses itself.

    Otherwise one flow could fill the queue, and the others would be refused instead of served in
    turn.
    """
    return 0 if ticket.flow == UNNAMED_FLOW else own


def _class_full_error(name: str, kind: str, current: int, limit: int) -> PolicyClassFull:
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
