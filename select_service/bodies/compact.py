"""Compact forms of long lists: names and numbers of ranks only, as columns of equal length."""

from typing import Literal

from msgspec import Struct

from select_service.bodies.common import U64
from select_service.bodies.health import HealthState
from select_service.bodies.workers import KvEventState, Lifecycle

CompactState = Lifecycle | HealthState | Literal["drained"]
Form = Literal["full", "compact"]


class CompactLoads(Struct, kw_only=True):
    """Load of ranks of one model and tenant.  Entry i of every column is of the same rank."""

    model_name: str
    """Model of these ranks."""
    tenant_id: str
    """Tenant of these ranks."""
    pending_count: int
    """Requests that wait for room now."""
    pending_isl_tokens: int
    """Prompt tokens of the requests that wait for room."""
    worker_ids: list[U64] = []
    """Id of the worker; by worker and rank."""
    dp_ranks: list[int] = []
    """Data-parallel rank of the worker."""
    prefill_tokens: list[int] = []
    """Prompt tokens that are still to be computed."""
    active_blocks: list[int] = []
    """Blocks that live requests hold, output blocks included; shared ones count once."""
    active_requests: list[int] = []
    """Live reservations."""


class CompactRanks(CompactLoads, kw_only=True):
    """What stands in the records of workers of one model and tenant, rank by rank."""

    states: list[CompactState] = []
    """Of a worker that cannot be chosen its `lifecycle`; else the health of the rank, or
    `schedulable` where its health is not watched; of a worker that drains `draining`, and `drained`
    once nothing is left on the rank."""
    busy: list[bool] = []
    """Is it above a busy threshold?"""
    kv_usages: list[float | None] = []
    """Used part of its KV cache, 0 to 1, in the words of the engine, else by our own accounting;
    null when nobody can tell."""
    event_states: list[KvEventState | None] = []
    """As `state` of `kv_events`; null when nobody listens to the rank."""
    event_batches: list[int] = []
    """Batches of KV events that were applied."""
    event_ages_s: list[float | None] = []
    """Seconds since the last batch; null before the first one."""


class CompactWorkers(Struct, kw_only=True):
    """GET /workers?view=compact."""

    partitions: list[CompactRanks]
    """By model and tenant."""
    next: int | None
    """What `after` has to be for the next page; null: this was the last."""


class CompactLoadPage(Struct, kw_only=True):
    """GET /loads?view=compact."""

    partitions: list[CompactLoads]
    """By model and tenant."""
    next: int | None
    """What `after` has to be for the next page; null: this was the last."""
