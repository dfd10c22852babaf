"""Bodies of /select and /select_and_reserve."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import (
    ALLOWED_WORKERS_MAX,
    U32,
    U64,
    U64_MAX,
    Certainty,
    Id,
    Name,
    TimeoutMs,
    check_u64_fields,
)
from select_service.schemas.prompts import PinnedWorker, PromptQuery, RoutingConstraints


class SelectRequest(PromptQuery, kw_only=True):
    """Body of POST /select."""

    selection_id: Id | None = None
    """Id returned in the response and in the log; not interpreted by the service."""
    expected_output_tokens: U32 | None = None
    """Forwarded to other replicas with a booking; otherwise unused."""
    priority_jump: float | None = None
    """Seconds by which the request is treated as if it had arrived earlier; only in the queue,
    within the policy class. Values below 0 count as 0, the default.
    """
    strict_priority: U32 | None = None
    """Queue priority within the policy class, highest first; 0 when omitted."""
    priority_tier: Name | None = None
    """Priority tier for load shedding; `--priority-default-tier` when omitted."""
    timeout_ms: TimeoutMs | None = None
    """Longest wait for capacity, milliseconds; 0: no wait. Never more than
    `--queue-timeout-secs`.
    """
    pinned_worker: PinnedWorker | None = None
    """The only rank that may be chosen; must be in `allowed_worker_ids` if that is given."""
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    """Ids of the eligible workers; all workers when omitted."""
    routing_constraints: RoutingConstraints = msgspec.field(default_factory=RoutingConstraints)
    """Eligible workers by taints; all workers when omitted."""
    include_hashes: bool = False
    """Whether the response contains `sequence_hashes` and `isl_tokens` of the prompt, for clients
    that forward the booking.
    """

    def __post_init__(self) -> None:
        check_u64_fields(self, "isl_tokens")
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class SelectAndReserveRequest(SelectRequest, kw_only=True):
    """Body of POST /select_and_reserve."""

    reservation_id: Id | None = None
    """Id of the new reservation, unique over all models and tenants; generated when omitted."""
    migratable: bool = True
    """Whether the request may continue on another rank when its worker fails or is drained. Set
    false for requests that cannot, such as several answers to a prompt, guided decoding and
    embeddings. Used with `--health-checks on`.
    """
    repeat: bool = False
    """Whether this request is a retry. If the reservation exists already, in this model and tenant
    and for this prompt, the response is the existing reservation and nothing is booked.
    """


class Overlap(Struct, kw_only=True):
    """Leading part of the prompt held by the chosen worker, in tokens."""

    longest_matched: int
    """Longest prefix on any rank of the worker, in any storage."""
    gpu: int
    """Prefix in GPU memory, on the best rank."""
    dp: dict[int, int]
    """Prefix in GPU memory, by rank."""
    cpu: int
    """Prefix in GPU or CPU memory, on the best rank."""
    disk: int
    """Prefix in GPU or CPU memory, on disk or in external storage, on the best rank."""
    certainty: Certainty | UnsetType = UNSET
    """Certainty of the prefix on the chosen rank: `exact`, or `at_most` for an upper bound; absent
    for a rank whose only cache group is dense.
    """


class Selection(Struct, kw_only=True):
    """Response with the chosen rank."""

    selection_id: str | UnsetType = UNSET
    """Id sent with the request; absent without an id."""
    reservation_id: str | UnsetType = UNSET
    """Id of the reservation; absent when nothing was booked."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """Id of the chosen worker."""
    dp_rank: int
    """Data-parallel rank of the chosen worker, to be passed on to the engine."""
    endpoint: str
    """Request endpoint of the worker, as registered."""
    block_size: int
    """Tokens in a block: report an output block after this many output tokens."""
    overlap: Overlap
    """Leading part of the prompt held by the worker."""
    effective_prefill_tokens: int
    """Prompt tokens that are not cached and must be computed; the load of a booking."""
    sequence_hashes: list[int] | UnsetType = UNSET
    """Identity of each complete block of the prompt in its sequence, unsigned; only on request."""
    isl_tokens: int | UnsetType = UNSET
    """Length of the prompt in tokens; only on request."""
