"""Bodies of the worker catalog and of readiness."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from select_service.schemas.common import (
    DEFAULT_NAME,
    ENDPOINT_CHARS_MAX,
    RANKS_PER_WORKER_MAX,
    TAINTS_MAX,
    U32,
    U64,
    Endpoint,
    Id,
    Name,
    RequestBody,
    check_u64_fields,
)
from select_service.schemas.health import DrainView, WorkerHealth
from select_service.schemas.kv_cache import KvCacheFields
from select_service.schemas.kv_event_status import KvEventStatus
from select_service.schemas.kv_transfer import KvTransferFields
from select_service.schemas.observation import Role
from select_service.schemas.rank_index import RankAssumptions, RankPredictions, ReportedTokens

ByRank = Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)]
Taints = Annotated[list[Name], Meta(max_length=TAINTS_MAX)]
Speed = Annotated[float, Meta(ge=1, le=1e9)]
ControlEndpoints = Annotated[
    dict[str, Annotated[str, Meta(min_length=1, max_length=ENDPOINT_CHARS_MAX)]],
    Meta(max_length=RANKS_PER_WORKER_MAX),
]
IndexSourceField = Literal["events", "assumed", "auto"]
Domains = Annotated[dict[Name, Name], Meta(max_length=TAINTS_MAX)]


class KvLayoutFields(RequestBody, kw_only=True):
    """Layout of a block in the engine's KV cache."""

    layers: Annotated[int, Meta(ge=1, le=65536)]
    """Number of layers with a cache."""
    kv_heads: Annotated[int, Meta(ge=1, le=65536)]
    """Key-value heads of a layer, over all shards."""
    head_dim: Annotated[int, Meta(ge=1, le=65536)]
    """Dimension of a head."""
    dtype_bytes: Annotated[int, Meta(ge=1, le=16)] = 2
    """Size of a number, bytes."""
    tp: Annotated[int, Meta(ge=1, le=65536)] = 1
    """Number of tensor-parallel shards."""


class WorkerFields(RequestBody, kw_only=True):
    """Fields shared by POST and PATCH of a worker.

    In a PATCH, absent or null keeps the old value.
    """

    endpoint: Endpoint | None = None
    """Request endpoint of the engine, returned unchanged in selections; only health checks connect
    to it, with `--health-checks on`. Required to be schedulable.
    """
    kv_events_endpoint: Endpoint | None = None
    """ZMQ endpoint for KV events of a worker with a single rank."""
    replay_endpoint: Endpoint | None = None
    """ZMQ endpoint that replays missed KV events; a rank uses port + (rank - start rank)."""
    curve_server_key: Name | None = None
    """Public CURVE key of the engine's sockets for KV events and replays, 40 characters of Z85; a
    server without this key is ignored. Omit for plain sockets.
    """
    block_size: U32 | None = None
    """Tokens in a block of the engine's KV cache, 1 to 1024, the same for all workers of a model
    and tenant. Required to be schedulable."""
    data_parallel_start_rank: U32 | None = None
    """First data-parallel rank; 0 when omitted."""
    data_parallel_size: U32 | None = None
    """Number of data-parallel ranks; 1 when omitted."""
    max_num_batched_tokens: U64 | None = None
    """Most tokens that the engine computes in one step; required while queueing is on."""
    total_kv_blocks: U64 | None = None
    """Blocks of one rank's KV cache; needed for `active_decode_blocks_threshold`."""
    stable_routing_id: Id | None = None
    """Accepted for compatibility with Dynamo; stored and shown, but unused."""
    is_eagle: bool | None = None
    """Whether the engine hashes for EAGLE speculation. The same for all workers of a model and
    tenant; false when omitted.
    """
    kv_transfer_domain: Name | None = None
    """Domain of workers that exchange KV caches over the fastest links; used to estimate migrations
    with `--health-checks on`.
    """
    kv_transfer_enforcement: Literal["required", "preferred"] | None = None
    """Accepted for compatibility with Dynamo; stored and shown, but unused."""
    kv_transfer_preferred_weight: float | None = None
    """Accepted for compatibility with Dynamo; stored and shown, but unused."""
    router_hint_worker_type: Name | None = None
    """Type of worker for `kv_hint`: bookings name another worker of the same type that holds more
    of the prompt. Empty or omitted: none.
    """
    kv_event_semantics: Literal["counted", "set"] | None = None
    """Meaning of repeated announcements of a block. `counted`, the default: each announcement is
    another copy. `set`: the announcement adds no copy.
    """
    metrics_endpoint: Endpoint | None = None
    """URL of the engine's own Prometheus metrics, the source of its KV cache usage."""
    prefill_tokens_per_s: Speed | None = None
    """Prompt tokens per second of a rank, measured on one engine without other load. Policies of
    work divide costs by this value relative to the median of the workers of the model and tenant
    that declare a speed. When omitted, the median.
    """
    decode_tokens_per_s: Speed | None = None
    """Output tokens per second of a rank under full load; for the capacity estimate of the model
    with `--health-checks on`.
    """
    kv_layout: KvLayoutFields | None = None
    """Layout of the KV cache, to estimate the time of block transfers in migrations; when omitted,
    the layout of the model in `--canary-config`, or else prompts are computed again.
    """
    kv_cache: KvCacheFields | None = None
    """Facts about the KV cache that events do not show; replaced as a whole."""
    role: Role | None = None
    """Part of a request that the worker runs, for a planner: `prefill`, `decode` or, when omitted,
    `aggregated` (both). Only pairs and the planner use this field.
    """
    kv_transfer: KvTransferFields | None = None
    """Transfer of KV blocks to and from the worker, for pairs of prefill and decode; replaced as a
    whole.
    """
    index: IndexSourceField | None = None
    """Source of the index of the worker's ranks. `events`: its KV events. `assumed`: the bookings
    on them, so that no KV events are read and no endpoint for them is needed. `auto`, the default:
    events if the service reads KV events, else assumed unless `--no-assumed-index` is given.
    """
    spare: bool | None = None
    """Whether the worker is a standby that replaces a failed rank of its model and tenant. Used
    with `--health-checks on`, when a worker is new; false when omitted.
    """


