"""A prompt in all its forms, and the words of a request about it."""

from typing import Annotated

from msgspec import Meta, Struct

from select_service.bodies.common import (
    TAINTS_MAX,
    U32,
    U64,
    Fraction,
    Hash,
    Name,
    NonNegative,
    Scope,
    Token,
    check_u64,
)


class MmObject(Struct, kw_only=True):
    mm_hash: U64
    offsets: list[tuple[int, int]]

    def __post_init__(self) -> None:
        check_u64(self, "mm_hash")


class BlockMmInfo(Struct, kw_only=True):
    mm_objects: list[MmObject]


class MmRoutingInfo(Struct, kw_only=True):
    routing_token_ids: list[Token]
    block_mm_infos: list[BlockMmInfo | None] | None = None


class PromptFields(Scope, kw_only=True):
    """A prompt as tokens (`mm_routing_info` before `token_ids`) or as hashes with their length."""

    token_ids: list[Token] | None = None
    mm_routing_info: MmRoutingInfo | None = None
    block_mm_infos: list[BlockMmInfo | None] | None = None
    block_hashes: list[Hash] | None = None
    sequence_hashes: list[Hash] | None = None
    isl_tokens: U64 | None = None
    lora_name: Name | None = None
    is_eagle: bool | None = None
    cache_salt: Name | None = None

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens")


class RouterConfigOverride(Struct, kw_only=True):
    """Per-request values that stand in for the process configuration."""

    overlap_score_credit: Fraction | None = None
    prefill_load_scale: NonNegative | None = None
    router_temperature: NonNegative | None = None
    shared_cache_multiplier: Fraction | None = None
    track_prefill_tokens: bool | None = None
    assume_kv_reuse: bool | None = None
    overlap_score_weight: NonNegative | None = None


class PinnedWorker(Struct, kw_only=True):
    worker_id: U64
    dp_rank: U32

    def __post_init__(self) -> None:
        check_u64(self, "worker_id")


class RoutingConstraints(Struct, kw_only=True):
    required_taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = []
    preferred_taints: Annotated[dict[Name, float], Meta(max_length=TAINTS_MAX)] = {}


class PromptQuery(PromptFields, kw_only=True):
    """POST /potential_loads and /overlap_scores."""

    router_config_override: RouterConfigOverride | None = None
