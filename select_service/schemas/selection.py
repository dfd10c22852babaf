"""Bodies of /select and /select_and_reserve."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import (
    ALLOWED_WORKERS_MAX,
    U32,
    U64,
    U64_MAX,
    Certainty,
    Id,
    Name,
    NonNullFlag,
    TimeoutMs,
    check_u64_fields,
)
from select_service.schemas.kv_hint import KvHint
from select_service.schemas.prompts import PinnedWorker, PromptQuery, RoutingConstraints
from select_service.schemas.sessions import (
    AffinityMode,
    AffinityTarget,
    SessionAnswer,
    SessionContext,
)
from select_service.schemas.shared_caches import FetchSource, SharedOverlap

GROUP_MAX = 64
"""Reservations that one request can make."""


class SelectRequest(PromptQuery, kw_only=True):
    """Body of POST /select."""

    selection_id: Id | None = None
    """Id returned in the response and in the log; the id of a booking without `reservation_id`."""
    expected_output_tokens: U32 | None = None
    """Forwarded to other replicas with a booking; otherwise unused."""
    priority_jump: float | None = None
    """Seconds by which the request is treated as if it had arrived earlier; only in the queue,
    within the policy class. Values below 0 count as 0, the default.
    """
    strict_priority: U32 | None = None
    """Queue priority within the policy class, highest first; 0 when omitted."""
    priority_tier: Name | None = None
    """Priority tier for load shedding; `--priority-default-tier` when omitted."""
    timeout_ms: TimeoutMs | None = None
    """Longest wait for capacity, milliseconds; 0: no wait. Never more than
    `--queue-timeout-secs`.
    """
    deadline_ms: TimeoutMs | None = None
    """Time until the request needs its rank, milliseconds. In the queue earlier deadlines go first
    among requests of equal `strict_priority` and `fairness_id`; a deadline that the measured queue
    cannot meet is refused at once with `deadline_exceeded`.
    """
    fairness_id: Name | None = None
    """Name on whose behalf the request waits, such as a customer: in a policy class names share the
    room in proportion to their `fairness_weights`. Requests without it share as one.
    """
    pinned_worker: PinnedWorker | None = None
    """The only rank that may be chosen; must be in `allowed_worker_ids` if that is given."""
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    """Ids of the eligible workers; all workers when omitted."""
    routing_constraints: RoutingConstraints = msgspec.field(default_factory=RoutingConstraints)
    """Eligible workers by taints; all workers when omitted."""
    advisory: NonNullFlag = False
    """Whether the request only asks for advice: it passes the queue and its limits, and the
    response contains `worker_load`. Only for /select; `null` is an error.
    """
    include_hashes: bool = False
    """Whether the response contains `sequence_hashes` and `isl_tokens` of the prompt, for clients
    that forward the booking.
    """
    session_id: str | None = None
    """Conversation of which the request is a turn, at most 256 bytes. A booking binds the session
    to its rank until the session was idle for the time to live.
    """
    session_context: SessionContext | None = None
    """Session in the form of Dynamo's frontends; takes precedence over `session_id`."""
    affinity: AffinityMode | None = None
    """`hard`: the request goes to the rank of its session and waits for it. `soft`: the request
    goes to the best rank; that of the session counts as holding the last turn where events do not
    show its cache. `--session-affinity-mode` when omitted.
    """
    affinity_target: AffinityTarget | None = None
    """Rank to use if it is eligible, whatever its load, otherwise ignored; the session is then
    neither followed nor bound.
    """

    @property
    def requires_hashes(self) -> bool:
        """Whether the client asks for the sequence hashes by a field."""
        return self.include_hashes

    @property
    def returns_hashes(self) -> bool:
        """Whether the response contains the sequence hashes, if there are not too many."""
        return self.requires_hashes

    def __post_init__(self) -> None:
        check_u64_fields(self, "isl_tokens")
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class SelectAndReserveRequest(SelectRequest, kw_only=True):
    """Body of POST /select_and_reserve."""

    reservation_id: Id | None = None
    """Id of the new reservation, unique over all models and tenants; `selection_id` when omitted,
    generated when both are omitted.
    """
    migratable: bool = True
    """Whether the request may continue on another rank when its worker fails or is drained. Set
    false for requests that cannot, such as several answers to a prompt, guided decoding and
    embeddings. Used with `--health-checks on`.
    """
    repeat: bool = False
    """Whether this request is a retry. If the reservation exists already, in this model and tenant
    and for this prompt, the response is the existing reservation and nothing is booked.
    """
    n: Annotated[int, Meta(ge=1, le=GROUP_MAX)] = 1
    """Number of reservations for this prompt, for several answers to it: as many calls would make.
    With an id, each has the id with `-0`, `-1`, … at its end. All are made, or none.
    """
    return_hashes: bool | None = None
    """Whether the response contains `sequence_hashes`; when omitted, it does unless the request has
    a `reservation_id` or `tenant_id`, the names of Dynamo 1.3, which returns none.
    """

    @property
    def booking_id(self) -> str | None:
        """Id of the new reservation; None means a generated one."""
        return self.selection_id if self.reservation_id is None else self.reservation_id

    @property
    def requires_hashes(self) -> bool:
        """Whether the client asks for the sequence hashes by a field."""
        return self.include_hashes or self.return_hashes is True

    @property
    def returns_hashes(self) -> bool:
        """Whether the response contains the sequence hashes, if there are not too many."""
        if self.requires_hashes or self.return_hashes is False:
            return self.requires_hashes
        # Dynamo 1.6 always returns them; the names of Dynamo 1.3 show a client without a use.
        return self.reservation_id is None and self.tenant_id is UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_hashes and self.return_hashes is False:
            raise ValueError(
                "include_hashes is true and return_hashes is false: leave one of them out"
            )


