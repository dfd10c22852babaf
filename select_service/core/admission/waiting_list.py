"""All requests that wait in the process: a queue per partition, their ids and deadlines, and the
bounds of it all.

A ticket is in exactly one queue, and counted here, from `add` until it is removed or forgotten.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np
from sortedcontainers import SortedDict

from select_service.core.admission.policy_classes import QueueBounds
from select_service.core.admission.queue_view import bits_of
from select_service.core.admission.waiting import PartitionQueue, TableVersion, Ticket
from select_service.core.decide.candidates import candidates
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.errors import Conflict, NoWorkers, QueueFull, SelectError

WAITING_BLOCKS_MAX = 4_194_304
"""Prompt blocks of all waiting requests; 16 bytes each."""
WAITING_ALLOWED_IDS_MAX = 1_048_576
"""Entries of the `allowed_worker_ids` of all waiting requests; about 100 bytes each."""

STRANDED_PER_TURN_MAX = 256
"""Requests that are refused in one turn because nobody is left who could serve them."""


class Backlog(NamedTuple):
    """What waits somewhere."""

    requests: int
    isl_tokens: int


class WaitingList:
    """Queues exist only while somebody waits in them."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.queues: dict[PartitionKey, PartitionQueue] = {}
        self.requests = 0
        self.waits = np.zeros(1, np.int64)
        """[0]: `requests`.  For kernels; the array stays."""
        self.isl_tokens = 0
        self.bounds = bounds
        self._blocks = 0
        self._allowed_ids = 0
        self._ids: set[str] = set()
        self._by_deadline: SortedDict[tuple[float, int], Ticket] = SortedDict()

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self.queues.values():
            yield from queue

    # --- arrivals

    def refuse_if_waiting(self, reservation_id: str) -> None:
        """Raises Conflict when a waiting request will take this id."""
        if reservation_id in self._ids:
            raise Conflict(f"reservation {reservation_id} is waiting for a worker already")

    def refuse_beyond_bounds(self, ticket: Ticket) -> None:
        """Raises QueueFull."""
        for what, current, more, limit in (
            ("requests", self.requests, 1, self.bounds.requests_max),
            ("prompt tokens", self.isl_tokens, ticket.size.isl_tokens, self.bounds.isl_tokens_max),
            ("prompt blocks", self._blocks, _n_blocks(ticket), WAITING_BLOCKS_MAX),
            ("allowed ids", self._allowed_ids, _n_allowed_ids(ticket), WAITING_ALLOWED_IDS_MAX),
        ):
            if current + more > limit:
                raise QueueFull(
                    f"the queue is full: {current} {what} are waiting, {limit} is the most"
                )

    def add(self, queue: PartitionQueue, ticket: Ticket) -> None:
        """queue: that of the ticket's partition, new or known"""
        partition = ticket.job.partition
        queue.add(ticket, bits_of(candidates(partition.table, ticket.request)))
        self.queues[partition.key] = queue
        self._count(ticket, 1)
        if ticket.job.reservation_id is not None:
            self._ids.add(ticket.job.reservation_id)
        if ticket.deadline < inf:
            self._by_deadline[(ticket.deadline, ticket.number)] = ticket

    # --- departures

    def remove(self, ticket: Ticket) -> None:
        self.queues[ticket.job.partition.key].remove(ticket)
        self.forget(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Its queue has let it out."""
        self._count(ticket, -1)
        if ticket.job.reservation_id is not None:
            self._ids.discard(ticket.job.reservation_id)
        self._by_deadline.pop((ticket.deadline, ticket.number), None)
        key = ticket.job.partition.key
        queue = self.queues.get(key)  # several may have left it before one of them is forgotten
        if queue is not None and not len(queue):
            del self.queues[key]

    def overdue(self, now: float, tickets_max: int) -> list[Ticket]:
        """Whose time is over, the longest first; at most so many."""
        found: list[Ticket] = []
        for (deadline, _), ticket in self._by_deadline.items():
            if deadline > now or len(found) == tickets_max:
                break
            found.append(ticket)
        return found

    def take_stranded(
        self, key: PartitionKey, partition: Partition | None
    ) -> tuple[list[tuple[Ticket, SelectError]], bool]:
        """Take out those who wait in vain, and why: their ranks have all gone.

        Also returns whether there are more to be looked at, in another turn.
        """
        queue, more = self.queues.get(key), False
        if queue is None:
            return [], False
        if partition is None:
            text = f"no schedulable workers for model={key.model_name} tenant={key.tenant_id}"
            first = islice(queue, STRANDED_PER_TURN_MAX)
            stranded: list[tuple[Ticket, SelectError]] = [(t, NoWorkers(text)) for t in first]
            for ticket, _ in stranded:
                queue.remove(ticket)
            more = len(queue) > 0
        else:
            stranded = _rebound(queue, partition)
            table = partition.table
            seen = TableVersion(table, table.version)
            unfit, more = queue.refresh(seen, lambda r: bits_of(candidates(table, r)))
            stranded += unfit
        for ticket, _ in stranded:
            self.forget(ticket)
        return stranded, more

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.requests += sign
        self.waits[0] = self.requests
        self.isl_tokens += sign * ticket.size.isl_tokens
        self._blocks += sign * _n_blocks(ticket)
        self._allowed_ids += sign * _n_allowed_ids(ticket)

    # --- views

    def of(self, key: PartitionKey) -> Backlog:
        queue = self.queues.get(key)
        return Backlog(0, 0) if queue is None else Backlog(len(queue), queue.isl_tokens)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """All that waits, counted as by `size_of`."""
        return self.requests, self.isl_tokens, self._blocks, self._allowed_ids

    def by_class(self) -> dict[str, Backlog]:
        """What waits, by policy class, over all partitions."""
        found: dict[str, Backlog] = {}
        for queue in self.queues.values():
            for name, requests, tokens in queue.counts():
                old = found.get(name, Backlog(0, 0))
                found[name] = Backlog(old.requests + requests, old.isl_tokens + tokens)
        return found

    def check_invariants(self) -> None:
        """For tests."""
        tickets = list(self)
        assert self.requests == len(tickets)
        assert self.isl_tokens == sum(ticket.size.isl_tokens for ticket in tickets)
        assert self._blocks == sum(map(_n_blocks, tickets))
        assert self._allowed_ids == sum(map(_n_allowed_ids, tickets))
        assert {i for t in tickets if (i := t.job.reservation_id) is not None} == self._ids
        timed = {(t.deadline, t.number) for t in tickets if t.deadline < inf}
        assert timed == set(self._by_deadline)
        for queue in self.queues.values():
            queue.check_invariants()
            assert len(queue)


def _rebound(queue: PartitionQueue, partition: Partition) -> list[tuple[Ticket, SelectError]]:
    """All workers of a partition may have been replaced at once: its requests follow to the new
    ones.  Takes out and returns those whose blocks were hashed in another size.
    """
    stranded: list[tuple[Ticket, SelectError]] = []
    for ticket in queue:
        old = ticket.job.partition
        if old is partition:
            break
        if (old.block_size, old.is_eagle) == (partition.block_size, partition.is_eagle):
            ticket.job = ticket.job._replace(partition=partition)
        else:
            text = f"the workers of model={old.key.model_name} have another block size now"
            stranded.append((ticket, NoWorkers(text)))
    for ticket, _ in stranded:
        queue.remove(ticket)
    return stranded


def size_of(ticket: Ticket) -> tuple[int, int, int, int]:
    """Return what a ticket counts: requests, prompt tokens, prompt blocks and allowed ids."""
    return 1, ticket.size.isl_tokens, _n_blocks(ticket), _n_allowed_ids(ticket)


def _n_blocks(ticket: Ticket) -> int:
    return len(ticket.job.prompt.sequence_hashes)


def _n_allowed_ids(ticket: Ticket) -> int:
    return len(ticket.request.allowed_worker_ids or ())