class WorkerRegistration(WorkerFields, kw_only=True):
    """Body of POST /workers: replaces the whole record of `worker_id`."""

    worker_id: U64
    """Id of the worker, unique over all models and tenants."""
    model_name: Name = DEFAULT_NAME
    """Model served by the worker; requests use this name."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant served by the worker; `default` when omitted."""
    routing_group: Name | UnsetType = UNSET
    """Alias of `tenant_id`; when both are given they must be equal."""
    kv_events_endpoints: ByRank = field(default_factory=dict)
    """ZMQ endpoints for KV events by data-parallel rank; take precedence over
    `kv_events_endpoint`.
    """
    replay_endpoints: ByRank = field(default_factory=dict)
    """Replay endpoints by data-parallel rank; take precedence over `replay_endpoint`."""
    taints: Taints = field(default_factory=list)
    """Labels that requests may require or prefer."""
    topology_domains: Domains = field(default_factory=dict)
    """Location by kind of domain; `rack`, `fabric` and `host` are used to estimate migrations with
    `--health-checks on`.
    """

    router_hint_source_control_endpoints: ControlEndpoints | UnsetType | None = UNSET
    """Endpoints for transfers from this worker, by data-parallel rank; returned in `kv_hint` and
    otherwise unused. Null is refused.
    """

    def __post_init__(self) -> None:
        if self.router_hint_source_control_endpoints is None:
            raise ValueError("router_hint_source_control_endpoints: expected an object, got null")
        check_u64_fields(self, "worker_id", "max_num_batched_tokens", "total_kv_blocks")


class WorkerPatch(WorkerFields, kw_only=True):
    """Body of PATCH /workers/{worker_id}: a collection replaces the old value, even if empty."""

    kv_events_endpoints: ByRank | None = None
    """ZMQ endpoints for KV events by data-parallel rank; take precedence over
    `kv_events_endpoint`.
    """
    replay_endpoints: ByRank | None = None
    """Replay endpoints by data-parallel rank; take precedence over `replay_endpoint`."""
    taints: Taints | None = None
    """Labels that requests may require or prefer."""
    topology_domains: Domains | None = None
    """Location by kind of domain; `rack`, `fabric` and `host` are used to estimate migrations with
    `--health-checks on`.
    """
    router_hint_source_control_endpoints: ControlEndpoints | None = None
    """Endpoints for transfers from this worker, by data-parallel rank."""

    def __post_init__(self) -> None:
        check_u64_fields(self, "max_num_batched_tokens", "total_kv_blocks")


