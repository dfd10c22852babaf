"""Waiting requests: their constraints, size, order and outcome.

Order within a flow (requests of a class with one fairness_id): higher strict_priority first, then
the earlier deadline, then higher score, then arrival.  Scores, with j = max(0, priority_jump):

    fcfs  j - arrival in seconds                   wspt  (1 + j) / uncached prompt tokens
    lcfs  j + arrival in seconds                   work  j - arrival - seconds of its own work
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from select_service.base.errors import SelectError
from select_service.core.admission.policy_classes import PolicyClass, QueuePolicy
from select_service.core.array_types import Mask
from select_service.core.decision_maker import PairChooser, PlacementDecision, PlacementRequest
from select_service.core.identity import Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.pairs import (
    LocalRule,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)
from select_service.schemas.selection import SelectRequest

ALLOWED_PER_STEP = 1024
"""Number of allowed workers that costs as much as another lane or request."""

BOOKED_PER_STEP = 128
"""Number of booked blocks that costs as much as another lane or request."""

UNNAMED_FLOW = ""
"""Flow of the requests without a fairness_id."""

Order = tuple[float, float, float, int]


class ConstraintLane(NamedTuple):
    """Constraints of a request; equal constraints have equal candidates."""

    pinned: Rank | None
    allowed: frozenset[int] | None
    required: frozenset[str]
    legs: tuple[LocalRule, frozenset[int] | None, frozenset[int] | None] | None = None
    """Constraints of a pair: rule for one rank, and allowed workers of prefill and decode."""

    @property
    def is_constrained(self) -> bool:
        """Whether the request names ranks, so that room elsewhere may be of no use to it."""
        legs = () if self.legs is None else self.legs[1:]
        named = (self.pinned, self.allowed, *legs)
        return bool(self.required) or any(each is not None for each in named)


def _legs_of(
    request: SelectRequest,
) -> tuple[LocalRule, frozenset[int] | None, frozenset[int] | None] | None:
    if not isinstance(request, SelectPairRequest | SelectPairAndReserveRequest):
        return None
    prefill, decode = (
        None if leg is None or leg.allowed_worker_ids is None else frozenset(leg.allowed_worker_ids)
        for leg in (request.prefill, request.decode)
    )
    return request.local, prefill, decode


def lane_of(request: SelectRequest) -> ConstraintLane:
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    return ConstraintLane(
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        # A pinned request has one candidate, so the allowed workers make no difference.
        allowed=None if allowed is None or pinned is not None else frozenset(allowed),
        required=frozenset(request.routing_constraints.required_taints),
        legs=_legs_of(request),
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


class QueueUsage(NamedTuple):
    """Usage of the limits of waiting requests."""

    requests: int = 0
    isl_tokens: int = 0
    blocks: int = 0
    allowed_ids: int = 0

    def plus(self, other: "QueueUsage", sign: int = 1) -> "QueueUsage":
        # Written out: every arrival and departure adds several.
        return QueueUsage(
            self.requests + sign * other.requests,
            self.isl_tokens + sign * other.isl_tokens,
            self.blocks + sign * other.blocks,
            self.allowed_ids + sign * other.allowed_ids,
        )


def _ignore_settling() -> None:
    """Ignore the event, as the default of `WaitingTicket.on_settled`."""


@dataclass(slots=True, eq=False)
class WaitingTicket:
    """One waiting request.  Settling sets `outcome` and calls `on_settled`.

    classes: classes of its queue
    deadline: end of the wait; monotonic clock, seconds; infinite means none
    order: strict_priority, negative; `due_at`; score, negative; arrival number
    position: position in its flow at arrival, from 1
    """

    placement_request: PlacementRequest
    request: SelectRequest
    lane: ConstraintLane
    size: RequestSize
    class_index: int
    classes: Sequence[PolicyClass]
    policy_class: str
    tier: int
    arrived_at: float
    deadline: float
    order: Order = (0.0, inf, 0.0, 0)
    position: int = 0
    outcome: PlacementDecision | SelectError | None = None
    on_settled: Callable[[], None] = field(default=_ignore_settling)

    @property
    def has_session(self) -> bool:
        """Whether the request belongs to a session."""
        return self.request.session_id is not None or self.request.session_context is not None

    @property
    def pairs(self) -> PairChooser | None:
        """Chooser of pairs, if the request is for one."""
        return self.placement_request.pairs if self.lane.legs is not None else None

    @property
    def flow(self) -> str:
        """Name of the flow, which shares room fairly with the others of its class."""
        return self.request.fairness_id or UNNAMED_FLOW

    @property
    def due_at(self) -> float:
        """Time by which the request needs its rank, monotonic clock; infinite means none."""
        return self.order[1]

    @property
    def number(self) -> int:
        """Arrival number over all partitions."""
        return self.order[3]

    @property
    def usage(self) -> "QueueUsage":
        """Usage of the limits of waiting requests."""
        return QueueUsage(
            1,
            self.size.isl_tokens,
            len(self.placement_request.prompt.sequence_hashes),
            len(self.request.allowed_worker_ids or ()),
        )

    def rebind(self, partition: Partition) -> None:
        """Bind the ticket to the partition made anew, if any; its blocks must fit."""
        if self.placement_request.partition is not partition:
            self.placement_request = self.placement_request._replace(partition=partition)

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


def booked_blocks(job: PlacementRequest) -> int:
    """Return the number of blocks a booking of the request has by hash, an upper bound."""
    return len(job.prompt.sequence_hashes) if job.reserves else 0


def measure_request(job: PlacementRequest, allowed: Mask) -> RequestSize:
    """Return the size of a request, by the best of its allowed ranks."""
    cached, own_work = job.partition.find_best_tokens(job.prompt, job.config, allowed)
    return RequestSize(job.prompt.isl_tokens, min(cached, job.prompt.isl_tokens), own_work)
