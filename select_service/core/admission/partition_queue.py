"""Waiting requests of one partition, and the order of service.

A request waits in the queue of its policy class.  A deficit round robin divides the room between
classes: a class gets `quantum` tokens of credit in each round, and a request costs its uncached
tokens, at least 1.  An empty class loses its credit.

Source: the reference's description of its queues ("Deficit Round Robin Queue Scheduling") and its
measured order; lanes and flows are an extension.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, reduce
from operator import or_

from select_service.base.errors import SelectError
from select_service.core.admission.class_queue import ClassQueue, LaneBits, TableVersion
from select_service.core.admission.deficit_ring import DeficitRing
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.waiting_ticket import WaitingTicket, extra_work
from select_service.core.decision_maker import PairChooser
from select_service.schemas.selection import SelectRequest

REFRESHED_PER_TURN_MAX = 64
"""Lanes recomputed in one turn, after a change of ranks."""


class PartitionQueue:
    """Queues of one partition, which exist only while requests wait."""

    def __init__(self, classes: Sequence[PolicyClass]) -> None:
        self.queues = [ClassQueue(rules) for rules in classes]
        self.waits_for_work = any(rules.waits_for_work for rules in classes)
        self.changes = -1
        """Change counter of the index at the last search for room, where remaining work
        determines room.
        """
        self.released_cost = 0
        """Uncached tokens of the requests that were taken since the queue exists."""
        self._ring = DeficitRing(range(len(classes)))
        self._refreshed: TableVersion | None = None

    def __len__(self) -> int:
        return sum(queue.requests for queue in self.queues)

    def __iter__(self) -> Iterator[WaitingTicket]:
        for queue in self.queues:
            for _, waiting in queue.lanes():
                yield from waiting.tickets.values()

    @property
    def isl_tokens(self) -> int:
        return sum(queue.total.usage.isl_tokens for queue in self.queues)

    @property
    def n_lanes(self) -> int:
        return sum(queue.n_lanes for queue in self.queues)

    def awaited_bits(self, free: Callable[[int, bool], int] | None = None) -> int:
        """Return the slots for which constrained requests wait in vain, as bits.

        free: as for `take_next`; None means that no waiting request has room
        """
        awaited = 0
        for index, queue in enumerate(self.queues):
            for lane, waiting in queue.lanes() if queue.n_constrained else ():
                if waiting.is_constrained and not (
                    free is not None and waiting.has_room(free(index, lane.pinned is not None))
                ):
                    awaited |= reduce(or_, waiting.bits)
        return awaited

    def waited_bits(self) -> int:
        """Return the candidates of all waiting requests, as bits."""
        found = 0
        for queue in self.queues:
            for _, waiting in queue.lanes():
                found |= reduce(or_, waiting.bits)
        return found

    def class_rules(self, class_index: int) -> PolicyClass:
        return self.queues[class_index].rules

    def queue_of(self, ticket: WaitingTicket) -> ClassQueue:
        """Return the queue of the class of a ticket."""
        return self.queues[ticket.class_index]

    def add(self, ticket: WaitingTicket, bits: LaneBits) -> None:
        """Add a ticket.

        bits: candidates of its lane, bit s for slot s; of each leg for pairs
        """
        self.queue_of(ticket).add(ticket, bits)

    def remove(self, ticket: WaitingTicket) -> None:
        queue = self.queue_of(ticket)
        queue.remove(ticket)
        if not queue.requests:
            self._ring.reset_credit(ticket.class_index)

    def refresh_candidates(
        self,
        table: TableVersion,
        candidates: Callable[[SelectRequest, PairChooser | None], LaneBits],
    ) -> tuple[list[tuple[WaitingTicket, SelectError]], bool]:
        """Recompute the candidates of lanes, up to the limit of one turn.

        table:      version of the ranks, different for another partition
        candidates: returns the bits of a request's candidates, raises SelectError without any
        Returns the removed tickets without candidates, and whether more lanes remain.
        """
        stranded: list[tuple[WaitingTicket, SelectError]] = []
        if table == self._refreshed:
            return stranded, False
        lanes = (waiting for queue in self.queues for _, waiting in queue.lanes())
        stale = [waiting for waiting in lanes if waiting.found_in != table]
        left, looked_at = REFRESHED_PER_TURN_MAX, 0
        for waiting in stale:
            if left <= 0:
                break
            left -= 1 + extra_work(waiting.request)
            looked_at += 1
            waiting.found_in = table
            try:
                waiting.bits = candidates(waiting.request, waiting.pairs)
            except SelectError as error:
                stranded += [(ticket, error) for ticket in waiting.tickets.values()]
        for ticket, _ in stranded:
            self.remove(ticket)
        more = len(stale) > looked_at
        # An unfinished refresh keeps the old version, so the next turn continues.
        self._refreshed = self._refreshed if more else table
        return stranded, more

    def take_next(self, free: Callable[[int, bool], int]) -> WaitingTicket | None:
        """Remove and return the next request in turn.  None means that no request has room.

        free: (class index, is the request pinned?) -> slots with room, as bits
        """
        found = (
            (i, queue.find_head(cache(partial(free, i)))) for i, queue in enumerate(self.queues)
        )
        heads = {i: head for i, head in found if head is not None}
        if not heads:
            return None
        costs = {i: head.size.cost for i, head in heads.items()}
        chosen = self._ring.choose_member(costs, lambda i: self.queues[i].rules.quantum)
        queue, ticket = self.queues[chosen], heads[chosen]
        self._ring.charge_first(ticket.size.cost)
        queue.take_head(ticket)
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
        self._ring.check_invariants()