class EngineView(Struct, kw_only=True):
    """Last reading of the engine's own metrics for a rank."""

    fresh: bool
    """Whether the reading is recent enough to be used."""
    age_s: float
    """Seconds since the reading."""
    kv_usage: float | None
    """Used fraction of the KV cache, 0 to 1; null when not reported."""
    requests_waiting: int | None
    """Requests waiting in the engine; null when not reported."""
    requests_running: int | None
    """Requests running in the engine; null when not reported."""


class Deletion(Struct, kw_only=True):
    """Deletion of a worker with a record still kept."""

    seconds_ago: float
    """Seconds since the deletion."""
    reason: str
    """Cause of the deletion: a request, or the name of the source that no longer lists the
    worker.
    """


class RankAdmission(Struct, kw_only=True):
    """Load of a rank compared with the busy thresholds."""

    busy: bool
    """Whether the rank is above a threshold."""
    active_prefill_tokens: int
    """Prompt tokens not yet computed."""
    kv_usage: float | None
    """Used fraction of the KV cache, 0 to 1; null when unknown."""
    source: Literal["engine", "accounting"]
    """Origin of `kv_usage`: the engine's metrics, or our own accounting."""
    engine: EngineView | None
    """The last reading of the engine's metrics; null when there is none."""


class WorkerAdmission(Struct, kw_only=True):
    """Load of a worker compared with the busy thresholds of its model."""

    busy: bool
    """Whether all ranks are busy."""
    not_judged: list[str]
    """Thresholds that cannot be applied to the worker, with the reason."""
    engine_error: str | None
    """Error of the last reading of the engine's metrics; null after a successful reading."""
    ranks: dict[int, RankAdmission]
    """State by data-parallel rank."""


Lifecycle = Literal["incomplete", "schedulable", "unschedulable"]


class WorkerRecord(Struct, kw_only=True):
    """Record of a worker in the catalog.  Unset scalars are null."""

    worker_id: int
    """Id of the worker."""
    model_name: str
    """Model served by the worker."""
    tenant_id: str
    """Tenant served by the worker."""
    routing_group: str | UnsetType = UNSET
    """The same as `tenant_id`; absent only from older versions."""
    lifecycle: Lifecycle
    """`incomplete`: `not_schedulable_reasons` lists the missing facts; `schedulable`: eligible for
    requests; `unschedulable`: deleted.
    """
    endpoint: str | None
    """Request endpoint of the engine."""
    kv_events_endpoint: str | None
    """ZMQ endpoint for KV events of a worker with a single rank."""
    kv_events_endpoints: dict[int, str] | UnsetType = UNSET
    """ZMQ endpoints for KV events by data-parallel rank; absent when there are none."""
    replay_endpoint: str | None
    """ZMQ endpoint that replays missed KV events; a rank uses port + (rank - start rank)."""
    block_size: int | None
    """Tokens in a block of the engine's KV cache."""
    data_parallel_start_rank: int | None
    """First data-parallel rank; null: 0."""
    data_parallel_size: int | None
    """Number of data-parallel ranks; null: 1."""
    max_num_batched_tokens: int | None
    """Most tokens that the engine computes in one step."""
    total_kv_blocks: int | None
    """Blocks of one rank's KV cache."""
    stable_routing_id: str | None
    """Registered value; not used."""
    is_eagle: bool | None
    """Whether the engine hashes for EAGLE speculation; null: false."""
    taints: list[str]
    """Labels that requests may require or prefer, sorted."""
    topology_domains: dict[str, str]
    """Registered value; not used."""
    kv_transfer_domain: str | None
    """Registered value; not used."""
    kv_transfer_enforcement: str | None
    """Registered value; not used."""
    kv_transfer_preferred_weight: float | None
    """Registered value; not used."""
    router_hint_worker_type: str | UnsetType = UNSET
    """Registered value; absent when omitted."""
    router_hint_source_control_endpoints: dict[str, str] | UnsetType = UNSET
    """Registered value, by data-parallel rank; absent when there are none."""
    not_schedulable_reasons: list[str] | UnsetType = UNSET
    """Reasons why the worker cannot be chosen; absent when schedulable."""
    replay_endpoints: dict[int, str] | UnsetType = UNSET
    """Replay endpoints by data-parallel rank; absent when there are none."""
    kv_event_semantics: str | UnsetType = UNSET
    """`counted` or `set`, as registered; absent when omitted."""
    curve_server_key: str | UnsetType = UNSET
    """Public key of the engine's sockets, as registered; absent for plain sockets."""
    metrics_endpoint: str | UnsetType = UNSET
    """URL of the engine's own metrics; absent when there is none."""
    prefill_tokens_per_s: float | UnsetType = UNSET
    """Declared prefill speed of a rank; absent when omitted."""
    decode_tokens_per_s: float | UnsetType = UNSET
    """Registered value; absent when omitted."""
    kv_layout: KvLayoutFields | UnsetType = UNSET
    """Registered value; absent when omitted."""
    kv_cache: KvCacheFields | UnsetType = UNSET
    """Registered value without defaults; absent when omitted."""
    kv_transfer: KvTransferFields | UnsetType = UNSET
    """Registered value without defaults; absent when omitted."""
    role: Role | UnsetType = UNSET
    """Registered value; absent when omitted."""
    index: IndexSourceField | UnsetType = UNSET
    """Registered value; absent when omitted."""
    spare: bool | UnsetType = UNSET
    """Registered value; absent when omitted."""
    kv_events: dict[int, KvEventStatus] | UnsetType = UNSET
    """Status of each rank's event listener; only in lists of workers."""
    assumed: dict[int, RankAssumptions] | UnsetType = UNSET
    """Blocks assumed because of bookings, by data-parallel rank; only in lists of workers, for
    ranks of which blocks are assumed.
    """
    reported: dict[int, ReportedTokens] | UnsetType = UNSET
    """Cached tokens that callers reported, compared with the prediction, by data-parallel rank;
    only in lists of workers, for ranks with reports.
    """
    predictions: dict[int, RankPredictions] | UnsetType = UNSET
    """Accuracy of predictions by data-parallel rank; only in lists of workers, for ranks with
    samples.
    """
    hints: list[str] | UnsetType = UNSET
    """Probable mistakes in the registration; absent when there are none."""
    admission: WorkerAdmission | UnsetType = UNSET
    """Load compared with the busy thresholds; only in lists of workers, absent without
    thresholds.
    """
    health: WorkerHealth | UnsetType = UNSET
    """Health of the ranks; only in lists of workers, with `--health-checks on`."""
    drain: DrainView | UnsetType = UNSET
    """Drain and remaining reservations; only in lists of workers, absent when not draining."""
    deleted: Deletion | UnsetType = UNSET
    """Time and reason of the deletion; only in lists of workers, absent when not deleted."""
    revived: str | UnsetType = UNSET
    """Note that this change registered a deleted worker again; absent otherwise."""


