"""Every HTTP body, defined once: the source of decoding, validation, encoding and OpenAPI.

Field names and key order are the wire format of the reference selection service (Dynamo 1.3 line);
what ours adds stands at the end of each body.  A field that may be left out is `X = default`; one
that may also be `null` is `X | None = None`.

Integers outside 64 bits cannot be bounded by msgspec annotations, so `U64` is only bounded below
here and `__post_init__` checks the upper end.  Hash lists are checked when they become arrays
(`core.prompt`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.errors import BadRequest

U64_MAX = 2**64 - 1
NAME_CHARS_MAX = 512
ID_CHARS_MAX = 512
TAINTS_MAX = 256
RANKS_PER_WORKER_MAX = 1024
ALLOWED_WORKERS_MAX = 16_384
TIMEOUT_MS_MAX = 3_600_000
BUSY_TOKENS_MAX = 2**40
"""Highest threshold of active prefill tokens; beyond it no rank is ever busy."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0, description="unsigned 64-bit integer")]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Id = Annotated[str, Meta(max_length=ID_CHARS_MAX)]
Endpoint = Annotated[str, Meta(max_length=2048)]
Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hash = Annotated[int, Meta(description="64-bit hash, as signed (i64) or unsigned (u64) integer")]
BusyTokens = Annotated[int, Meta(ge=0, le=BUSY_TOKENS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=TIMEOUT_MS_MAX)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]

DEFAULT_NAME = "default"


def _check_u64(body: Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(body, field)
        if isinstance(value, int) and value > U64_MAX:
            raise ValueError(f"{field}: {value} does not fit in an unsigned 64-bit integer")


class Scope(Struct, kw_only=True):
    """Names the partition.  `routing_group` is another name for `tenant_id`."""

    model_name: Name = DEFAULT_NAME
    tenant_id: Name | UnsetType = UNSET
    routing_group: Name | UnsetType = UNSET


def tenant_of(tenant_id: str | UnsetType | None, routing_group: str | UnsetType | None) -> str:
    """The one tenant that both names agree on.  Raises BadRequest when they contradict."""
    given = {name for name in (tenant_id, routing_group) if isinstance(name, str)}
    if len(given) > 1:
        raise BadRequest(
            f"tenant_id `{tenant_id}` and routing_group `{routing_group}` differ; "
            "they are two names of one field, give one of them"
        )
    return given.pop() if given else DEFAULT_NAME


# --- workers -------------------------------------------------------------------------------------


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
        _check_u64(self, "worker_id", "max_num_batched_tokens", "total_kv_blocks")


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
        _check_u64(self, "max_num_batched_tokens", "total_kv_blocks")


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


# --- prompts and selection -----------------------------------------------------------------------


class MmObject(Struct, kw_only=True):
    mm_hash: U64
    offsets: list[tuple[int, int]]

    def __post_init__(self) -> None:
        _check_u64(self, "mm_hash")


class BlockMmInfo(Struct, kw_only=True):
    mm_objects: list[MmObject]


class MmRoutingInfo(Struct, kw_only=True):
    routing_token_ids: list[Token]
    block_mm_infos: list[BlockMmInfo | None] | None = None


class PromptFields(Scope, kw_only=True):
    """A prompt as tokens (`mm_routing_info` before `token_ids`) or as hashes with their length."""

    token_ids: list[Token] | None = None
    mm_routing_info: MmRoutingInfo | None = None
    block_mm_infos: list[BlockMmInfo | None] | None = None
    block_hashes: list[Hash] | None = None
    sequence_hashes: list[Hash] | None = None
    isl_tokens: U64 | None = None
    lora_name: Name | None = None
    is_eagle: bool | None = None
    cache_salt: Name | None = None

    def __post_init__(self) -> None:
        _check_u64(self, "isl_tokens")


class RouterConfigOverride(Struct, kw_only=True):
    """Per-request values that stand in for the process configuration."""

    overlap_score_credit: Fraction | None = None
    prefill_load_scale: NonNegative | None = None
    router_temperature: NonNegative | None = None
    shared_cache_multiplier: Fraction | None = None
    track_prefill_tokens: bool | None = None
    assume_kv_reuse: bool | None = None
    overlap_score_weight: NonNegative | None = None


class PinnedWorker(Struct, kw_only=True):
    worker_id: U64
    dp_rank: U32

    def __post_init__(self) -> None:
        _check_u64(self, "worker_id")


class RoutingConstraints(Struct, kw_only=True):
    required_taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = []
    preferred_taints: Annotated[dict[Name, float], Meta(max_length=TAINTS_MAX)] = {}


class PromptQuery(PromptFields, kw_only=True):
    """POST /potential_loads and /overlap_scores."""

    router_config_override: RouterConfigOverride | None = None


class SelectRequest(PromptQuery, kw_only=True):
    """POST /select."""

    selection_id: Id | None = None
    expected_output_tokens: U32 | None = None
    priority_jump: float | None = None
    strict_priority: U32 | None = None
    priority_tier: Name | None = None
    timeout_ms: TimeoutMs | None = None
    pinned_worker: PinnedWorker | None = None
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    routing_constraints: RoutingConstraints = msgspec.field(default_factory=RoutingConstraints)

    def __post_init__(self) -> None:
        _check_u64(self, "isl_tokens")
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class SelectAndReserveRequest(SelectRequest, kw_only=True):
    """POST /select_and_reserve."""

    reservation_id: Id | None = None


class ReservationRequest(PromptQuery, kw_only=True):
    """POST /reservations: the caller already chose the rank."""

    reservation_id: Id
    worker_id: U64
    dp_rank: U32 = 0
    expected_output_tokens: U32 | None = None
    effective_prefill_tokens: U64 | None = None

    def __post_init__(self) -> None:
        _check_u64(self, "isl_tokens", "worker_id", "effective_prefill_tokens")


class Overlap(Struct, kw_only=True):
    """Matched prompt tokens of the chosen worker, cumulative over tiers, best rank each."""

    longest_matched: int
    gpu: int
    dp: dict[int, int]
    cpu: int
    disk: int


class Selection(Struct, kw_only=True):
    selection_id: str | UnsetType = UNSET
    reservation_id: str | UnsetType = UNSET
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    endpoint: str
    block_size: int
    overlap: Overlap
    effective_prefill_tokens: int


class Reservation(Struct, kw_only=True):
    reservation_id: str
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    endpoint: str


class OutputBlockRequest(Struct, kw_only=True):
    """The range of `decay_fraction` is checked by the service (400), its type here (422)."""

    decay_fraction: float | None = None


class Status(Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class ReservationRow(Struct, kw_only=True):
    reservation_id: str
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    state: Literal["prefill", "decode"]
    isl_tokens: int
    prompt_blocks: int
    output_blocks: int
    prefill_tokens: int
    age_seconds: float
    expires_in_seconds: float | None
    origin: Literal["local", "peer"]
    router_id: int
    sequence_hashes: list[int] | UnsetType = UNSET


class ReservationPage(Struct, kw_only=True):
    """Oldest first.  `next` is the `after` of the following page, null on the last one.  `total`
    counts all live reservations, whatever the filter.

    A router id names a process from its start to its end: in a row the one that admitted the
    reservation, in the page the one that answers.
    """

    reservations: list[ReservationRow]
    total: int
    next: str | None
    router_id: int


# --- inspection ----------------------------------------------------------------------------------


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


class ErrorBody(Struct, kw_only=True):
    """Every refusal: what was wrong and what was expected, and a stable code for programs."""

    error: str
    code: str
    details: dict[str, str | int] | UnsetType = UNSET
