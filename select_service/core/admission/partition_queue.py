"""Waiting requests of one partition, and the order of service.

A request waits in the queue of its policy class.  Order within a class: higher strict_priority
first, then higher score, then arrival.  Scores, with j = max(0, priority_jump):

    fcfs  j - arrival in seconds                   wspt  (1 + j) / uncached prompt tokens
    lcfs  j + arrival in seconds                   work  j - arrival - seconds of its own work

Requests of a class with equal constraints share a *lane*: all of these can run on the same ranks.
The head of a class is its first request, in class order, among lanes having a rank with room.  A
request thus never waits for another request with disjoint candidates, and never overtakes on a rank
usable by both.

A deficit round robin divides the room between classes.  A class gets `quantum` tokens of credit in
each round, and a request costs its uncached tokens, at least 1.  A class without a head gets no
credit, and an empty class loses its credit.  Rounds in which no class could pay are counted, not
walked, so one step costs O(classes + lanes).

Source: the reference's description of its queues ("Deficit Round Robin Queue Scheduling") and its
measured order; lanes are an extension.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sortedcontainers import SortedDict

from select_service.base.errors import QueueFull, SelectError
from select_service.core.admission.policy_classes import PolicyClass, QueuePolicy
from select_service.core.array_types import Mask
from select_service.core.decision_maker import PlacementDecision, PlacementRequest
from select_service.core.identity import Rank
from select_service.core.workers.rank_table import RankTable
from select_service.schemas.selection import SelectRequest

LANES_MAX = 1024
"""Maximum number of different constraints among the waiting requests of one class."""

REFRESHED_PER_TURN_MAX = 64
"""Lanes recomputed in one turn, after a change of ranks."""

ALLOWED_PER_STEP = 1024
"""Number of allowed workers that costs as much as another lane or request."""

BOOKED_PER_STEP = 128
"""Number of booked blocks that costs as much as another lane or request."""

Order = tuple[float, float, int]


class TableVersion(NamedTuple):
    """Version of a partition's rank table; versions of different tables may be equal numbers."""

    table: RankTable
    version: int


class ConstraintLane(NamedTuple):
    """Constraints of a request; equal constraints have equal candidates."""

    pinned: Rank | None
    allowed: frozenset[int] | None
    required: frozenset[str]


def lane_of(request: SelectRequest) -> ConstraintLane:
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    return ConstraintLane(
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        # A pinned request has one candidate, so the allowed workers make no difference.
        allowed=None if allowed is None or pinned is not None else frozenset(allowed),
        required=frozenset(request.routing_constraints.required_taints),
    )


def extra_work(request: SelectRequest, n_booked: int = 0) -> int:
    """Return the additional cost of a request with many allowed workers or many booked blocks."""
    return len(request.allowed_worker_ids or ()) // ALLOWED_PER_STEP + n_booked // BOOKED_PER_STEP


class RequestSize(NamedTuple):
    """Size of a request: prompt tokens, tokens cached on the best candidate, and least own work."""

    isl_tokens: int
    cached_tokens: int
    own_work: int = 1

    @property
    def cost(self) -> int:
        return max(1, self.isl_tokens - self.cached_tokens)


def _ignore_settling() -> None:
    """Ignore the event, as the default of `WaitingTicket.on_settled`."""


@dataclass(slots=True, eq=False)
class WaitingTicket:
    """One waiting request.  Settling sets `outcome` and calls `on_settled`.

    deadline: monotonic clock, seconds; infinite means no deadline
    position: position in the class at arrival, from 1
    """

    placement_request: PlacementRequest
    request: SelectRequest
    lane: ConstraintLane
    size: RequestSize
    class_index: int
    policy_class: str
    tier: int
    arrived_at: float
    deadline: float
    order: Order = (0.0, 0.0, 0)
    position: int = 0
    outcome: PlacementDecision | SelectError | None = None
    on_settled: Callable[[], None] = field(default=_ignore_settling)

    @property
    def number(self) -> int:
        """Arrival number over all partitions."""
        return self.order[2]

    def settle(self, outcome: PlacementDecision | SelectError) -> None:
        assert self.outcome is None
        self.outcome = outcome
        self.on_settled()


def score_of(
    policy: QueuePolicy, jump: float, arrived: float, size: RequestSize, token_s: float = 0.0
) -> float:
    """Return the score of a request; higher goes first.

    token_s: seconds per token, for `work`
    """
    jump = max(0.0, jump)
    if policy == "wspt":
        return (1.0 + jump) / size.cost
    if policy == "work":
        return jump - arrived - token_s * size.own_work
    return jump + arrived if policy == "lcfs" else jump - arrived