class RecoveryView(Struct, kw_only=True):
    """Progress of the index recovery at the start."""

    state: Literal["off", "running", "found", "empty", "failed", "cancelled"]
    """`off`: no source to recover from; `running`: in progress; `found`: blocks were recovered;
    `empty`: the sources had no blocks; `failed`: no source answered correctly; `cancelled`: the
    process was stopped.
    """
    peer: str | UnsetType | None = UNSET
    """URL or file of the current source, or of the largest source afterwards; null without a
    source. This field and those below are absent for keys that cannot see all tenants.
    """
    partitions: int | UnsetType = UNSET
    """Partitions read."""
    blocks: int | UnsetType = UNSET
    """Blocks read."""
    bytes: int | UnsetType = UNSET
    """Bytes read."""
    elapsed_s: float | UnsetType = UNSET
    """Duration so far, or in total, seconds."""


class Ready(Struct, kw_only=True):
    """Response of GET /ready."""

    ready: bool
    """Whether the service accepts requests, as the status does: 200 or 503."""
    schedulable_workers: int | UnsetType = UNSET
    """Schedulable workers over all models, of the tenants visible to the key; absent if keys are
    required and the request has none.
    """
    reason: str | UnsetType = UNSET
    """Reason for not being ready; absent when ready."""
    workers: list[WorkerRecord]
    """All workers, by model, tenant and id."""
    insecure: bool | UnsetType = UNSET
    """True if no key is required although other hosts can reach the address; otherwise absent."""
    replica_sync_insecure: bool | UnsetType = UNSET
    """True if replicas have no keys although other hosts can reach their port; otherwise absent."""
    recovery: RecoveryView | UnsetType = UNSET
    """Recovery of the index; absent without recovery."""
    draining: bool | UnsetType = UNSET
    """True while the process answers its last requests; otherwise absent."""
