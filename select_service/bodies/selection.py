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
    expected_output_tokens: U32 | None = None
    priority_jump: float | None = None
    strict_priority: U32 | None = None
    priority_tier: Name | None = None
    timeout_ms: TimeoutMs | None = None
    pinned_worker: PinnedWorker | None = None
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    routing_constraints: RoutingConstraints = msgspec.field(default_factory=RoutingConstraints)

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens")
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class SelectAndReserveRequest(SelectRequest, kw_only=True):
    """POST /select_and_reserve."""

    reservation_id: Id | None = None


class Overlap(Struct, kw_only=True):
    """Matched prompt tokens of the chosen worker, cumulative over tiers, best rank each."""

    longest_matched: int
    gpu: int
    dp: dict[int, int]
    cpu: int
    disk: int


class Selection(Struct, kw_only=True):
    selection_id: str | UnsetType = UNSET
    reservation_id: str | UnsetType = UNSET
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    endpoint: str
    block_size: int
    overlap: Overlap
    effective_prefill_tokens: int
