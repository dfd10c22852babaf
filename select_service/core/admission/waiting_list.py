"""All waiting requests of the process: queues by partition, ids, deadlines and overall limits.

A ticket is in exactly one queue, and counted here, from `add` until removed or forgotten.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedDict

from select_service.base.errors import Conflict, NoWorkers, QueueFull, SelectError
from select_service.core.admission import turn_budget
from select_service.core.admission.class_queue import space_for_others
from select_service.core.admission.lane_table import LaneBits, TableVersion
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.policy_classes import QueueBounds
from select_service.core.admission.slot_bits import pack_mask
from select_service.core.admission.turn_budget import TurnBudget
from select_service.core.admission.waiting_ticket import QueueUsage, WaitingTicket
from select_service.core.decision_maker import PairChooser
from select_service.core.identity import PartitionKey
from select_service.core.placement.candidates import find_candidates
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.selection import SelectRequest

WAITING_BLOCKS_MAX = 4_194_304
"""Maximum prompt blocks of all waiting requests; 16 bytes each."""
WAITING_ALLOWED_IDS_MAX = 1_048_576
"""Maximum entries of `allowed_worker_ids` of all waiting requests; about 100 bytes each."""

_KINDS = ("requests", "prompt tokens", "prompt blocks", "allowed ids")


class Backlog(NamedTuple):
    """Number and prompt tokens of waiting requests."""

    requests: int
    isl_tokens: int

    def plus(self, more: QueueUsage) -> "Backlog":
        return Backlog(self.requests + more.requests, self.isl_tokens + more.isl_tokens)


NO_BACKLOG = Backlog(0, 0)


StrandedTicket = tuple[WaitingTicket, SelectError]
"""Removed request that no rank can serve, with its error."""


class QueueUpdate(NamedTuple):
    """Result of `WaitingList.update_queue`.

    has_more: whether work remains for another turn
    may_serve: whether requests may be served before that
    """

    stranded: list[StrandedTicket]
    has_more: bool
    may_serve: bool


class WaitingList:
    """All queues; a queue exists only while requests wait in the queue."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queues: dict[PartitionKey, PartitionQueue] = {}
        self.usage = QueueUsage()
        """Usage of the overall limits."""
        self.n_requests_array = np.zeros(1, np.int64)
        """int64[1], `requests` for kernels; the array is never replaced."""
        self.sessions = 0
        self.bounds = bounds
        self._limits = QueueUsage(*bounds, WAITING_BLOCKS_MAX, WAITING_ALLOWED_IDS_MAX)
        self._ids: set[str] = set()
        self._by_deadline: SortedDict[tuple[float, int], WaitingTicket] = SortedDict()

    def __iter__(self) -> Iterator[WaitingTicket]:
        for queue in self.queues.values():
            yield from queue

    # Arrivals

    def check_id_not_waiting(self, reservation_id: str) -> None:
        """Raise Conflict when a waiting request will take this id."""
        if reservation_id in self._ids:
            raise Conflict(f"reservation {reservation_id} is already waiting for a worker")

    def check_bounds(self, ticket: WaitingTicket, of_flow: QueueUsage) -> None:
        """Raise QueueFull when the ticket exceeds an overall limit.

        of_flow: usage by the waiting requests of its flow
        """
        for kind, current, own, more, limit in zip(
            _KINDS, self.usage, of_flow, ticket.usage, self._limits, strict=True
        ):
            if current + more + space_for_others(ticket, own) > limit:
                raise QueueFull(
                    f"the queue is full: {current} {kind} are waiting"
                    + (f", {own} of them of this fairness_id" if ticket.flow else "")
                    + f", the limit is {limit}"
                )

    def add(self, queue: PartitionQueue, ticket: WaitingTicket) -> None:
        """Add a ticket.

        queue: queue of the ticket's partition, possibly new
        """
        partition = ticket.placement_request.partition
        bits = lane_bits(partition, ticket.request, ticket.pairs)
        queue.add(ticket, bits, TableVersion.of_partition(partition))
        self.queues[partition.key] = queue
        self._add_to_counts(ticket, 1)
        if ticket.placement_request.reservation_id is not None:
            self._ids.add(ticket.placement_request.reservation_id)
        # Tickets without a deadline never expire and need no entry.
        if ticket.deadline < inf:
            self._by_deadline[(ticket.deadline, ticket.number)] = ticket

    def add_again(self, ticket: WaitingTicket) -> None:
        """Return a ticket that left its queue, with its order, possibly to another lane."""
        key = ticket.placement_request.partition.key
        self.add(self.queues.get(key) or PartitionQueue(ticket.classes), ticket)

    def return_ticket(self, ticket: WaitingTicket) -> None:
        """Return a ticket just taken from its queue, not forgotten yet, as if not taken."""
        partition = ticket.placement_request.partition
        bits = lane_bits(partition, ticket.request, ticket.pairs)
        queue = self.queues[partition.key]
        queue.return_ticket(ticket, bits, TableVersion.of_partition(partition))

    # Departures

    def remove(self, ticket: WaitingTicket) -> None:
        self.queues[ticket.placement_request.partition.key].remove(ticket)
        self.forget_ticket(ticket)

    def forget_ticket(self, ticket: WaitingTicket) -> None:
        """Drop the counts of a ticket already removed from its queue."""
        self._add_to_counts(ticket, -1)
        if ticket.placement_request.reservation_id is not None:
            self._ids.discard(ticket.placement_request.reservation_id)
        self._by_deadline.pop((ticket.deadline, ticket.number), None)
        key = ticket.placement_request.partition.key
        queue = self.queues.get(key)  # more tickets may have left before this call
        if queue is not None and not len(queue):
            del self.queues[key]

    def find_overdue(self, now: float, tickets_max: int) -> list[WaitingTicket]:
        """Return up to `tickets_max` tickets past their deadline, the longest overdue first."""
        found: list[WaitingTicket] = []
        for (deadline, _), ticket in self._by_deadline.items():
            if deadline > now or len(found) == tickets_max:
                break
            found.append(ticket)
        return found

    def update_queue(
        self, key: PartitionKey, partition: Partition | None, budget: TurnBudget
    ) -> QueueUpdate:
        """Remove requests without possible ranks, and update the others after changes of ranks."""
        queue = self.queues.get(key)
        if queue is None:
            return QueueUpdate([], has_more=False, may_serve=False)
        if partition is None:
            update = _strand_all(queue, key, budget)
        else:
            update = _update_requests(queue, partition, budget)
        # The removed requests have left their queue already; only the counts remain.
        for ticket, _ in update.stranded:
            self.forget_ticket(ticket)
        return update

    def _add_to_counts(self, ticket: WaitingTicket, sign: int) -> None:
        self.usage = self.usage.plus(ticket.usage, sign)
        # The fast path reads this array to learn whether any request waits.
        self.n_requests_array[0] = self.requests
        self.sessions += sign * ticket.has_session

    # Views

    def backlog_of(self, key: PartitionKey) -> Backlog:
        queue = self.queues.get(key)
        return NO_BACKLOG if queue is None else Backlog(len(queue), queue.isl_tokens)

    @property
    def requests(self) -> int:
        return self.usage.requests

    @property
    def isl_tokens(self) -> int:
        return self.usage.isl_tokens

    def backlog_by_class(self) -> dict[str, Backlog]:
        """Return the backlog by policy class, over all partitions."""
        found: dict[str, Backlog] = {}
        for queue in self.queues.values():
            for each in queue.queues:
                old = found.get(each.rules.name, NO_BACKLOG)
                found[each.rules.name] = old.plus(each.total.usage)
        return found

    def backlog_by_flow(self) -> dict[str, dict[str, Backlog]]:
        """Return the backlog by fairness_id and, outside, policy class, over all partitions."""
        found: dict[str, dict[str, Backlog]] = {}
        for queue in self.queues.values():
            for each in queue.queues:
                flows = found.setdefault(each.rules.name, {})
                for name, flow in each.flows.items():
                    flows[name] = flows.get(name, NO_BACKLOG).plus(flow.usage)
        return found

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        tickets = list(self)
        usages = [ticket.usage for ticket in tickets]
        assert self.usage == QueueUsage(*map(sum, zip(*usages, strict=True)))
        assert {
            i for t in tickets if (i := t.placement_request.reservation_id) is not None
        } == self._ids
        timed = {(t.deadline, t.number) for t in tickets if t.deadline < inf}
        assert timed == set(self._by_deadline)
        for queue in self.queues.values():
            queue.check_invariants()
            assert len(queue)