class ChosenRankLoad(Struct, kw_only=True):
    """Load of the chosen rank before this request."""

    active_prefill_tokens: int
    """Prompt tokens booked as prefill load."""
    prefill_token_capacity: int
    """`max_num_batched_tokens` of the worker; 10,000,000 when unknown."""
    total_kv_blocks: int | UnsetType = UNSET
    """Blocks of the KV cache; absent when unknown."""
    prefill_busy: bool | UnsetType = UNSET
    """Whether `active_prefill_tokens` is above its share of the capacity; absent without
    `DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD`.
    """


class Overlap(Struct, kw_only=True):
    """Leading part of the prompt held by the chosen worker, in tokens."""

    longest_matched: int
    """Longest prefix on any rank of the worker, in any storage."""
    gpu: int
    """Prefix in GPU memory, on the best rank."""
    dp: dict[int, int]
    """Prefix in GPU memory, by rank."""
    cpu: int
    """Prefix in GPU or CPU memory, on the best rank."""
    disk: int
    """Prefix in GPU or CPU memory, on disk or in external storage, on the best rank."""
    certainty: Certainty | UnsetType = UNSET
    """Certainty of the prefix on the chosen rank: `exact`, `at_most` for an upper bound, or
    `assumed` where no event confirms a part of it; absent for a rank whose only cache group is
    dense.
    """
    assumed: int | UnsetType = UNSET
    """Tokens of the prefix in GPU memory of the chosen rank that only earlier bookings or the
    session put there; absent when 0.
    """
    shared: SharedOverlap | UnsetType = UNSET
    """Tokens in the shared cache of the model (`--shared-caches`), never part of the other numbers;
    absent without one.
    """


class Selection(Struct, kw_only=True):
    """Response with the chosen rank."""

    selection_id: str | UnsetType = UNSET
    """Id sent with the request; of a booking without it, the id of the reservation. Absent
    otherwise.
    """
    reservation_id: str | UnsetType = UNSET
    """Id of the reservation; absent when nothing was booked."""
    sequence_hashes: list[int] | UnsetType = UNSET
    """Identity of each complete block of the prompt in its sequence: signed 64-bit integers, with
    `include_hashes` unsigned.
    """
    isl_tokens: int | UnsetType = UNSET
    """Length of the prompt in tokens; of bookings, and beside `sequence_hashes`."""
    track_prefill_tokens: bool | UnsetType = UNSET
    """Whether the prompt's tokens count as load; only of bookings."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    routing_group: str | UnsetType = UNSET
    """Equal to `tenant_id`; absent only from older versions."""
    worker_id: int
    """Id of the chosen worker."""
    dp_rank: int
    """Data-parallel rank of the chosen worker, to be passed on to the engine."""
    endpoint: str
    """Request endpoint of the worker, as registered."""
    block_size: int
    """Tokens in a block: report an output block after this many output tokens."""
    overlap: Overlap
    """Leading part of the prompt held by the worker."""
    effective_prefill_tokens: int
    """Prompt tokens that are not cached or credited (`overlap.shared`) and must be computed; the
    load of a booking.
    """
    potential_decode_blocks: int | UnsetType = UNSET
    """Active blocks of the rank with this prompt, a begun last block included; absent only from
    older versions.
    """
    decode_busy: bool | UnsetType = UNSET
    """Whether `potential_decode_blocks` is above its share of `total_kv_blocks`; absent without
    `DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD` or when `total_kv_blocks` is unknown.
    """
    worker_load: ChosenRankLoad | UnsetType = UNSET
    """Load of the chosen rank before this request; only with `advisory`."""
    session: SessionAnswer | UnsetType = UNSET
    """Session of the request; absent without one."""
    kv_hint: KvHint | UnsetType = UNSET
    """Other worker of the same `router_hint_worker_type` that holds more of the prompt; only for
    bookings.
    """
    kv_source: FetchSource | UnsetType = UNSET
    """Rank from which engines can fetch a part of the prompt faster than the chosen rank computes
    it; only with `--kv-sources`, and absent where a link is unknown.
    """
    more: "list[Selection] | UnsetType" = UNSET
    """The other reservations of a request with `n`, in order; absent for `n` 1."""
