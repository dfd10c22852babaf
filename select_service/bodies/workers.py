"""Bodies of the worker catalog and of readiness."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from select_service.bodies.common import (
    DEFAULT_NAME,
    RANKS_PER_WORKER_MAX,
    TAINTS_MAX,
    U32,
    U64,
    Endpoint,
    Id,
    Name,
    RequestBody,
    check_u64,
)
from select_service.bodies.health import DrainView, WorkerHealth
from select_service.bodies.observation import Role

ByRank = Annotated[dict[U32, Endpoint], Meta(max_length=RANKS_PER_WORKER_MAX)]
Taints = Annotated[list[Name], Meta(max_length=TAINTS_MAX)]
Speed = Annotated[float, Meta(ge=1, le=1e9)]
Domains = Annotated[dict[Name, Name], Meta(max_length=TAINTS_MAX)]


class KvLayoutFields(RequestBody, kw_only=True):
    """What a block of the engine's KV cache is made of."""

    layers: Annotated[int, Meta(ge=1, le=65536)]
    """Layers with a cache."""
    kv_heads: Annotated[int, Meta(ge=1, le=65536)]
    """Heads of keys and values of a layer, of all shards together."""
    head_dim: Annotated[int, Meta(ge=1, le=65536)]
    """Numbers of a head."""
    dtype_bytes: Annotated[int, Meta(ge=1, le=16)] = 2
    """Bytes of a number."""
    tp: Annotated[int, Meta(ge=1, le=65536)] = 1
    """Shards of tensor parallelism."""


class WorkerFields(RequestBody, kw_only=True):
    """What POST and PATCH of a worker share.  In a PATCH, absent or null keeps the old value."""

    endpoint: Endpoint | None = None
    """Where the engine takes requests; given back in selections as it is, and called by checks
    alone, with `--health-checks on`. Required to be schedulable."""
    kv_events_endpoint: Endpoint | None = None
    """ZMQ endpoint on which a worker of one rank publishes its KV events."""
    replay_endpoint: Endpoint | None = None
    """ZMQ endpoint that replays missed KV events; a rank uses port + (rank - start rank)."""
    curve_server_key: Name | None = None
    """Public key of the engine, 40 characters of Z85, where its sockets of KV events and replays
    are CURVE; what answers there without it is not heard. Left out: they are plain."""
    block_size: U32 | None = None
    """Tokens in a block of the engine's KV cache, 1 to 1024, the same for all workers of a model
    and tenant. Required to be schedulable."""
    data_parallel_start_rank: U32 | None = None
    """First data-parallel rank; 0 when left out."""
    data_parallel_size: U32 | None = None
    """Number of data-parallel ranks; 1 when left out."""
    max_num_batched_tokens: U64 | None = None
    """Tokens that the engine computes in one step; required while queueing is on."""
    total_kv_blocks: U64 | None = None
    """Blocks of one rank's KV cache; needed to judge `active_decode_blocks_threshold`."""
    stable_routing_id: Id | None = None
    """Accepted as by the reference, kept and shown; not used."""
    is_eagle: bool | None = None
    """Does the engine hash for EAGLE speculation? The same for all workers of a model and tenant;
    false when left out."""
    kv_transfer_domain: Name | None = None
    """Workers of one domain carry caches over its fastest links; used to estimate moves with
    `--health-checks on`."""
    kv_transfer_enforcement: Literal["required", "preferred"] | None = None
    """Accepted as by the reference, kept and shown; not used."""
    kv_transfer_preferred_weight: float | None = None
    """Accepted as by the reference, kept and shown; not used."""
    kv_event_semantics: Literal["counted", "set"] | None = None
    """`counted`, the default: a block that the engine announces twice it holds twice. `set`: for
    engines that announce a block again without a new copy."""
    metrics_endpoint: Endpoint | None = None
    """URL of the engine's own Prometheus metrics, which say how full its KV cache is."""
    prefill_tokens_per_s: Speed | None = None
    """How many prompt tokens a rank of it computes in a second, measured on one engine without
    other load; policies of work divide costs by what that is relative to the median of the
    workers of the model and tenant that say it. Left out: as the median."""
    decode_tokens_per_s: Speed | None = None
    """How many output tokens a rank of it computes in a second under full load; for its part in
    the capacity of its model with `--health-checks on`."""
    kv_layout: KvLayoutFields | None = None
    """What its KV cache is made of, so that the time of carrying blocks over can be estimated when
    reservations are moved; left out: what `--canary-config` says of the model, else they are
    computed again."""
    role: Role | None = None
    """What part of a request it does, for a planner: `prefill`, `decode` or, when left out,
    `aggregated`: both. Decides nothing about which rank is chosen."""
    spare: bool | None = None
    """Does it wait until a rank of its model and tenant fails, whose place it then takes? Counts
    with `--health-checks on`, when a worker is new; false when left out."""


