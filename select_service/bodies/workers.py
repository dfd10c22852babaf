"""Bodies of the worker catalog and of readiness."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.bodies.common import (
    DEFAULT_NAME,
    RANKS_PER_WORKER_MAX,
    TAINTS_MAX,
    U32,
    U64,
    Endpoint,
    Id,
    Name,
    check_u64,
)


class WorkerFields(Struct, kw_only=True):
    """What POST and PATCH of a worker share.  In a PATCH, absent or null keeps the old value."""

    endpoint: Endpoint | None = None
    kv_events_endpoint: Endpoint | None = None
    replay_endpoint: Endpoint | None = None
    block_size: U32 | None = None
    data_parallel_start_rank: U32 | None = None
    data_parallel_size: U32 | None = None
    max_num_batched_tokens: U64 | None = None
    total_kv_blocks: U64 | None = None
    stable_routing_id: Id | None = None
    is_eagle: bool | None = None
    kv_transfer_domain: Name | None = None
    kv_transfer_enforcement: Literal["required", "preferred"] | None = None
    kv_transfer_preferred_weight: float | None = None
    kv_event_semantics: Literal["counted", "set"] | None = None
    metrics_endpoint: Endpoint | None = None


class WorkerRegistration(WorkerFields, kw_only=True):
    """POST /workers: replaces the whole record of `worker_id`."""

    worker_id: U64
    model_name: Name = DEFAULT_NAME
    tenant_id: Name | UnsetType = UNSET
    routing_group: Name | UnsetType = UNSET
    kv_events_endpoints: Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)] = {}
    replay_endpoints: Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)] = {}
    taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = []
    topology_domains: Annotated[dict[Name, Name], Meta(max_length=TAINTS_MAX)] = {}

    def __post_init__(self) -> None:
        check_u64(self, "worker_id", "max_num_batched_tokens", "total_kv_blocks")


class WorkerPatch(WorkerFields, kw_only=True):
    """PATCH /workers/{worker_id}: a given collection replaces the old one, an empty one empties."""

    kv_events_endpoints: (
        Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)] | None
    ) = None
    replay_endpoints: (
        Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)] | None
    ) = None
    taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] | None = None
    topology_domains: Annotated[dict[Name, Name], Meta(max_length=TAINTS_MAX)] | None = None

    def __post_init__(self) -> None:
        check_u64(self, "max_num_batched_tokens", "total_kv_blocks")


KvEventState = Literal["connected", "catching_up", "degraded", "no_events_yet"]


class KvEventStatus(Struct, kw_only=True):
    """What the listener of one rank has seen since it was opened."""

    state: KvEventState
    last_sequence: int | None
    batches: int
    gaps: int
    replayed: int
    lost: int
    restarts: int
    decode_errors: int
    last_error: str | None
    seconds_since_last_event: float | None


class EngineView(Struct, kw_only=True):
    """What the engine of a rank said last; `fresh` when it counts, at this age."""

    fresh: bool
    age_s: float
    kv_usage: float | None
    requests_waiting: int | None
    requests_running: int | None


class RankAdmission(Struct, kw_only=True):
    """How a rank stands to the busy thresholds.

    kv_usage:  used part of its KV cache; null when nobody can tell
    source:    who says so: the engine, or our own accounting
    """

    busy: bool
    active_prefill_tokens: int
    kv_usage: float | None
    source: Literal["engine", "accounting"]
    engine: EngineView | None


class WorkerAdmission(Struct, kw_only=True):
    """A worker is busy when all its ranks are.

    not_judged: thresholds that are set and cannot judge it, and why
    """

    busy: bool
    not_judged: list[str]
    engine_error: str | None
    ranks: dict[int, RankAdmission]


Lifecycle = Literal["incomplete", "schedulable", "draining", "unschedulable"]


class WorkerRecord(Struct, kw_only=True):
    """A worker as the catalog sees it.  Unset scalars are null."""

    worker_id: int
    model_name: str
    tenant_id: str
    lifecycle: Lifecycle
    endpoint: str | None
    kv_events_endpoint: str | None
    kv_events_endpoints: dict[int, str] | UnsetType = UNSET
    replay_endpoint: str | None
    block_size: int | None
    data_parallel_start_rank: int | None
    data_parallel_size: int | None
    max_num_batched_tokens: int | None
    total_kv_blocks: int | None
    stable_routing_id: str | None
    is_eagle: bool | None
    taints: list[str]
    topology_domains: dict[str, str]
    kv_transfer_domain: str | None
    kv_transfer_enforcement: str | None
    kv_transfer_preferred_weight: float | None
    not_schedulable_reasons: list[str] | UnsetType = UNSET
    replay_endpoints: dict[int, str] | UnsetType = UNSET
    kv_event_semantics: str | UnsetType = UNSET
    metrics_endpoint: str | UnsetType = UNSET
    kv_events: dict[int, KvEventStatus] | UnsetType = UNSET
    admission: WorkerAdmission | UnsetType = UNSET


class RecoveryView(Struct, kw_only=True):
    """How the recovery at the start goes, or went; `peer`: the URL or file of most of it."""

    state: Literal["off", "running", "found", "empty", "failed", "cancelled"]
    peer: str | None
    partitions: int
    blocks: int
    bytes: int
    elapsed_s: float


class Ready(Struct, kw_only=True):
    ready: bool
    schedulable_workers: int
    workers: list[WorkerRecord]
    recovery: RecoveryView | UnsetType = UNSET
