"""Bodies of the views: loads, overlaps, the level of the log."""

from typing import Literal

from msgspec import Struct

from select_service.bodies.common import RequestBody


class RankLoad(Struct, kw_only=True):
    """Load of one rank: what it is, or what it would be with a prompt on it."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    potential_prefill_tokens: int
    """Prompt tokens that are still to be computed."""
    potential_decode_blocks: int
    """Blocks that live requests hold, output blocks included; shared ones count once."""
    active_requests: int
    """Live reservations."""


class PartitionLoads(Struct, kw_only=True):
    """Load of the ranks of one model and tenant."""

    model_name: str
    """Model of these ranks."""
    tenant_id: str
    """Tenant of these ranks."""
    loads: list[RankLoad]
    """By worker and rank."""
    pending_count: int
    """Requests that wait for room now."""
    pending_isl_tokens: int
    """Prompt tokens of the requests that wait for room."""


class OverlapRow(Struct, kw_only=True):
    """How many leading blocks of the prompt one rank holds."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    device_blocks: int
    """Leading blocks in GPU memory."""
    host_pinned_blocks: int
    """Leading blocks in GPU or CPU memory; cumulative."""
    disk_blocks: int
    """Leading blocks anywhere: GPU, CPU, disk or external storage; cumulative."""
    host_pinned_extension_blocks: int
    """What CPU memory adds to `device_blocks`."""
    disk_extension_blocks: int
    """What disk and external storage add to `host_pinned_blocks`."""
    shared_beyond_device_blocks: int | None
    """Always null: there is no shared cache here. Field of the reference."""
    router_credit_blocks: float
    """Blocks that the cost function credits the rank with, each tier with its weight."""


class SharedCache(Struct, kw_only=True):
    """What a cache that all workers share holds of the prompt; always empty here."""

    enabled: bool = False
    """Always false: there is no shared cache here. Field of the reference."""
    total_hit_blocks: int = 0
    """Always 0."""
    ranges: list[int] = []
    """Always empty."""
    error: str | None = None
    """Always null."""


class OverlapScores(Struct, kw_only=True):
    """POST /overlap_scores."""

    block_size: int
    """Tokens in a block of this model."""
    num_blocks: int
    """Complete blocks of the prompt."""
    workers: list[OverlapRow]
    """By worker and rank."""
    shared_cache: SharedCache
    """Always empty here. Field of the reference."""


class LogLevelChange(RequestBody, kw_only=True):
    """PUT /log_level."""

    level: Literal["debug", "info", "warning", "error"]
    """Least level that is logged from now on; at `debug` every decision is a line."""


class LogLevelView(Struct, kw_only=True):
    """The level of the log as it was set at the start, and as it is."""

    configured: str
    """Of `--log-level`; counts again after a restart."""
    current: str
    """What counts now."""