class WorkerRegistration(WorkerFields, kw_only=True):
    """POST /workers: replaces the whole record of `worker_id`."""

    worker_id: U64
    """Id of the worker, unique over all models and tenants."""
    model_name: Name = DEFAULT_NAME
    """Model that the worker serves; requests ask for it by this name."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant that the worker serves; `default` when left out."""
    routing_group: Name | UnsetType = UNSET
    """Another name of `tenant_id`; when both are given they must be equal."""
    kv_events_endpoints: ByRank = field(default_factory=dict)
    """ZMQ endpoint of KV events by data-parallel rank; comes before `kv_events_endpoint`."""
    replay_endpoints: ByRank = field(default_factory=dict)
    """Replay endpoint by data-parallel rank; comes before `replay_endpoint`."""
    taints: Taints = field(default_factory=list)
    """Marks that requests may require or prefer."""
    topology_domains: Domains = field(default_factory=dict)
    """Where it stands, by kind; `rack`, `fabric` and `host` are used to estimate moves with
    `--health-checks on`."""

    def __post_init__(self) -> None:
        check_u64(self, "worker_id", "max_num_batched_tokens", "total_kv_blocks")


class WorkerPatch(WorkerFields, kw_only=True):
    """PATCH /workers/{worker_id}: a given collection replaces the old one, an empty one empties."""

    kv_events_endpoints: ByRank | None = None
    """ZMQ endpoint of KV events by data-parallel rank; comes before `kv_events_endpoint`."""
    replay_endpoints: ByRank | None = None
    """Replay endpoint by data-parallel rank; comes before `replay_endpoint`."""
    taints: Taints | None = None
    """Marks that requests may require or prefer."""
    topology_domains: Domains | None = None
    """Where it stands, by kind; `rack`, `fabric` and `host` are used to estimate moves with
    `--health-checks on`."""

    def __post_init__(self) -> None:
        check_u64(self, "max_num_batched_tokens", "total_kv_blocks")


KvEventState = Literal[
    "connected", "catching_up", "degraded", "no_events_yet", "unconnected", "unverified"
]


class KvEventReason(Struct, kw_only=True):
    """Why, and since when, the index is or may be wrong about a rank."""

    reason: str
    """What happened."""
    seconds: float
    """Since how many seconds."""


class KvEventStatus(Struct, kw_only=True):
    """What the listener of one rank has seen since it was opened."""

    state: KvEventState
    """`no_events_yet`; `connected`; `catching_up`: a gap is being replayed; `degraded`: events were
    lost, the index may be wrong about this rank; `unverified`: events may have been missed, and
    the engine was not heard about it yet; `unconnected`: its endpoint has not answered for 10 s, so
    no events come at all. Fields of these three names say since when and why."""
    connected: bool
    """Does the connection to the engine's events stand?"""
    connect_error: str | None
    """Why it does not, as far as is known; null while it does."""
    degraded: KvEventReason | UnsetType = UNSET
    """Why events are known to be missing; absent when they are not. It ends when the engine clears
    its cache or restarts."""
    unverified: KvEventReason | UnsetType = UNSET
    """Why it is uncertain whether events are missing; absent when it is not."""
    unconnected: KvEventReason | UnsetType = UNSET
    """Why there has been no connection for at least 10 s; absent when there is one."""
    last_sequence: int | None
    """Number of the last batch that was applied; null before the first one."""
    batches: int
    """Batches that were applied."""
    gaps: int
    """How often batches were missing."""
    replayed: int
    """Batches that came by replay."""
    lost: int
    """Batches that are known to be missing for good."""
    restarts: int
    """How often the engine began its numbers anew."""
    semantics: Literal["counted", "set"]
    """How repeated announcements are taken. It becomes `set` by itself when a rank announces more
    copies than `total_kv_blocks`."""
    decode_errors: int
    """Messages or events that could not be read."""
    dropped: dict[str, int] | UnsetType = UNSET
    """What was not indexed, by reason, as in `select_service_kv_event_dropped_total`; absent when
    all was."""
    last_error: str | None
    """What went wrong last, or does not fit the registration; null if nothing did."""
    seconds_since_last_event: float | None
    """Seconds since the last batch; null before the first one."""


