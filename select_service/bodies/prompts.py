"""A prompt in all its forms, and the words of a request about it."""

from typing import Annotated

from msgspec import Meta, field

from select_service.bodies.common import (
    TAINTS_MAX,
    U32,
    U64,
    Fraction,
    Hash,
    Name,
    NonNegative,
    RequestBody,
    Scope,
    Token,
    check_u64,
)

Place = Annotated[list[int], Meta(min_length=2, max_length=2)]
"""Two numbers.  Not a tuple: generators of clients do not know arrays of a fixed form."""


class MmObject(RequestBody, kw_only=True):
    """An image, or another thing that is no text, in the prompt."""

    mm_hash: U64
    """Hash of its content."""
    offsets: list[Place]
    """Where it stands in the prompt. Accepted as by the reference; not used: what counts is in
    which entries of `block_mm_infos` the object is."""

    def __post_init__(self) -> None:
        check_u64(self, "mm_hash")


class BlockMmInfo(RequestBody, kw_only=True):
    """What one block of the prompt holds besides text."""

    mm_objects: list[MmObject]
    """In their order in the block."""


class MmRoutingInfo(RequestBody, kw_only=True):
    """A prompt with images, as the engine's cache sees it."""

    routing_token_ids: list[Token]
    """Token ids of the prompt with its placeholders expanded; empty: `token_ids` counts."""
    block_mm_infos: list[BlockMmInfo | None] | None = None
    """One entry for each block, null for blocks of text alone."""


class PromptFields(Scope, kw_only=True):
    """A prompt as tokens (`mm_routing_info` before `token_ids`) or as hashes with their length."""

    token_ids: list[Token] | None = None
    """Token ids of the whole prompt; the service computes the hashes."""
    mm_routing_info: MmRoutingInfo | None = None
    """The prompt when it holds images; comes before `token_ids`."""
    block_mm_infos: list[BlockMmInfo | None] | None = None
    """Images by block of `token_ids`; null for blocks of text alone."""
    block_hashes: list[Hash] | None = None
    """Hash of the content of each complete block, of a client that hashes by itself; used when no
    tokens are given."""
    sequence_hashes: list[Hash] | None = None
    """Identity of each complete block in its sequence, as many as `block_hashes`; used when no
    tokens are given."""
    isl_tokens: U64 | None = None
    """Length of the prompt in tokens; used when no tokens are given."""
    lora_name: Name | None = None
    """LoRA adapter; prompts of different adapters share no blocks."""
    is_eagle: bool | None = None
    """Hash as engines with EAGLE speculation do; what the workers registered when left out."""
    cache_salt: Name | None = None
    """Prompts of different salts share no blocks."""

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens")


class RouterConfigOverride(RequestBody, kw_only=True):
    """Values that stand in for the configuration of the process, for this request."""

    overlap_score_credit: Fraction | None = None
    """Credit for a block in GPU memory, 0 to 1; only the policy `reference` heeds it."""
    prefill_load_scale: NonNegative | None = None
    """Weight of the prefill part of the cost; only the policy `reference` heeds it."""
    router_temperature: NonNegative | None = None
    """0 takes the cheapest rank; above, ranks are drawn by cost."""
    shared_cache_multiplier: Fraction | None = None
    """Accepted as by the reference; not used, since there is no shared cache."""
    track_prefill_tokens: bool | None = None
    """Do the prompt's tokens count as load?"""
    assume_kv_reuse: bool | None = None
    """May the request share blocks with others of its rank?"""
    overlap_score_weight: NonNegative | None = None
    """Deprecated: sets `prefill_load_scale`; 0 also sets `overlap_score_credit` to 0."""

    def of_reference(self) -> list[str]:
        """Names of the values given that only the policy `reference` heeds."""
        names = "overlap_score_credit", "prefill_load_scale", "overlap_score_weight"
        return [name for name in names if getattr(self, name) is not None]


class PinnedWorker(RequestBody, kw_only=True):
    """The one rank that may be chosen."""

    worker_id: U64
    """Id of the worker."""
    dp_rank: U32
    """Data-parallel rank of the worker."""

    def __post_init__(self) -> None:
        check_u64(self, "worker_id")


class RoutingConstraints(RequestBody, kw_only=True):
    """Which workers may run the request, by their taints."""

    required_taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = field(
        default_factory=list
    )
    """A worker must have all of these."""
    preferred_taints: Annotated[dict[Name, float], Meta(max_length=TAINTS_MAX)] = field(
        default_factory=dict
    )
    """Taint to weight: above 0 makes workers that have it cheaper, below 0 dearer."""


class PromptQuery(PromptFields, kw_only=True):
    """A question about a prompt that chooses nothing."""

    router_config_override: RouterConfigOverride | None = None
    """Other scheduling parameters for this request."""
