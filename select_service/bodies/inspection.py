"""Bodies of the views: loads and overlaps."""

from msgspec import Struct


class RankLoad(Struct, kw_only=True):
    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    potential_decode_blocks: int
    active_requests: int


class PartitionLoads(Struct, kw_only=True):
    model_name: str
    tenant_id: str
    loads: list[RankLoad]
    pending_count: int
    pending_isl_tokens: int


class OverlapRow(Struct, kw_only=True):
    worker_id: int
    dp_rank: int
    device_blocks: int
    host_pinned_blocks: int
    disk_blocks: int
    host_pinned_extension_blocks: int
    disk_extension_blocks: int
    shared_beyond_device_blocks: int | None
    router_credit_blocks: float


class SharedCache(Struct, kw_only=True):
    enabled: bool = False
    total_hit_blocks: int = 0
    ranges: list[int] = []
    error: str | None = None


class OverlapScores(Struct, kw_only=True):
    block_size: int
    num_blocks: int
    workers: list[OverlapRow]
    shared_cache: SharedCache
