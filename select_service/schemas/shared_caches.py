"""Tokens of a prompt outside the chosen rank, in answers: in a shared cache, or on another rank."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

SharedOutcome: TypeAlias = Literal[
    "hit", "miss", "timeout", "failed", "open", "busy", "unsupported"
]


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
