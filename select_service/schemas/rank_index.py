"""Views of the index of a rank: what it is assumed to hold, and how well predictions fit."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import U32, RequestBody


class RankAssumptions(Struct, kw_only=True):
    """Blocks that a rank is assumed to hold, because it computed them for a booking."""

    source: Literal["events", "assumed"]
    """`assumed`: the index of the rank has only assumed blocks. `events`: assumed blocks count
    beside those of its KV events, for a short time.
    """
    blocks: int
    """Blocks that are assumed now."""
    size: int
    """Most blocks that are assumed: the size of the rank's KV cache."""
    size_from: Literal["total_kv_blocks", "reports"]
    """`total_kv_blocks` as registered; `reports`: learned from the cached tokens that callers
    report with `prefill_complete`, from a large number on.
    """
    ttl_s: float | None
    """Seconds after its last booking during which a block is assumed; null: no limit."""
    silent_s: float | UnsetType = UNSET
    """Seconds since the last KV event of a rank that has stopped sending them; absent otherwise."""


class ReportedTokens(Struct, kw_only=True):
    """Cached tokens of prompts, as the engine reports them, and as the index had predicted them."""

    reports: int
    """Number of reports."""
    predicted_tokens: int
    """Tokens that the index expected in the cache of the rank at the bookings."""
    cached_tokens: int
    """Tokens that were cached, by the reports."""
    over_tokens: int
    """Tokens that were expected and not cached, over reports with fewer than expected."""
    under_tokens: int
    """Tokens that were cached and not expected, over reports with more than expected."""
    over_claims: int
    """Reports with at least half a block less than expected."""


class RankPredictions(Struct, kw_only=True):
    """Accuracy of predictions about a rank, from a sample of a few reservations per second."""

    checks: int
    """Prompts with new blocks that were looked up in the index after the prefill."""
    trust: float | None
    """Mean fraction of those blocks announced by the engine, 0 to 1, over about the last 32 checks;
    null before the first check.
    """
    waits: int
    """Waits for the end of a prefill compared with their predictions."""
    wait_error: float | None
    """Mean of |observed - predicted wait| divided by the longer of them, 0 to 1; null before the
    first wait.
    """
    tokens_per_s: float | None
    """Prefill speed of the rank observed in these waits, tokens per second."""
    suspect: str | UnsetType = UNSET
    """Probable cause of missing blocks; absent unless `trust` is below 0.5 after 8 checks or
    more.
    """


class ClearedCache(RequestBody, kw_only=True):
    """Body of POST /workers/{worker_id}/cache_cleared."""

    dp_rank: U32 | None = None
    """Data-parallel rank whose cache was cleared; all ranks of the worker when omitted."""


class ClearedBlocks(Struct, kw_only=True):
    """Assumed blocks of ranks whose cache was cleared."""

    assumed_blocks: dict[int, int]
    """Blocks that were assumed, by data-parallel rank; those of live reservations stay."""
