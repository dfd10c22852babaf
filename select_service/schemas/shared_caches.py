"""Tokens of a prompt outside the chosen rank, in a shared cache or on another rank, in answers;
and the state of shared caches.
"""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

SharedOutcome: TypeAlias = Literal[
    "hit", "miss", "timeout", "failed", "open", "busy", "unsupported"
]
CacheKind: TypeAlias = Literal["mooncake", "lmcache"]


class SharedOverlap(Struct, kw_only=True):
    """Look-up of the prompt in the shared cache of the model."""

    outcome: SharedOutcome
    """`hit`, `miss`; without credit: `timeout`, `failed`, `open` (breaker), `busy` (too many
    look-ups), `unsupported` (the cache's keys do not follow from this prompt).
    """
    tokens: int
    """Tokens that the cache holds behind the prefix of the chosen rank in any storage."""
    credit: int
    """Tokens of prefill by which `effective_prefill_tokens` is lower: `tokens` times 1 minus
    `fetch_price`.
    """
    fetch_price: float | UnsetType = UNSET
    """Tokens of prefill that the rank computes while it fetches one token; absent without a hit,
    and where the registration gives no price.
    """


class FetchSource(Struct, kw_only=True):
    """Rank from which the missing part of a prompt can be fetched faster than computed."""

    worker_id: int
    """Id of the source's worker."""
    dp_rank: int
    """Data-parallel rank of the source."""
    endpoint: str
    """Request endpoint of the source's worker, as registered."""
    engine_id: str | UnsetType = UNSET
    """Id of the source's engine in the connector (`engine_ids` of `kv_transfer`); absent if not
    registered.
    """
    tokens: int
    """Leading tokens of the prompt in the GPU memory of the source."""
    fetch_tokens: int
    """Tokens of these that the chosen rank lacks."""
    fetch_price: float
    """Tokens of prefill that the chosen rank computes while one token moves; below 1."""


class SharedCacheView(Struct, kw_only=True):
    """State of the shared cache of one model."""

    model_name: str
    """Model whose prompts are looked up."""
    kind: CacheKind
    """Kind of the cache."""
    url: str
    """URL of the cache, which never has credentials."""
    answering: bool | None
    """Whether the latest look-up was answered in time; null before the first."""
    changed_s: float | None
    """Seconds for which `answering` has had this value; null before the first look-up."""
    breaker_open: bool
    """Whether look-ups are suspended, except for one trial in 5 seconds."""
    last_error: str | None
    """Error of the latest failed look-up, up to 200 characters; null before one. Late look-ups are
    no error.
    """
    error_s: float | None
    """Seconds since `last_error`."""
    lookups: dict[SharedOutcome, int]
    """Look-ups since the start, by outcome as of `SharedOverlap`."""
    hit_rate: float | None
    """Share of hits among hits and misses; null without any."""
    found_tokens: int
    """Leading prompt tokens found by all look-ups."""
    wait_ms: float | None
    """Mean time for which requests waited for their look-ups, with those answered from memory."""
    request_ms: float | None
    """Moving mean of the time of a request to the cache, with late answers; null before one."""
    in_flight: int
    """Look-ups that run now."""


class SharedCacheList(Struct, kw_only=True):
    """Response of GET /shared_caches."""

    caches: list[SharedCacheView]
    """Shared caches by model; empty without `--shared-caches`."""
