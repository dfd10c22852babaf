"""Bodies of /select and /select_and_reserve."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.bodies.common import (
    ALLOWED_WORKERS_MAX,
    U32,
    U64,
    U64_MAX,
    Id,
    Name,
    TimeoutMs,
    check_u64,
)
from select_service.bodies.prompts import PinnedWorker, PromptQuery, RoutingConstraints


class SelectRequest(PromptQuery, kw_only=True):
    """POST /select."""

    selection_id: Id | None = None
    """Given back in the answer and in the log; means nothing to the service."""
    expected_output_tokens: U32 | None = None
    """Told to other replicas with a booking; not used here."""
    priority_jump: float | None = None
    """How much earlier the request may go than its time of arrival says, in seconds; only while it
    waits, within its policy class. Below 0 counts as 0, the default."""
    strict_priority: U32 | None = None
    """Requests of a higher number go first, within their policy class; 0 when left out."""
    priority_tier: Name | None = None
    """Tier that may be shed; `--priority-default-tier` when left out."""
    timeout_ms: TimeoutMs | None = None
    """Milliseconds that the request waits for room at most; 0: not at all. Never more than
    `--queue-timeout-secs`."""
    pinned_worker: PinnedWorker | None = None
    """The one rank that may be chosen; it must be in `allowed_worker_ids` if that is given."""
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    """Only these workers may be chosen; all when left out."""
    routing_constraints: RoutingConstraints = msgspec.field(default_factory=RoutingConstraints)
    """Which workers may be chosen, by their taints; all when left out."""
    include_hashes: bool = False
    """Let the answer have `sequence_hashes` and `isl_tokens` of the prompt, for whoever has to tell
    others of the booking."""

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens")
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class SelectAndReserveRequest(SelectRequest, kw_only=True):
    """POST /select_and_reserve."""

    reservation_id: Id | None = None
    """Name of the new reservation, unique over all models and tenants; made up when left out."""
    migratable: bool = True
    """May it go on elsewhere when its worker fails or is drained? False for what cannot, as several
    answers to one prompt, guided decoding and embeddings; counts with `--health-checks on`."""
    repeat: bool = False
    """Was it sent before? If its reservation stands already, in this model and tenant and for this
    prompt, the answer is that booking and nothing is booked."""


class Overlap(Struct, kw_only=True):
    """What the chosen worker holds of the prompt's beginning, in tokens."""

    longest_matched: int
    """The most that any rank of the worker holds, in whatever storage."""
    gpu: int
    """In GPU memory, on its best rank."""
    dp: dict[int, int]
    """In GPU memory, by rank."""
    cpu: int
    """In GPU or CPU memory, on its best rank."""
    disk: int
    """In GPU or CPU memory, on disk or in external storage, on its best rank."""


class Selection(Struct, kw_only=True):
    """The chosen rank."""

    selection_id: str | UnsetType = UNSET
    """As it was sent; absent when none was."""
    reservation_id: str | UnsetType = UNSET
    """Name of the booking; absent when nothing was booked."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """The chosen worker."""
    dp_rank: int
    """Its data-parallel rank, to be passed on to the engine."""
    endpoint: str
    """Where the worker takes requests, as it was registered."""
    block_size: int
    """Tokens in a block: report one output block after as many output tokens."""
    overlap: Overlap
    """What the worker holds of the prompt."""
    effective_prefill_tokens: int
    """Prompt tokens that are not cached and must be computed; what a booking counts."""
    sequence_hashes: list[int] | UnsetType = UNSET
    """Identity of each complete block of the prompt in its sequence, unsigned; only when asked
    for."""
    isl_tokens: int | UnsetType = UNSET
    """Length of the prompt in tokens; only when asked for."""
