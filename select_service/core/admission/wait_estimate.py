"""Estimated wait of a new request: the least in which the requests before it can leave the queue.

The estimate assumes that all ranks for which requests wait release equal shares of what leaves the
queue.  Only requests with room whenever the new request has room count as before it. Other flows
and classes count only with what their shares give them until then. So the estimate is too short
rather than too long.
"""

from collections import Counter
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np

from select_service.core.admission.class_queue import ClassQueue
from select_service.core.admission.lane_table import LaneBits, LaneTickets
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.slot_bits import SlotBits, count_slots
from select_service.core.admission.waiting_ticket import WaitingTicket

RIVALS_MAX = 512
"""Lanes counted as before a new request; without the others the estimate is shorter."""
TICKETS_MAX = 4096
"""Requests counted one by one as before a new request; without the others it is shorter, too."""


class Rivals(NamedTuple):
    """Lanes of requests that have room whenever a new request has.

    n_ranks: number of ranks that serve these and the new request
    """

    lanes: list[tuple[ClassQueue, LaneTickets]]
    n_ranks: int


def estimate_wait(
    queue: PartitionQueue, ticket: WaitingTicket, legs: LaneBits, tokens_per_s: float, burst: float
) -> float:
    """Return the estimated seconds until a new request is served.

    legs: its candidates; of each leg for pairs
    tokens_per_s: uncached tokens that a rank releases per second
    burst: as for `ClassQueue.find_head`
    """
    # Every set of rivals gives a lower bound, so the highest one holds.
    return max(
        _count_tokens_before(queue.queue_of(ticket), ticket, rivals.lanes, burst)
        / (tokens_per_s * rivals.n_ranks)
        for both in _choices_of_legs(legs)
        for rivals in _find_rivals(queue, ticket, both)
    )


def _choices_of_legs(legs: LaneBits) -> list[tuple[SlotBits, SlotBits]]:
    """Return each leg alone, and both."""
    alone = list(zip(legs, legs, strict=True))
    return alone if len(legs) == 1 else [*alone, (legs[0], legs[1])]


def _find_rivals(
    queue: PartitionQueue, ticket: WaitingTicket, legs: tuple[SlotBits, SlotBits]
) -> tuple[Rivals, Rivals]:
    """Return the rivals for the same slots, and those for the same and more slots.

    legs: slots of both legs, equal for one leg
    """
    slots = legs[0] | legs[1]
    same, every = Rivals([], count_slots(slots)), Rivals([], 0)
    width = max(len(slots), *(each.table.width for each in queue.queues))
    used = np.zeros(width, np.int64)
    used[: len(slots)] = slots
    own = queue.queue_of(ticket)
    for each in (own, *(other for other in queue.queues if other is not own)):
        for lane, is_same in each.table.find_rivals(legs, used, RIVALS_MAX - len(every.lanes)):
            every.lanes.append((each, lane))
            if is_same:
                same.lanes.append((each, lane))
    return same, every._replace(n_ranks=count_slots(used))


def _count_tokens_before(
    own: ClassQueue,
    ticket: WaitingTicket,
    rivals: list[tuple[ClassQueue, LaneTickets]],
    burst: float,
) -> float:
    """Return the uncached tokens that leave the queue before a new request.

    In its class these are the requests of higher strict_priority, then earlier requests of the
    flow, and what other flows with that strict_priority are served before the start. Last comes
    what other classes are served meanwhile.  No flow and no class is served more than it has
    waiting.
    """
    flows, classes, quanta = Counter[str](), Counter[str](), dict[str, int]()
    n_max, urgent = TICKETS_MAX, 0
    for queue, lane in rivals:
        if queue is not own:
            classes[queue.rules.name] += lane.cost
            quanta[queue.rules.name] = queue.rules.quantum
            continue
        more_urgent, equal, n_counted = _count_lane(lane, ticket, n_max)
        urgent += more_urgent
        flows[lane.first.flow] += equal
        n_max -= n_counted
    in_flow = flows.pop(ticket.flow, 0)
    start = own.start_of(ticket.flow, burst) + in_flow / own.weight_of(ticket.flow)
    others = sum(
        min(c, max(0.0, start - own.start_of(f, burst)) * own.weight_of(f))
        for f, c in flows.items()
    )
    in_class = urgent + in_flow + others
    quantum = own.rules.quantum
    return in_class + sum(min(c, in_class * quanta[n] / quantum) for n, c in classes.items())


def _count_lane(lane: LaneTickets, ticket: WaitingTicket, n_max: int) -> tuple[int, int, int]:
    """Return the costs of a lane that count as before a new request of its class.

    n_max: requests that may be counted one by one
    Returns those of higher strict_priority, those of the same, and the number counted one by one.
    """
    strict, is_own = ticket.order[0], lane.first.flow == ticket.flow
    n_urgent = 0
    if lane.first.order[0] < strict:
        n_urgent = min(n_max, lane.tickets.bisect((strict, -inf, -inf, -1)))
    urgent = _cost_of_first(lane, n_urgent)
    # Without priority all of another flow counts, and this sum is known.
    if not is_own and strict >= 0.0:
        return urgent, lane.cost - urgent, n_urgent
    last = ticket.order if is_own else (strict, inf, inf, ticket.number)
    n_before = min(n_max, lane.tickets.bisect(last))
    return urgent, _cost_of_first(lane, n_before) - urgent, n_before


def _cost_of_first(lane: LaneTickets, n: int) -> int:
    return sum(each.size.cost for each in islice(lane.tickets.values(), n))
