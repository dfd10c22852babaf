"""Facts about an engine's KV cache, as given in a registration."""

from typing import Annotated, Literal

from msgspec import Meta

from select_service.schemas.common import RequestBody

CACHE_GROUPS_MAX = 32
"""Maximum number of cache groups of an engine."""
CacheGroupNumber = Annotated[int, Meta(ge=0, le=2**16 - 1)]
CacheTokens = Annotated[int, Meta(ge=0, le=2**20)]
HashText = Annotated[str, Meta(min_length=1, max_length=256)]


class KvCacheHashFields(RequestBody, kw_only=True, omit_defaults=True):
    """Computation of the engine's own block hashes."""

    algorithm: HashText | None = None
    """Value of vLLM's `--prefix-caching-hash-algo`. `sha256` and `sha256_cbor` can be
    computed; with another algorithm, ends of prompts inside blocks stay a bound.
    """
    seed: HashText | None = None
    """First text of the chain: PYTHONHASHSEED of the engine. It is tried before the usual seeds."""


class KvCacheFields(RequestBody, kw_only=True, omit_defaults=True):
    """Facts about the KV cache that events do not show; every part is optional."""

    eagle_drop: bool | None = None
    """Whether the engine drops the last matched block of its draft (EAGLE or MTP without
    `lookahead_token_ids` in its events). When omitted, false; with `speculates`, unknown.
    """
    eagle_groups: Annotated[list[CacheGroupNumber], Meta(max_length=CACHE_GROUPS_MAX)] | None = None
    """Numbers of the cache groups of the draft; when omitted, all groups drop a block."""
    eagle_apart: bool = True
    """Whether the draft's layers have a cache layout of their own, even if it equals another."""
    chunk: Annotated[int, Meta(ge=1, le=2**30)] | None = None
    """Tokens of a chunk of chunked local attention (`attention_chunk_size` of the model)."""
    context_parallel: bool = False
    """Whether decode context parallelism is above 1."""
    replay: CacheTokens = 0
    """Tokens that the engine computes again after a hit (bounded replay of DeepSeek-V4.1)."""
    salted: bool = False
    """Whether requests may have cache salts; matters for models with states only."""
    hash: KvCacheHashFields | None = None
    """Computation of the engine's block hashes; found out from events when omitted."""
    groups: Annotated[int, Meta(ge=1, le=CACHE_GROUPS_MAX)] | None = None
    """Number of cache groups that publish events. Until all have done so, overlaps are upper
    bounds; when omitted, until every number below the highest one has.
    """
    certainty: Literal["exact", "at_most"] | None = None
    """`at_most`: events do not show everything that limits a hit, so overlaps are upper bounds, as
    for SGLang's hybrid models. `exact`, the default: they do.
    """
    speculates: bool | None = None
    """Whether the engine uses speculative decoding. If true, without `eagle_drop` and without
    lookahead in its events, overlaps are upper bounds.
    """
    unseen_tiers: bool = False
    """Whether the engine keeps blocks in host memory or on disk that its events do not show. The
    last rank of a session then counts as holding the last turn (`affinity: soft`).
    """
