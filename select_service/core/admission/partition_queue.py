"""Waiting requests of a partition, and the order of service.

A request waits in the queue of its policy class.  A deficit round robin divides the room between
classes: a class gets `quantum` tokens of credit in each round, and a request costs its uncached
tokens, at least 1.  An empty class loses its credit.

Source: the reference's description of its queues ("Deficit Round Robin Queue Scheduling") and its
measured order; lanes and flows are an extension.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from select_service.base.errors import SelectError
from select_service.core.admission import turn_budget
from select_service.core.admission.class_queue import ClassQueue, class_full_error
from select_service.core.admission.deficit_ring import DeficitRing
from select_service.core.admission.lane_table import LaneAges, LaneBits, TableVersion
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.slot_bits import SlotBits
from select_service.core.admission.ticket_groups import GroupCheck, TicketGroups
from select_service.core.admission.turn_budget import TurnBudget
from select_service.core.admission.waiting_ticket import WaitingTicket, extra_work
from select_service.core.decision_maker import PairChooser
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.selection import SelectRequest

PARTITION_LANES_MAX = 4096
"""Maximum number of different flows and constraints among the waiting requests of all classes."""

REFRESHED_PER_TURN_MAX = 64
"""Lanes recomputed in a turn, after a change of ranks."""
REBOUND_PER_TURN_MAX = 512
"""Requests rebound in a turn, after a replacement of all workers."""

LANE_WORK, CLASS_WORK = 4, 2048
"""Cost of searching a lane, besides its words of candidates, and of the room of a class."""


class PartitionQueue:
    """Queues of a partition, which exist only while requests wait."""

    def __init__(self, classes: Sequence[PolicyClass]) -> None:
        self._ages = LaneAges()
        self.queues = [ClassQueue(rules, self._ages) for rules in classes]
        self.groups = TicketGroups()
        self.waits_for_work = any(rules.waits_for_work for rules in classes)
        self.changes = -1
        """Change counter of the index at the last search for room, where remaining work
        determines room.
        """
        self.released_cost = 0
        """Uncached tokens of the requests that were taken since the queue exists."""
        self._ring = DeficitRing(range(len(classes)))
        self._refreshing: TableVersion | None = None
        self.is_overtaken = False
        """Whether ranks changed again before all lanes were refreshed."""

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[WaitingTicket]:
        for queue in self.queues:
            yield from queue

    @property
    def isl_tokens(self) -> int:
        return sum(queue.total.usage.isl_tokens for queue in self.queues)

    @property
    def n_lanes(self) -> int:
        return sum(len(queue.table) for queue in self.queues)

    @property
    def search_work(self) -> int:
        """Cost of finding the next request: words of candidates, and classes whose room counts."""
        return sum(
            CLASS_WORK + len(queue.table) * (LANE_WORK + queue.table.width)
            for queue in self.queues
            if queue.flows
        )

    def awaited_bits(self, free: Callable[[int, bool], SlotBits] | None = None) -> SlotBits | None:
        """Return the slots for which constrained requests wait in vain; None means no slots.

        free: as for `take_next`; None means that no waiting request has room
        """
        concerned = [(i, queue) for i, queue in enumerate(self.queues) if queue.table.n_constrained]
        if not concerned:
            return None
        awaited = np.zeros(max(queue.table.width for _, queue in concerned), np.int64)
        for index, queue in concerned:
            room = queue.room_of(None if free is None else partial(free, index))
            queue.table.collect_awaited(room, awaited)
        return awaited

    def waited_bits(self) -> SlotBits:
        """Return the candidates of all waiting requests."""
        found = np.zeros(max(queue.table.width for queue in self.queues), np.int64)
        for queue in self.queues:
            queue.table.collect_candidates(found)
        return found

    def class_rules(self, class_index: int) -> PolicyClass:
        return self.queues[class_index].rules

    def queue_of(self, ticket: WaitingTicket) -> ClassQueue:
        """Return the queue of the class of a ticket."""
        return self.queues[ticket.class_index]

    def check_room(self, ticket: WaitingTicket, n_workers: int) -> None:
        """Raise PolicyClassFull when a request exceeds a limit of its class or the queue's."""
        queue = self.queue_of(ticket)
        queue.check_room(ticket, n_workers)
        # A class leaves as much free as it uses itself, like a flow in a class.
        lanes = self.n_lanes + len(queue.table)
        if lanes >= PARTITION_LANES_MAX and ticket.lane not in queue.flow_of(ticket).lanes:
            raise class_full_error(
                queue.rules.name, "constraints", self.n_lanes, PARTITION_LANES_MAX
            )

    def add(
        self, ticket: WaitingTicket, bits: LaneBits, found_in: TableVersion | None = None
    ) -> None:
        """Add a ticket.

        bits: candidates of its lane; of each leg for pairs
        found_in: rank table and version in which these were found
        """
        self.queue_of(ticket).add(ticket, bits, found_in)
        self.groups.add(ticket)

    def return_ticket(self, ticket: WaitingTicket, bits: LaneBits, found_in: TableVersion) -> None:
        """Add the last result of `take_next` again, possibly to another lane, as if not taken."""
        queue = self.queue_of(ticket)
        queue.return_head(ticket)
        self._ring.repay_member(ticket.class_index, ticket.size.cost)
        self.released_cost -= ticket.size.cost
        self.add(ticket, bits, found_in)

    def remove(self, ticket: WaitingTicket) -> None:
        self.groups.remove(ticket)
        self._remove_ungrouped(ticket)

    def take_first(self, tickets_max: int) -> list[WaitingTicket]:
        """Remove and return some tickets."""
        taken = list(islice(self, tickets_max))
        for ticket in taken:
            self.remove(ticket)
        return taken

    def take_group(self, is_meant: GroupCheck, tickets_max: int) -> list[WaitingTicket]:
        """Remove and return tickets of the groups that pass the check."""
        taken = self.groups.take(is_meant, tickets_max)
        for ticket in taken:
            self._remove_ungrouped(ticket)
        return taken

    def rebind_some(self, partition: Partition, budget: TurnBudget) -> bool:
        """Bind requests to the partition made anew, up to the limit of a turn.

        Returns whether more remain; each of these is bound when its turn comes.
        """
        most = min(REBOUND_PER_TURN_MAX, budget.count_actions(turn_budget.REBIND_WORK))
        rebound = self.groups.take(lambda old, _: old is not partition, most)
        budget.spend(turn_budget.REBIND_WORK, len(rebound))
        for ticket in rebound:
            ticket.rebind(partition)
            self.groups.add(ticket)
        return self.groups.has_any(lambda old, _: old is not partition)

    def _remove_ungrouped(self, ticket: WaitingTicket) -> None:
        queue = self.queue_of(ticket)
        queue.remove(ticket)
        if not queue.requests:
            self._ring.reset_credit(ticket.class_index)

    def refresh_candidates(
        self,
        table: TableVersion,
        candidates: Callable[[SelectRequest, PairChooser | None], LaneBits],
        budget: TurnBudget,
    ) -> tuple[list[tuple[WaitingTicket, SelectError]], bool]:
        """Recompute the candidates of lanes, up to the limit of a turn.

        table:      version of the ranks, different for another partition
        candidates: returns the bits of a request's candidates, raises SelectError without any
        Returns the removed tickets without candidates, and whether more lanes remain.
        """
        stranded: list[tuple[WaitingTicket, SelectError]] = []
        is_overtaken = self._refreshing not in (None, table)
        left = min(REFRESHED_PER_TURN_MAX, budget.count_actions(turn_budget.REFRESH_WORK))
        while left > 0 and (lane := self._ages.first_stale(table)) is not None:
            steps = 1 + extra_work(lane.request)
            left -= steps
            budget.spend(turn_budget.REFRESH_WORK, steps)
            try:
                bits = candidates(lane.request, lane.pairs)
            except SelectError as error:
                n_left = budget.count_actions(turn_budget.REFUSE_WORK)
                found = list(islice(lane.tickets.values(), n_left))
                budget.spend(turn_budget.REFUSE_WORK, len(found))
                # The lane leaves with its last ticket.
                for ticket in found:
                    self.remove(ticket)
                stranded += [(ticket, error) for ticket in found]
                if lane.tickets:
                    break
            else:
                self.queue_of(lane.first).table.set_bits(lane, bits)
                self._ages.note_found(lane, table)
        # What is left is still the oldest, so the next turn continues.
        more = self._ages.first_stale(table) is not None
        self.is_overtaken = more and is_overtaken
        self._refreshing = table if more else None
        return stranded, more

    def take_next(
        self, free: Callable[[int, bool], SlotBits], burst: float
    ) -> WaitingTicket | None:
        """Remove and return the next request in turn.  None means that no request has room.

        free: (class index, is the request pinned?) -> slots with room
        burst: as for `ClassQueue.find_head`
        """
        found = (
            (i, queue.find_head(partial(free, i), burst)) for i, queue in enumerate(self.queues)
        )
        heads = {i: head for i, head in found if head is not None}
        if not heads:
            return None
        costs = {i: head.size.cost for i, head in heads.items()}
        chosen = self._ring.choose_member(costs, lambda i: self.queues[i].rules.quantum)
        queue, ticket = self.queues[chosen], heads[chosen]
        self._ring.charge_first(ticket.size.cost)
        queue.take_head(ticket)
        self.groups.remove(ticket)
        self.released_cost += ticket.size.cost
        # An empty class must not save up credit for a burst.
        if not queue.requests:
            self._ring.reset_credit(chosen)
            self._ring.pass_turn()
        return ticket

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        for index, queue in enumerate(self.queues):
            queue.check_invariants(index)
        self.groups.check_invariants(list(self))
        self._ages.check_invariants([lane for each in self.queues for lane in each.table.lanes])
        self._ring.check_invariants()