class EngineView(Struct, kw_only=True):
    """What the engine of a rank said last in its own metrics."""

    fresh: bool
    """Is it young enough to count?"""
    age_s: float
    """Seconds since it was read."""
    kv_usage: float | None
    """Used part of its KV cache, 0 to 1; null when it does not say."""
    requests_waiting: int | None
    """Requests that wait in the engine; null when it does not say."""
    requests_running: int | None
    """Requests that run in the engine; null when it does not say."""


class Deletion(Struct, kw_only=True):
    """The end of a worker whose record is kept for a while."""

    seconds_ago: float
    """Seconds since it was deleted."""
    reason: str
    """What removed it: a request, or the source that no longer has it, by name."""


class RankAdmission(Struct, kw_only=True):
    """How a rank stands to the busy thresholds."""

    busy: bool
    """Is it above one of them?"""
    active_prefill_tokens: int
    """Prompt tokens that are still to be computed."""
    kv_usage: float | None
    """Used part of its KV cache, 0 to 1; null when nobody can tell."""
    source: Literal["engine", "accounting"]
    """Whose word `kv_usage` is: the engine's, or our own accounting."""
    engine: EngineView | None
    """The last reading of the engine's metrics; null when there is none."""


class WorkerAdmission(Struct, kw_only=True):
    """How a worker stands to the busy thresholds of its model."""

    busy: bool
    """Are all its ranks busy?"""
    not_judged: list[str]
    """Thresholds that are set and cannot judge it, and why."""
    engine_error: str | None
    """Why its metrics could not be read last time; null when they could."""
    ranks: dict[int, RankAdmission]
    """By data-parallel rank."""


class RankPredictions(Struct, kw_only=True):
    """What became of what was believed of a rank, from a few of its reservations a second."""

    checks: int
    """Prompts whose new blocks were looked for in the index after their prefill."""
    trust: float | None
    """Mean share of those blocks that the engine had announced, 0 to 1, over about the last 32
    checks; null before the first."""
    waits: int
    """Waits for the end of a prefill that were compared with what was believed."""
    wait_error: float | None
    """Mean of |observed - believed wait| / the longer of them, 0 to 1; null before the first."""
    tokens_per_s: float | None
    """How fast the rank came through what lay before the ends of these prefills."""
    suspect: str | UnsetType = UNSET
    """What is probably wrong; absent unless `trust` is below 0.5 after 8 checks or more."""


Lifecycle = Literal["incomplete", "schedulable", "unschedulable"]


