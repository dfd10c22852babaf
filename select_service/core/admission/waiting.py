"""Requests that wait for room in one partition, and the order in which they go.

A request waits in the queue of its policy class.  Within a class the order is: higher
strict_priority first, then higher score, then arrival.  Scores, with j = max(0, priority_jump):

    fcfs  j - arrival in seconds                   wspt  (1 + j) / uncached prompt tokens
    lcfs  j + arrival in seconds                   work  j - arrival - seconds of its own work

Requests of a class with the same constraints stand in one *lane*: all of them can run on the same
ranks.  The head of a class is the first request, in the order of the class, of the lanes that have
a rank with room.  So a request never waits for one whose candidates it does not share, and it never
overtakes one on a rank that both can use.

Between classes a deficit round robin shares the room out: a class gets `quantum` tokens of credit
whenever the ring comes by, and a request costs its uncached tokens, at least 1.  A class without a
head gets no credit; an empty class loses what it has.  Rounds in which nobody could pay are
counted, not walked, so one step costs O(classes + lanes).

Source: the reference's description of its queues ("Deficit Round Robin Queue Scheduling") and its
measured order; lanes are ours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from select_service.bodies.selection import SelectRequest
from select_service.core.admission.policy_classes import PolicyClass, QueuePolicy
from select_service.core.arrays import Mask
from select_service.core.decisions import Job
from select_service.core.identity import Rank
from select_service.core.workers.rank_table import RankTable
from select_service.errors import QueueFull, SelectError

LANES_MAX = 1024
"""Different sets of constraints among the waiting requests of one class."""

REFRESHED_PER_TURN_MAX = 64
"""Lanes whose candidates are found anew in one turn, after a change of ranks."""

ALLOWED_PER_STEP = 1024
"""Looking through so many allowed workers counts as much as one lane, or one request, more."""

BOOKED_PER_STEP = 128
"""Booking so many blocks does, too."""

Order = tuple[float, float, int]


class TableVersion(NamedTuple):
    """The ranks of a partition at some time; tables of different partitions count alike."""

    table: RankTable
    version: int


class Lane(NamedTuple):
    """Constraints of a request; equal ones have equal candidates."""

    pinned: Rank | None
    allowed: frozenset[int] | None
    required: frozenset[str]


def lane_of(request: SelectRequest) -> Lane:
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    return Lane(
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        allowed=None if allowed is None or pinned is not None else frozenset(allowed),
        required=frozenset(request.routing_constraints.required_taints),
    )


def extra_work(request: SelectRequest, n_booked: int = 0) -> int:
    """Looking for the candidates of a request with a long list of workers costs more than one, and
    so does a booking of many blocks."""
    return len(request.allowed_worker_ids or ()) // ALLOWED_PER_STEP + n_booked // BOOKED_PER_STEP


class Size(NamedTuple):
    """Prompt tokens of a request, those of them that the best candidate has cached, and what is the
    least that a candidate would compute.
    """

    isl_tokens: int
    cached_tokens: int
    own_work: int = 1

    @property
    def cost(self) -> int:
        return max(1, self.isl_tokens - self.cached_tokens)


def _unheard() -> None:
    """Nobody is told."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One waiting request.  `outcome` is there once it is settled, and `settled` is called then.

    deadline: seconds of the monotonic clock; infinite when it may wait for ever
    position: how many of its class were before it when it came, plus 1
    """

    job: Any
    request: SelectRequest
    lane: Lane
    size: Size
    class_index: int
    policy_class: str
    tier: int
    arrived: float
    deadline: float
    order: Order = (0.0, 0.0, 0)
    position: int = 0
    outcome: Any = None
    settled: Callable[[], None] = field(default=_unheard)

    @property
    def number(self) -> int:
        """Counts arrivals over all partitions."""
        return self.order[2]

    def settle(self, outcome: Any) -> None:
        assert self.outcome is None
        self.outcome = outcome
        self.settled()


def score_of(
    policy: QueuePolicy, jump: float, arrived: float, size: Size, token_s: float = 0.0
) -> float:
    """Higher goes first.  token_s: seconds that a token takes, for `work`"""
    jump = max(0.0, jump)
    if policy == "wspt":
        return (1.0 + jump) / size.cost
    if policy == "work":
        return jump - arrived - token_s * size.own_work
    return jump + arrived if policy == "lcfs" else jump - arrived


@dataclass(slots=True)
class _Waiting:
    """The tickets of one lane, in order.

    bits:     its candidates, bit s for slot s
    found_in: which rank table, and its version then
    """

    request: SelectRequest
    bits: int
    found_in: TableVersion | None = None
    tickets: SortedDict[Order, Ticket] = field(default_factory=SortedDict)


class _Queue:
    """One policy class."""

    def __init__(self, rules: PolicyClass) -> None:
        self.rules = rules
        self.lanes: dict[Lane, _Waiting] = {}
        self.deficit = 0
        self.requests = 0
        self.isl_tokens = 0
        self.cached_tokens = 0

    def add(self, ticket: Ticket, bits: int) -> None:
        """bits: the candidates of its lane."""
        waiting = self.lanes.get(ticket.lane)
        if waiting is None:
            waiting = self.lanes[ticket.lane] = _Waiting(ticket.request, bits)
        ticket.position = 1 + sum(w.tickets.bisect(ticket.order) for w in self.lanes.values())
        waiting.tickets[ticket.order] = ticket
        self._count(ticket, 1)

    def remove(self, ticket: Ticket) -> None:
        waiting = self.lanes[ticket.lane]
        del waiting.tickets[ticket.order]
        if not waiting.tickets:
            del self.lanes[ticket.lane]
        self._count(ticket, -1)
        if not self.requests:
            self.deficit = 0

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.requests += sign
        self.isl_tokens += sign * ticket.size.isl_tokens
        self.cached_tokens += sign * ticket.size.cached_tokens

    def head(self, free: Callable[[bool], int]) -> Ticket | None:
        """The next request that has a candidate with room: `free` is the slots (bits) for requests
        that are pinned, or are not.
        """
        first: Ticket | None = None
        for lane, waiting in self.lanes.items():
            if waiting.bits & free(lane.pinned is not None):
                ticket: Ticket = waiting.tickets.values()[0]
                if first is None or ticket.order < first.order:
                    first = ticket
        return first

    def refuse_if_full(self, lane: Lane, size: Size, n_workers: int) -> None:
        """Raises QueueFull."""
        rules = self.rules
        for kind, current, more, limit in (
            ("requests", self.requests, 1, rules.request_queue_limit_per_worker),
            (
                "raw_isl_tokens",
                self.isl_tokens,
                size.isl_tokens,
                rules.raw_isl_token_queue_limit_per_worker,
            ),
            (
                "cached_tokens",
                self.cached_tokens,
                size.cached_tokens,
                rules.cached_token_queue_limit_per_worker,
            ),
        ):
            if limit is not None and current + more > limit * n_workers:
                raise _full(rules.name, kind, current, limit * n_workers)
        if lane not in self.lanes and len(self.lanes) >= LANES_MAX:
            raise _full(rules.name, "constraints", len(self.lanes), LANES_MAX)


def _full(name: str, kind: str, current: int, limit: int) -> QueueFull:
    error = QueueFull(
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


class PartitionQueue:
    """All that waits in one partition.  Holds state only while somebody waits."""

    def __init__(self, classes: Sequence[PolicyClass]) -> None:
        self._queues = [_Queue(rules) for rules in classes]
        self.holds = any(rules.holds for rules in classes)
        self.changes = -1
        """Of the index when room was looked for, where it says what work is left."""
        self._cursor = 0
        self._credited = False
        self._refreshed: TableVersion | None = None

    def __len__(self) -> int:
        return sum(queue.requests for queue in self._queues)

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self._queues:
            for waiting in queue.lanes.values():
                yield from waiting.tickets.values()

    @property
    def isl_tokens(self) -> int:
        return sum(queue.isl_tokens for queue in self._queues)

    @property
    def n_lanes(self) -> int:
        return sum(len(queue.lanes) for queue in self._queues)

    def counts(self) -> Iterator[tuple[str, int, int]]:
        """(class, requests, prompt tokens) of every class."""
        for queue in self._queues:
            yield queue.rules.name, queue.requests, queue.isl_tokens

    def rules(self, class_index: int) -> PolicyClass:
        return self._queues[class_index].rules

    def refuse_if_full(self, class_index: int, lane: Lane, size: Size, n_workers: int) -> None:
        """Raises QueueFull."""
        self._queues[class_index].refuse_if_full(lane, size, n_workers)

    def add(self, ticket: Ticket, bits: int) -> None:
        """bits: the candidates of its lane, bit s for slot s."""
        self._queues[ticket.class_index].add(ticket, bits)

    def remove(self, ticket: Ticket) -> None:
        self._queues[ticket.class_index].remove(ticket)

    def refresh(
        self, table: TableVersion, candidates: Callable[[SelectRequest], int]
    ) -> tuple[list[tuple[Ticket, SelectError]], bool]:
        """Recompute who may run where, for so many lanes as one turn may; takes out and returns
        those that no rank fits any more, and whether there are other lanes to be looked at.

        table:      changes with the ranks of the partition, and with the partition
        candidates: bits of a request's candidates; raises SelectError when there are none
        """
        stranded: list[tuple[Ticket, SelectError]] = []
        if table == self._refreshed:
            return stranded, False
        lanes = (waiting for queue in self._queues for waiting in queue.lanes.values())
        stale = [waiting for waiting in lanes if waiting.found_in != table]
        left, looked_at = REFRESHED_PER_TURN_MAX, 0
        for waiting in stale:
            if left <= 0:
                break
            left -= 1 + extra_work(waiting.request)
            looked_at += 1
            waiting.found_in = table
            try:
                waiting.bits = candidates(waiting.request)
            except SelectError as error:
                stranded += [(ticket, error) for ticket in waiting.tickets.values()]
        for ticket, _ in stranded:
            self.remove(ticket)
        more = len(stale) > looked_at
        self._refreshed = self._refreshed if more else table
        return stranded, more

    def next(self, free: Callable[[int, bool], int]) -> Ticket | None:
        """The request whose turn it is, taken out; None when nobody who waits has room.

        free: class index, is it for pinned requests? -> slots (bits) with room for them
        """
        heads = [queue.head(partial(free, i)) for i, queue in enumerate(self._queues)]
        able = [(q, h) for q, h in zip(self._queues, heads, strict=True) if h is not None]
        if not able:
            return None
        chosen = self._affordable(heads)
        if chosen is None:
            self._skip_rounds(able)
            self._credited = False
            chosen = self._affordable(heads)
        assert chosen is not None
        ticket = heads[chosen]
        assert ticket is not None
        self._charge(chosen, ticket)
        return ticket

    def _affordable(self, heads: Sequence[Ticket | None]) -> int | None:
        """One round: the first class that can pay for its head, with the credit of this round."""
        n = len(self._queues)
        for step in range(n):
            index = (self._cursor + step) % n
            queue, head = self._queues[index], heads[index]
            if head is None:
                continue
            credited = self._credited and not step
            if queue.deficit < head.size.cost and not credited:
                queue.deficit += queue.rules.quantum
            if queue.deficit >= head.size.cost:
                return index
        return None

    def _skip_rounds(self, able: Sequence[tuple[_Queue, Ticket]]) -> None:
        """Credit for the rounds before the first in which a class will be able to pay."""
        rounds = min(-(-(h.size.cost - q.deficit) // q.rules.quantum) for q, h in able) - 1
        for queue, _ in able:
            queue.deficit += rounds * queue.rules.quantum

    def _charge(self, index: int, ticket: Ticket) -> None:
        """Take the ticket out and its cost off.  The ring stays at a class, without more credit,
        while that can go on paying.
        """
        queue = self._queues[index]
        queue.deficit -= ticket.size.cost
        queue.remove(ticket)
        self._credited = queue.requests > 0
        self._cursor = index if self._credited else (index + 1) % len(self._queues)

    def check_invariants(self) -> None:
        """For tests."""
        for index, queue in enumerate(self._queues):
            tickets = [t for w in queue.lanes.values() for t in w.tickets.values()]
            assert queue.requests == len(tickets)
            assert queue.isl_tokens == sum(t.size.isl_tokens for t in tickets)
            assert queue.cached_tokens == sum(t.size.cached_tokens for t in tickets)
            assert all(t.class_index == index and t.outcome is None for t in tickets)
            assert all(w.tickets for w in queue.lanes.values())
            assert queue.deficit >= 0
            assert queue.requests or not queue.deficit


def booked_blocks(job: Job) -> int:
    """That its booking would have by name, and more."""
    return len(job.prompt.sequence_hashes) if job.reserves else 0


def size_of(job: Job, allowed: Mask) -> Size:
    """By the best of the ranks that it may go to."""
    cached, own_work = job.partition.best_tokens(job.prompt, job.config, allowed)
    return Size(job.prompt.isl_tokens, min(cached, job.prompt.isl_tokens), own_work)


def without_prompt(request: SelectRequest) -> SelectRequest:
    """What is waiting must not hold token lists: the prompt has been hashed already."""
    request.token_ids = request.mm_routing_info = request.block_mm_infos = None
    request.block_hashes = request.sequence_hashes = None
    return request
