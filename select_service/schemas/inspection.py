"""Bodies of inspection: loads, overlap scores and the log level."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import Certainty, RankAddress, RequestBody


class RankLoad(RankAddress, kw_only=True):
    """Load of one rank, current or predicted with a given prompt."""

    potential_prefill_tokens: int
    """Prompt tokens not yet computed."""
    potential_decode_blocks: int
    """Blocks held by live requests, including output blocks; a shared block counts once."""
    active_requests: int
    """Live reservations."""


class PartitionLoads(Struct, kw_only=True):
    """Load of the ranks of one model and tenant."""

    model_name: str
    """Model of these ranks."""
    tenant_id: str
    """Tenant of these ranks."""
    routing_group: str | UnsetType = UNSET
    """The same as `tenant_id`; absent only from older versions."""
    loads: list[RankLoad]
    """Loads by worker and rank."""
    pending_count: int
    """Requests waiting for capacity now."""
    pending_isl_tokens: int
    """Prompt tokens of the requests waiting for capacity."""


class OverlapRow(RankAddress, kw_only=True):
    """Leading blocks of the prompt held by one rank."""

    device_blocks: int
    """Leading blocks in GPU memory."""
    host_pinned_blocks: int
    """Leading blocks in GPU or CPU memory; cumulative."""
    disk_blocks: int
    """Leading blocks anywhere: GPU, CPU, disk or external storage; cumulative."""
    host_pinned_extension_blocks: int
    """Blocks in CPU memory beyond `device_blocks`."""
    disk_extension_blocks: int
    """Blocks on disk and in external storage beyond `host_pinned_blocks`."""
    shared_beyond_device_blocks: int | None
    """Blocks in the shared cache beyond `device_blocks`, without effect on `router_credit_blocks`;
    null for a model without one.
    """
    reusable_tokens: int | UnsetType = UNSET
    """Tokens of the prompt that the engine reuses from GPU memory; absent for a rank whose only
    cache group is dense.
    """
    held_blocks: int | UnsetType = UNSET
    """Leading blocks in GPU memory of the dense cache group alone; with `reusable_tokens`."""
    certainty: Certainty | UnsetType = UNSET
    """Certainty of `reusable_tokens`: `exact`, or `at_most` and `at_least` for a bound; `assumed`
    with `assumed_blocks`.
    """
    assumed_blocks: int | UnsetType = UNSET
    """Blocks of `device_blocks` that no event confirms: the rank should hold them because of
    earlier bookings; absent when 0.
    """
    router_credit_blocks: float
    """Blocks credited to the rank by the cost function: the blocks of each tier times its
    weight.
    """


class SharedCache(Struct, kw_only=True):
    """Blocks of the prompt in a cache shared by all workers. Fields of Dynamo."""

    enabled: bool = False
    """Whether prompts of the model are looked up in a shared cache (`--shared-caches`)."""
    total_hit_blocks: int = 0
    """Leading blocks that the cache holds."""
    ranges: list[list[int]] = []
    """Begin and end of the held blocks; at most one range, from 0."""
    error: str | None = None
    """Outcome of a look-up without a result, such as `timeout`; null otherwise."""


class OverlapScores(Struct, kw_only=True):
    """Response of POST /overlap_scores."""

    block_size: int
    """Tokens in a block of this model."""
    num_blocks: int
    """Complete blocks of the prompt."""
    workers: list[OverlapRow]
    """Overlaps by worker and rank."""
    shared_cache: SharedCache
    """Blocks in the shared cache of the model."""


class LogLevelChange(RequestBody, kw_only=True):
    """Body of PUT /log_level."""

    level: Literal["debug", "info", "warning", "error"]
    """Minimum level of logged records from now on; `debug` logs every decision."""


class LogLevelView(Struct, kw_only=True):
    """Log level at the start and now."""

    configured: str
    """Value of `--log-level`, restored by a restart."""
    current: str
    """Level in effect now."""