class WorkerRecord(Struct, kw_only=True):
    """A worker as the catalog sees it.  Unset scalars are null."""

    worker_id: int
    """Id of the worker."""
    model_name: str
    """Model that it serves."""
    tenant_id: str
    """Tenant that it serves."""
    lifecycle: Lifecycle
    """`incomplete`: `not_schedulable_reasons` says what is missing; `schedulable`: it may be
    chosen; `unschedulable`: it was deleted."""
    endpoint: str | None
    """Where the engine takes requests."""
    kv_events_endpoint: str | None
    """ZMQ endpoint on which a worker of one rank publishes its KV events."""
    kv_events_endpoints: dict[int, str] | UnsetType = UNSET
    """ZMQ endpoint of KV events by data-parallel rank; absent when there is none."""
    replay_endpoint: str | None
    """ZMQ endpoint that replays missed KV events; a rank uses port + (rank - start rank)."""
    block_size: int | None
    """Tokens in a block of the engine's KV cache."""
    data_parallel_start_rank: int | None
    """First data-parallel rank; null: 0."""
    data_parallel_size: int | None
    """Number of data-parallel ranks; null: 1."""
    max_num_batched_tokens: int | None
    """Tokens that the engine computes in one step."""
    total_kv_blocks: int | None
    """Blocks of one rank's KV cache."""
    stable_routing_id: str | None
    """As registered; not used."""
    is_eagle: bool | None
    """Does the engine hash for EAGLE speculation? null: it does not."""
    taints: list[str]
    """Marks that requests may require or prefer, sorted."""
    topology_domains: dict[str, str]
    """As registered; not used."""
    kv_transfer_domain: str | None
    """As registered; not used."""
    kv_transfer_enforcement: str | None
    """As registered; not used."""
    kv_transfer_preferred_weight: float | None
    """As registered; not used."""
    not_schedulable_reasons: list[str] | UnsetType = UNSET
    """Why the worker cannot be chosen; absent when it can."""
    replay_endpoints: dict[int, str] | UnsetType = UNSET
    """Replay endpoint by data-parallel rank; absent when there is none."""
    kv_event_semantics: str | UnsetType = UNSET
    """`counted` or `set`, as registered; absent when left out."""
    curve_server_key: str | UnsetType = UNSET
    """Public key of the engine's sockets, as registered; absent when they are plain."""
    metrics_endpoint: str | UnsetType = UNSET
    """URL of the engine's own metrics; absent when there is none."""
    prefill_tokens_per_s: float | UnsetType = UNSET
    """Declared prefill speed of a rank; absent when it was left out."""
    decode_tokens_per_s: float | UnsetType = UNSET
    """As registered; absent when it was left out."""
    kv_layout: KvLayoutFields | UnsetType = UNSET
    """As registered; absent when it was left out."""
    role: Role | UnsetType = UNSET
    """As registered; absent when it was left out."""
    spare: bool | UnsetType = UNSET
    """As registered; absent when it was left out."""
    kv_events: dict[int, KvEventStatus] | UnsetType = UNSET
    """What the event listener of each rank has seen; only where workers are listed."""
    predictions: dict[int, RankPredictions] | UnsetType = UNSET
    """What became of predictions, by data-parallel rank; only where workers are listed, of ranks of
    which something is known."""
    hints: list[str] | UnsetType = UNSET
    """What is probably not meant in the registration, in words; absent when there is nothing."""
    admission: WorkerAdmission | UnsetType = UNSET
    """How it stands to the busy thresholds; only where workers are listed, and absent when nothing
    judges it."""
    health: WorkerHealth | UnsetType = UNSET
    """How fit its ranks are; only where workers are listed, with `--health-checks on`."""
    drain: DrainView | UnsetType = UNSET
    """That it gets no new requests, and what it still has; only where workers are listed, and
    absent when it does not drain."""
    deleted: Deletion | UnsetType = UNSET
    """When and why it was deleted; only where workers are listed, and absent when it was not."""
    revived: str | UnsetType = UNSET
    """Says that this change has registered a deleted worker again; absent otherwise."""


class RecoveryView(Struct, kw_only=True):
    """How the recovery of the index at the start goes, or went."""

    state: Literal["off", "running", "found", "empty", "failed", "cancelled"]
    """`off`: nothing to recover from; `running`: it goes on; `found`: blocks were taken; `empty`:
    there were none; `failed`: nobody answered well; `cancelled`: the process was told to end."""
    peer: str | UnsetType | None = UNSET
    """URL or file that is being read, or from which most was taken; null before and without.
    This and what follows is absent for keys that do not see all tenants."""
    partitions: int | UnsetType = UNSET
    """Partitions that were read."""
    blocks: int | UnsetType = UNSET
    """Blocks that were read."""
    bytes: int | UnsetType = UNSET
    """Bytes that were read."""
    elapsed_s: float | UnsetType = UNSET
    """Seconds since it began, or that it took."""


class Ready(Struct, kw_only=True):
    """GET /ready."""

    ready: bool
    """May requests be sent here? The status says the same: 200 or 503."""
    schedulable_workers: int | UnsetType = UNSET
    """Workers that may be chosen, over all models, of the tenants that the key sees; absent where
    keys are asked for and none is shown."""
    reason: str | UnsetType = UNSET
    """Why not, in words; absent when it is ready."""
    workers: list[WorkerRecord]
    """All workers, by model, tenant and id."""
    insecure: bool | UnsetType = UNSET
    """Present, and true, where no key is asked for although others can reach the address."""
    replica_sync_insecure: bool | UnsetType = UNSET
    """Present, and true, where replicas have no keys although others can reach their port."""
    recovery: RecoveryView | UnsetType = UNSET
    """How the index was recovered; absent when it is not."""
    draining: bool | UnsetType = UNSET
    """True while the process answers its last requests; else absent."""
