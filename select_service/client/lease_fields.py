"""What a lease may say of its prompt, as fields of POST /select_and_reserve."""

from collections.abc import Sequence
from typing import TypedDict

from select_service.bodies.prompts import (
    BlockMmInfo,
    MmRoutingInfo,
    PinnedWorker,
    RouterConfigOverride,
    RoutingConstraints,
)


class LeaseFields(TypedDict, total=False):
    """docs/api.md says what they mean.  Sequences of numbers may be numpy arrays."""

    model_name: str
    tenant_id: str
    routing_group: str
    token_ids: Sequence[int]
    mm_routing_info: MmRoutingInfo
    block_mm_infos: Sequence[BlockMmInfo | None]
    block_hashes: Sequence[int]
    sequence_hashes: Sequence[int]
    isl_tokens: int
    lora_name: str
    is_eagle: bool
    cache_salt: str
    router_config_override: RouterConfigOverride
    selection_id: str
    expected_output_tokens: int
    priority_jump: float
    strict_priority: int
    priority_tier: str
    timeout_ms: int
    pinned_worker: PinnedWorker
    allowed_worker_ids: Sequence[int]
    routing_constraints: RoutingConstraints
    reservation_id: str
    migratable: bool