def lane_bits(partition: Partition, request: SelectRequest, pairs: PairChooser | None) -> LaneBits:
    """Return the candidates of a request; of each leg for a pair.  Raises SelectError."""
    allowed = find_candidates(partition.table, request)
    if pairs is None:
        return (pack_mask(allowed),)
    return tuple(map(pack_mask, pairs.leg_masks(partition, request, allowed)))


def _strand_all(queue: PartitionQueue, key: PartitionKey, budget: TurnBudget) -> QueueUpdate:
    """Remove requests of a partition that ended."""
    found = queue.take_first(budget.count_actions(turn_budget.REFUSE_WORK))
    budget.spend(turn_budget.REFUSE_WORK, len(found))
    text = f"no schedulable workers for model={key.model_name} tenant={key.tenant_id}"
    stranded: list[StrandedTicket] = [(ticket, NoWorkers(text)) for ticket in found]
    return QueueUpdate(stranded, len(queue) > 0, may_serve=False)


def _update_requests(
    queue: PartitionQueue, partition: Partition, budget: TurnBudget
) -> QueueUpdate:
    """Update the requests of a queue to the current ranks of its partition."""
    shape = (partition.block_size, partition.is_eagle)

    def is_unfit(old: Partition, _: int) -> bool:
        """Return whether the blocks of the requests were hashed with another block size."""
        return (old.block_size, old.is_eagle) != shape

    unfit = queue.take_group(is_unfit, budget.count_actions(turn_budget.REFUSE_WORK))
    budget.spend(turn_budget.REFUSE_WORK, len(unfit))
    text = f"the block size of model={partition.key.model_name} changed: send the request again"
    stranded: list[StrandedTicket] = [(ticket, NoWorkers(text)) for ticket in unfit]
    # A request that cannot be served must not be next, and few turns refuse all of these.
    if queue.groups.has_any(is_unfit):
        return QueueUpdate(stranded, has_more=True, may_serve=False)
    is_unbound = queue.rebind_some(partition, budget)
    found, is_stale = queue.refresh_candidates(
        TableVersion.of_partition(partition),
        lambda request, pairs: lane_bits(partition, request, pairs),
        budget,
    )
    # If ranks change in every turn, waiting for all lanes would keep all requests waiting.
    may_serve = not is_stale or queue.is_overtaken
    return QueueUpdate(stranded + found, is_unbound or is_stale, may_serve)
