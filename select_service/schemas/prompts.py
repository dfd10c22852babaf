"""Forms of a prompt in requests, and the request fields about a prompt."""

from typing import Annotated

from msgspec import Meta, field

from select_service.schemas.common import (
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
    check_u64_fields,
)

IntPair = Annotated[list[int], Meta(min_length=2, max_length=2)]
"""Pair of numbers.  Not a tuple: client generators cannot express arrays of a fixed form."""


class MmObject(RequestBody, kw_only=True):
    """Image or other object in the prompt that is not text."""

    mm_hash: U64
    """Number that the engine's name of the object gives: the first 16 of 64 hexadecimal digits, or
    XXH3-64 of any other name.
    """
    offsets: list[IntPair]
    """Position in the prompt. Accepted for compatibility with Dynamo and ignored: relevant
    are only the entries of `block_mm_infos` that contain the object.
    """

    def __post_init__(self) -> None:
        check_u64_fields(self, "mm_hash")


class BlockMmInfo(RequestBody, kw_only=True):
    """Objects other than text in one block of the prompt."""

    mm_objects: list[MmObject]
    """Objects in the order of the block."""


class MmRoutingInfo(RequestBody, kw_only=True):
    """Prompt with images, as the engine's cache identifies its blocks."""

    routing_token_ids: list[Token]
    """Token ids of the prompt with expanded placeholders; empty: `token_ids` is used."""
    block_mm_infos: list[BlockMmInfo | None] | None = None
    """Images by block, null for blocks of text only."""


class PromptFields(Scope, kw_only=True):
    """Prompt as tokens (`mm_routing_info` takes precedence over `token_ids`) or as hashes and
    length.
    """

    token_ids: list[Token] | None = None
    """Token ids of the whole prompt; the service computes the hashes."""
    mm_routing_info: MmRoutingInfo | None = None
    """Prompt with images; takes precedence over `token_ids`."""
    block_mm_infos: list[BlockMmInfo | None] | None = None
    """Images by block of `token_ids`; null for blocks of text only."""
    block_hashes: list[Hash] | None = None
    """Content hash of each complete block, computed by the client; used when no tokens are
    given.
    """
    sequence_hashes: list[Hash] | None = None
    """Identity of each complete block in its sequence, same length as `block_hashes`; used when no
    tokens are given.
    """
    isl_tokens: U64 | None = None
    """Length of the prompt in tokens; used when no tokens are given."""
    lora_name: Name | None = None
    """LoRA adapter; prompts of different adapters share no blocks."""
    is_eagle: bool | None = None
    """Whether to hash like engines with EAGLE speculation; the setting of the workers when
    omitted.
    """
    cache_salt: Name | None = None
    """Prompts of different salts share no blocks."""

    def __post_init__(self) -> None:
        check_u64_fields(self, "isl_tokens")


class RouterConfigOverride(RequestBody, kw_only=True):
    """Scheduling parameters that override the configuration of the process for this request."""

    overlap_score_credit: NonNegative | None = None
    """Credit for a block in GPU memory, usually 0 to 1; only for Dynamo's rule (policy
    `reference`).
    """
    prefill_load_scale: NonNegative | None = None
    """Weight of the prefill part of the cost; only for Dynamo's rule (policy `reference`)."""
    router_temperature: NonNegative | None = None
    """Temperature of the choice. 0: the cheapest rank; above 0: random, weighted by cost."""
    shared_cache_multiplier: Fraction | None = None
    """Accepted for compatibility with Dynamo and ignored: the credit for a shared cache follows
    from links and speeds.
    """
    track_prefill_tokens: bool | None = None
    """Whether the prompt's tokens count as load."""
    assume_kv_reuse: bool | None = None
    """Whether the request may share blocks with other requests of its rank."""
    overlap_score_weight: NonNegative | None = None
    """Deprecated: sets `prefill_load_scale`; 0 also sets `overlap_score_credit` to 0."""

    def reference_only_names(self) -> list[str]:
        """Return the names of the given parameters that only the policy `reference` uses."""
        names = "overlap_score_credit", "prefill_load_scale", "overlap_score_weight"
        return [name for name in names if getattr(self, name) is not None]


class PinnedWorker(RequestBody, kw_only=True):
    """The only rank that may be chosen."""

    worker_id: U64
    """Id of the worker."""
    dp_rank: U32
    """Data-parallel rank of the worker."""

    def __post_init__(self) -> None:
        check_u64_fields(self, "worker_id")


class RoutingConstraints(RequestBody, kw_only=True):
    """Eligible workers of a request, by taints."""

    required_taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = field(
        default_factory=list
    )
    """Taints that a worker must have to be eligible."""
    preferred_taints: Annotated[dict[Name, float], Meta(max_length=TAINTS_MAX)] = field(
        default_factory=dict
    )
    """Weights by taint: above 0 makes workers with the taint cheaper, below 0 more expensive."""


class PromptQuery(PromptFields, kw_only=True):
    """Query about a prompt that places nothing."""

    router_config_override: RouterConfigOverride | None = None
    """Scheduling parameters of this request only."""