@dataclass(slots=True)
class _LaneTickets:
    """Tickets of one lane, in order.

    bits:     candidates of the lane, bit s for slot s
    found_in: rank table and version behind `bits`
    """

    request: SelectRequest
    bits: int
    found_in: TableVersion | None = None
    tickets: SortedDict[Order, WaitingTicket] = field(default_factory=SortedDict)


class _ClassQueue:
    """Queue of one policy class."""

    def __init__(self, rules: PolicyClass) -> None:
        self.rules = rules
        self.lanes: dict[ConstraintLane, _LaneTickets] = {}
        self.deficit = 0
        self.requests = 0
        self.isl_tokens = 0
        self.cached_tokens = 0

    def add(self, ticket: WaitingTicket, bits: int) -> None:
        """Add a ticket.

        bits: candidates of its lane
        """
        waiting = self.lanes.get(ticket.lane)
        if waiting is None:
            waiting = self.lanes[ticket.lane] = _LaneTickets(ticket.request, bits)
        # A ticket may rank before earlier arrivals, so the position is counted in each lane.
        ticket.position = 1 + sum(w.tickets.bisect(ticket.order) for w in self.lanes.values())
        waiting.tickets[ticket.order] = ticket
        self._add_to_counts(ticket, 1)

    def remove(self, ticket: WaitingTicket) -> None:
        waiting = self.lanes[ticket.lane]
        del waiting.tickets[ticket.order]
        if not waiting.tickets:
            del self.lanes[ticket.lane]
        self._add_to_counts(ticket, -1)
        # An empty class must not save up credit for a burst.
        if not self.requests:
            self.deficit = 0

    def _add_to_counts(self, ticket: WaitingTicket, sign: int) -> None:
        self.requests += sign
        self.isl_tokens += sign * ticket.size.isl_tokens
        self.cached_tokens += sign * ticket.size.cached_tokens

    def first_servable(self, free: Callable[[bool], int]) -> WaitingTicket | None:
        """Return the next request with a candidate with room.

        free: is the request pinned? -> slots with room for such requests, as bits
        """
        first: WaitingTicket | None = None
        for lane, waiting in self.lanes.items():
            if waiting.bits & free(lane.pinned is not None):
                ticket: WaitingTicket = waiting.tickets.values()[0]
                if first is None or ticket.order < first.order:
                    first = ticket
        return first

    def check_room(self, lane: ConstraintLane, size: RequestSize, n_workers: int) -> None:
        """Raise QueueFull when the request exceeds a limit."""
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
                raise _queue_full_error(rules.name, kind, current, limit * n_workers)
        if lane not in self.lanes and len(self.lanes) >= LANES_MAX:
            raise _queue_full_error(rules.name, "constraints", len(self.lanes), LANES_MAX)


