"""Compact forms of long lists: only names and numbers of ranks, in columns of equal length."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import U64
from select_service.schemas.health import HealthState
from select_service.schemas.kv_event_status import KvEventState
from select_service.schemas.workers import Lifecycle

CompactState = Lifecycle | HealthState | Literal["drained"]
Form = Literal["full", "compact"]


class CompactLoads(Struct, kw_only=True):
    """Load of the ranks of one model and tenant.

    Entry i of every column belongs to the same rank.
    """

    model_name: str
    """Model of these ranks."""
    tenant_id: str
    """Tenant of these ranks."""
    pending_count: int
    """Requests waiting for capacity now."""
    pending_isl_tokens: int
    """Prompt tokens of the requests waiting for capacity."""
    worker_ids: list[U64] = []
    """Ids of the workers; rows are sorted by worker and rank."""
    dp_ranks: list[int] = []
    """Data-parallel ranks of the workers."""
    prefill_tokens: list[int] = []
    """Prompt tokens not yet computed."""
    active_blocks: list[int] = []
    """Blocks held by live requests, including output blocks; a shared block counts once."""
    active_requests: list[int] = []
    """Live reservations."""


class CompactRanks(CompactLoads, kw_only=True):
    """Worker records of one model and tenant as columns, one row for each rank."""

    states: list[CompactState] = []
    """States of the ranks. A worker that cannot be chosen has its `lifecycle`; otherwise the health
    of the rank, or `schedulable` without health checks. A draining worker has `draining`, and
    `drained` once the rank has no reservation left.
    """
    busy: list[bool] = []
    """Whether the rank is above a busy threshold."""
    kv_usages: list[float | None] = []
    """Used fraction of the KV cache, 0 to 1, as reported by the engine or else from our accounting;
    null when neither is available.
    """
    event_states: list[KvEventState | None] = []
    """Same as `state` of `kv_events`; null for ranks without an event listener."""
    event_batches: list[int] = []
    """Applied batches of KV events."""
    event_ages_s: list[float | None] = []
    """Seconds since the last batch; null before the first batch."""
    bounded_rows: list[int] | UnsetType = UNSET
    """Rows of ranks whose overlaps are `at_most` or `unknown`, from 0; absent without any."""
    assumed_rows: list[int] | UnsetType = UNSET
    """Rows of ranks whose index comes from bookings alone, from 0; absent without any."""


class CompactWorkers(Struct, kw_only=True):
    """Response of GET /workers?view=compact."""

    partitions: list[CompactRanks]
    """Rows grouped by model and tenant."""
    next: int | None
    """Value of `after` for the next page; null on the last page."""


class CompactLoadPage(Struct, kw_only=True):
    """Response of GET /loads?view=compact."""

    partitions: list[CompactLoads]
    """Rows grouped by model and tenant."""
    next: int | None
    """Value of `after` for the next page; null on the last page."""
