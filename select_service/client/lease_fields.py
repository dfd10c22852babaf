"""Fields of POST /select_and_reserve that a lease accepts."""

from collections.abc import Sequence
from typing import TypedDict

from select_service.schemas.pairs import LegConstraints, LocalRule, PairTopology
from select_service.schemas.prompts import (
    BlockMmInfo,
    MmRoutingInfo,
    PinnedWorker,
    RouterConfigOverride,
    RoutingConstraints,
)
from select_service.schemas.sessions import AffinityMode, AffinityTarget, SessionContext


class LeaseFields(TypedDict, total=False):
    """Fields of the prompt and its routing; docs/reference/api.md describes them.

    Sequences of numbers may be numpy arrays.
    """

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
    deadline_ms: int
    fairness_id: str
    pinned_worker: PinnedWorker
    allowed_worker_ids: Sequence[int]
    routing_constraints: RoutingConstraints
    reservation_id: str
    migratable: bool
    session_id: str
    session_context: SessionContext
    affinity: AffinityMode
    affinity_target: AffinityTarget


class PairLeaseFields(LeaseFields, total=False):
    """Fields of POST /select_pair_and_reserve that a lease of a pair accepts."""

    prefill: LegConstraints
    decode: LegConstraints
    local: LocalRule
    topology: PairTopology