def _queue_full_error(name: str, kind: str, current: int, limit: int) -> QueueFull:
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
    """Queues of one partition, which exist only while requests wait."""

    def __init__(self, classes: Sequence[PolicyClass]) -> None:
        self._queues = [_ClassQueue(rules) for rules in classes]
        self.waits_for_work = any(rules.waits_for_work for rules in classes)
        self.changes = -1
        """Change counter of the index at the last search for room, where remaining work
        determines room.
        """
        self._cursor = 0
        self._credited = False
        self._refreshed: TableVersion | None = None

    def __len__(self) -> int:
        return sum(queue.requests for queue in self._queues)

    def __iter__(self) -> Iterator[WaitingTicket]:
        for queue in self._queues:
            for waiting in queue.lanes.values():
                yield from waiting.tickets.values()

    @property
    def isl_tokens(self) -> int:
        return sum(queue.isl_tokens for queue in self._queues)

    @property
    def n_lanes(self) -> int:
        return sum(len(queue.lanes) for queue in self._queues)

    def class_counts(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over (class, requests, prompt tokens) of every class."""
        for queue in self._queues:
            yield queue.rules.name, queue.requests, queue.isl_tokens

    def class_rules(self, class_index: int) -> PolicyClass:
        return self._queues[class_index].rules

    def check_room(
        self, class_index: int, lane: ConstraintLane, size: RequestSize, n_workers: int
    ) -> None:
        """Raise QueueFull when the request exceeds a limit of its class."""
        self._queues[class_index].check_room(lane, size, n_workers)

    def add(self, ticket: WaitingTicket, bits: int) -> None:
        """Add a ticket.

        bits: candidates of its lane, bit s for slot s
        """
        self._queues[ticket.class_index].add(ticket, bits)

    def remove(self, ticket: WaitingTicket) -> None:
        self._queues[ticket.class_index].remove(ticket)

    def refresh_candidates(
        self, table: TableVersion, candidates: Callable[[SelectRequest], int]
    ) -> tuple[list[tuple[WaitingTicket, SelectError]], bool]:
        """Recompute the candidates of lanes, up to the limit of one turn.

        table:      version of the ranks, different for another partition
        candidates: returns the bits of a request's candidates, raises SelectError without any
        Returns the removed tickets without candidates, and whether more lanes remain.
        """
        stranded: list[tuple[WaitingTicket, SelectError]] = []
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
        # An unfinished refresh keeps the old version, so the next turn continues.
        self._refreshed = self._refreshed if more else table
        return stranded, more

    def take_next(self, free: Callable[[int, bool], int]) -> WaitingTicket | None:
        """Remove and return the next request in turn.  None means that no request has room.

        free: (class index, is the request pinned?) -> slots with room, as bits
        """
        heads = [queue.first_servable(partial(free, i)) for i, queue in enumerate(self._queues)]
        able = [(q, h) for q, h in zip(self._queues, heads, strict=True) if h is not None]
        if not able:
            return None
        chosen = self._find_affordable(heads)
        if chosen is None:
            self._skip_rounds(able)
            self._credited = False
            chosen = self._find_affordable(heads)
        assert chosen is not None
        ticket = heads[chosen]
        assert ticket is not None
        self._charge_class(chosen, ticket)
        return ticket

    def _find_affordable(self, heads: Sequence[WaitingTicket | None]) -> int | None:
        """Return the first class that can pay for its head, with the credit of one round."""
        n = len(self._queues)
        for step in range(n):
            index = (self._cursor + step) % n
            queue, head = self._queues[index], heads[index]
            if head is None:
                continue
            # The class at the cursor has received this round's credit in an earlier call.
            credited = self._credited and not step
            if queue.deficit < head.size.cost and not credited:
                queue.deficit += queue.rules.quantum
            if queue.deficit >= head.size.cost:
                return index
        return None

    def _skip_rounds(self, able: Sequence[tuple[_ClassQueue, WaitingTicket]]) -> None:
        """Add the credit of the rounds before the first in which a class can pay."""
        # A cost may be millions of tokens and a quantum 1: walking every round would take too long.
        rounds = min(-(-(h.size.cost - q.deficit) // q.rules.quantum) for q, h in able) - 1
        for queue, _ in able:
            queue.deficit += rounds * queue.rules.quantum

    def _charge_class(self, index: int, ticket: WaitingTicket) -> None:
        """Remove the ticket and subtract its cost.

        The ring stays at a class, without new credit, while the class can continue to pay.
        """
        queue = self._queues[index]
        queue.deficit -= ticket.size.cost
        queue.remove(ticket)
        self._credited = queue.requests > 0
        self._cursor = index if self._credited else (index + 1) % len(self._queues)

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        for index, queue in enumerate(self._queues):
            tickets = [t for w in queue.lanes.values() for t in w.tickets.values()]
            assert queue.requests == len(tickets)
            assert queue.isl_tokens == sum(t.size.isl_tokens for t in tickets)
            assert queue.cached_tokens == sum(t.size.cached_tokens for t in tickets)
            assert all(t.class_index == index and t.outcome is None for t in tickets)
            assert all(w.tickets for w in queue.lanes.values())
            assert queue.deficit >= 0
            assert queue.requests or not queue.deficit


def booked_blocks(job: PlacementRequest) -> int:
    """Return the number of blocks a booking of the request has by hash, an upper bound."""
    return len(job.prompt.sequence_hashes) if job.reserves else 0


def measure_request(job: PlacementRequest, allowed: Mask) -> RequestSize:
    """Return the size of a request, by the best of its allowed ranks."""
    cached, own_work = job.partition.find_best_tokens(job.prompt, job.config, allowed)
    return RequestSize(job.prompt.isl_tokens, min(cached, job.prompt.isl_tokens), own_work)


def drop_prompt(request: SelectRequest) -> SelectRequest:
    """Drop the token lists of a waiting request to save memory; the prompt has been hashed
    already.
    """
    request.token_ids = request.mm_routing_info = request.block_mm_infos = None
    request.block_hashes = request.sequence_hashes = None
    return request
