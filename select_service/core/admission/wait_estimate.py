"""Estimated wait of a new request: the least in which the requests before it can leave the queue.

The estimate assumes that all ranks for which requests wait release equal shares of what leaves the
queue.  Only requests that can use every rank of the new one count as before it, and only the share
of its class and flow delays it, so the estimate is too short rather than too long.
"""

from itertools import islice
from typing import NamedTuple

import numpy as np

from select_service.core.admission.class_queue import ClassQueue
from select_service.core.admission.lane_table import LaneBits, LaneTickets
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.slot_bits import SlotBits, count_slots
from select_service.core.admission.waiting_ticket import Order, WaitingTicket

RIVALS_MAX = 512
"""Lanes counted as before a new request; without the others the estimate is shorter."""
TICKETS_MAX = 4096
"""Requests of its flow counted as before a new request."""


class Rivals(NamedTuple):
    """Lanes of requests that can use every rank of a new request.

    n_ranks: number of ranks that serve these and the new request
    """

    lanes: list[tuple[ClassQueue, LaneTickets]]
    n_ranks: int


def estimate_wait(
    queue: PartitionQueue, ticket: WaitingTicket, legs: LaneBits, tokens_per_s: float
) -> float:
    """Return the estimated seconds until a new request is served.

    legs: its candidates; of each leg for pairs
    tokens_per_s: uncached tokens that one rank releases per second
    """
    # Every set of rivals gives a lower bound, so the highest one holds.
    return max(
        _count_tokens_before(queue.queue_of(ticket), ticket, rivals.lanes)
        / (tokens_per_s * rivals.n_ranks)
        for slots in legs
        for rivals in _find_rivals(queue, ticket, slots)
    )


def _find_rivals(
    queue: PartitionQueue, ticket: WaitingTicket, slots: SlotBits
) -> tuple[Rivals, Rivals]:
    """Return the rivals for the same slots, and those for the same and more slots."""
    same, every = Rivals([], count_slots(slots)), Rivals([], 0)
    width = max(len(slots), *(each.table.width for each in queue.queues))
    used = np.zeros(width, np.int64)
    used[: len(slots)] = slots
    own = queue.queue_of(ticket)
    for each in (own, *(other for other in queue.queues if other is not own)):
        for lane, is_same in each.table.find_rivals(slots, used, RIVALS_MAX - len(every.lanes)):
            every.lanes.append((each, lane))
            if is_same:
                same.lanes.append((each, lane))
    return same, every._replace(n_ranks=count_slots(used))


def _count_tokens_before(
    own: ClassQueue, ticket: WaitingTicket, rivals: list[tuple[ClassQueue, LaneTickets]]
) -> float:
    """Return the uncached tokens that leave the queue before a new request.

    This is the least of three numbers: all that waits; what leaves until the class, with its share,
    has reached the end of its queue; and what leaves until the flow, with its share, has reached
    the request.  Whatever arrives later can at most delay the request to one of the last two.
    """
    has_priority = ticket.order[0] < 0.0
    # Priorities go before the shares of flows.
    last = (ticket.order[0], np.inf, np.inf, ticket.number)
    n_max = TICKETS_MAX
    others, in_class, in_flow = 0, 0, 0
    classes, flows = {own.rules.name: own.rules.quantum}, {ticket.flow}
    for queue, lane in rivals:
        if queue is not own:
            others += lane.cost
            classes[queue.rules.name] = queue.rules.quantum
            continue
        flow = lane.first.flow
        flows.add(flow)
        if has_priority:
            in_class += _cost_before(lane, last, n_max)
            n_max -= min(n_max, len(lane.tickets))
        else:
            in_class += lane.cost
        if flow == ticket.flow and not has_priority:
            in_flow += _cost_before(lane, ticket.order, n_max)
            n_max -= min(n_max, len(lane.tickets))
    class_share = own.rules.quantum / sum(classes.values())
    before = min(float(others + in_class), in_class / class_share)
    if has_priority:
        return before
    flow_share = own.weight_of(ticket.flow) / sum(map(own.weight_of, flows))
    return min(before, in_flow / class_share / flow_share)


def _cost_before(lane: LaneTickets, order: Order, n_max: int) -> int:
    """Return the cost of the requests before a place in the order, of at most `n_max`."""
    n_before = min(n_max, lane.tickets.bisect(order))
    return sum(each.size.cost for each in islice(lane.tickets.values(), n_before))
