"""All waiting requests of the process: queues by partition, ids, deadlines and overall limits.

A ticket is in exactly one queue, and counted here, from `add` until removed or forgotten.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedDict

from select_service.base.errors import Conflict, NoWorkers, QueueFull, SelectError
from select_service.core.admission.partition_queue import (
    PartitionQueue,
    TableVersion,
    WaitingTicket,
)
from select_service.core.admission.policy_classes import QueueBounds
from select_service.core.admission.queue_headroom import mask_to_int
from select_service.core.identity import PartitionKey
from select_service.core.placement.candidates import find_candidates
from select_service.core.registry.fleet.partition import Partition

WAITING_BLOCKS_MAX = 4_194_304
"""Maximum prompt blocks of all waiting requests; 16 bytes each."""
WAITING_ALLOWED_IDS_MAX = 1_048_576
"""Maximum entries of `allowed_worker_ids` of all waiting requests; about 100 bytes each."""

STRANDED_PER_TURN_MAX = 256
"""Requests refused in one turn because their partition has no workers left."""


class Backlog(NamedTuple):
    """Number and prompt tokens of waiting requests."""

    requests: int
    isl_tokens: int


class WaitingList:
    """All queues; a queue exists only while requests wait in the queue."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queues: dict[PartitionKey, PartitionQueue] = {}
        self.requests = 0
        self.n_requests_array = np.zeros(1, np.int64)
        """int64[1], `requests` for kernels; the array is never replaced."""
        self.isl_tokens = 0
        self.bounds = bounds
        self._blocks = 0
        self._allowed_ids = 0
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

    def check_bounds(self, ticket: WaitingTicket) -> None:
        """Raise QueueFull when the ticket exceeds an overall limit."""
        for kind, current, more, limit in (
            ("requests", self.requests, 1, self.bounds.requests_max),
            ("prompt tokens", self.isl_tokens, ticket.size.isl_tokens, self.bounds.isl_tokens_max),
            ("prompt blocks", self._blocks, _n_blocks(ticket), WAITING_BLOCKS_MAX),
            ("allowed ids", self._allowed_ids, _n_allowed_ids(ticket), WAITING_ALLOWED_IDS_MAX),
        ):
            if current + more > limit:
                raise QueueFull(
                    f"the queue is full: {current} {kind} are waiting, the limit is {limit}"
                )

    def add(self, queue: PartitionQueue, ticket: WaitingTicket) -> None:
        """Add a ticket.

        queue: queue of the ticket's partition, possibly new
        """
        partition = ticket.placement_request.partition
        queue.add(ticket, mask_to_int(find_candidates(partition.table, ticket.request)))
        self.queues[partition.key] = queue
        self._add_to_counts(ticket, 1)
        if ticket.placement_request.reservation_id is not None:
            self._ids.add(ticket.placement_request.reservation_id)
        # Tickets without a deadline never expire and need no entry.
        if ticket.deadline < inf:
            self._by_deadline[(ticket.deadline, ticket.number)] = ticket

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

    def take_stranded(
        self, key: PartitionKey, partition: Partition | None
    ) -> tuple[list[tuple[WaitingTicket, SelectError]], bool]:
        """Remove requests without possible ranks; return these with their errors.

        Also returns whether more remain for another turn.
        """
        queue, more = self.queues.get(key), False
        if queue is None:
            return [], False
        if partition is None:
            text = f"no schedulable workers for model={key.model_name} tenant={key.tenant_id}"
            first = islice(queue, STRANDED_PER_TURN_MAX)
            stranded: list[tuple[WaitingTicket, SelectError]] = [
                (t, NoWorkers(text)) for t in first
            ]
            for ticket, _ in stranded:
                queue.remove(ticket)
            more = len(queue) > 0
        else:
            stranded = _rebind_requests(queue, partition)
            table = partition.table
            seen = TableVersion(table, table.version)
            unfit, more = queue.refresh_candidates(
                seen, lambda r: mask_to_int(find_candidates(table, r))
            )
            # Both kinds have left their queue already; only the counts remain.
            stranded += unfit
        for ticket, _ in stranded:
            self.forget_ticket(ticket)
        return stranded, more

    def _add_to_counts(self, ticket: WaitingTicket, sign: int) -> None:
        self.requests += sign
        # The fast path reads this array to learn whether any request waits.
        self.n_requests_array[0] = self.requests
        self.isl_tokens += sign * ticket.size.isl_tokens
        self._blocks += sign * _n_blocks(ticket)
        self._allowed_ids += sign * _n_allowed_ids(ticket)

    # Views

    def backlog_of(self, key: PartitionKey) -> Backlog:
        queue = self.queues.get(key)
        return Backlog(0, 0) if queue is None else Backlog(len(queue), queue.isl_tokens)

    @property
    def total_size(self) -> tuple[int, int, int, int]:
        """Total of all waiting requests, in the units of `measure_ticket`."""
        return self.requests, self.isl_tokens, self._blocks, self._allowed_ids

    def backlog_by_class(self) -> dict[str, Backlog]:
        """Return the backlog by policy class, over all partitions."""
        found: dict[str, Backlog] = {}
        for queue in self.queues.values():
            for name, requests, tokens in queue.class_counts():
                old = found.get(name, Backlog(0, 0))
                found[name] = Backlog(old.requests + requests, old.isl_tokens + tokens)
        return found

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        tickets = list(self)
        assert self.requests == len(tickets)
        assert self.isl_tokens == sum(ticket.size.isl_tokens for ticket in tickets)
        assert self._blocks == sum(map(_n_blocks, tickets))
        assert self._allowed_ids == sum(map(_n_allowed_ids, tickets))
        assert {
            i for t in tickets if (i := t.placement_request.reservation_id) is not None
        } == self._ids
        timed = {(t.deadline, t.number) for t in tickets if t.deadline < inf}
        assert timed == set(self._by_deadline)
        for queue in self.queues.values():
            queue.check_invariants()
            assert len(queue)


def _rebind_requests(
    queue: PartitionQueue, partition: Partition
) -> list[tuple[WaitingTicket, SelectError]]:
    """Rebind the requests of a partition after a replacement of all its workers.

    Removes and returns the requests with blocks hashed with another block size.
    """
    stranded: list[tuple[WaitingTicket, SelectError]] = []
    for ticket in queue:
        old = ticket.placement_request.partition
        # Requests are rebound all at once, so the first one shows whether any is left to do.
        if old is partition:
            break
        if (old.block_size, old.is_eagle) == (partition.block_size, partition.is_eagle):
            ticket.placement_request = ticket.placement_request._replace(partition=partition)
        else:
            text = f"the block size of model={old.key.model_name} changed: send the request again"
            stranded.append((ticket, NoWorkers(text)))
    for ticket, _ in stranded:
        queue.remove(ticket)
    return stranded


def measure_ticket(ticket: WaitingTicket) -> tuple[int, int, int, int]:
    """Return the requests, prompt tokens, prompt blocks and allowed ids of a ticket."""
    return 1, ticket.size.isl_tokens, _n_blocks(ticket), _n_allowed_ids(ticket)


def _n_blocks(ticket: WaitingTicket) -> int:
    return len(ticket.placement_request.prompt.sequence_hashes)


def _n_allowed_ids(ticket: WaitingTicket) -> int:
    return len(ticket.request.allowed_worker_ids or ())
