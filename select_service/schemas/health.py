"""Bodies of engine health, drains and degradation."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import DEFAULT_NAME, U32, Id, Name, NonNegative, RequestBody

REPORTS_MAX = 1000
"""Most requests that one report may count."""

HealthState = Literal["healthy", "suspicious", "unhealthy", "draining", "dead"]
BreakerStateName = Literal["closed", "open", "half_open"]
DrainCaller = Literal["operator", "planner"]
"""Callers that may request a drain over HTTP."""
DrainRequester = Literal["operator", "planner", "source"]
OutcomeName = Literal["ok", "failure", "neutral", "fatal"]
ReferenceSource = Literal["file", "agreement", "self"]


class OutcomeRequest(RequestBody, kw_only=True):
    """Body of POST /workers/{worker_id}/outcome: outcome of requests sent to the worker."""

    dp_rank: U32 = 0
    """Data-parallel rank that received the request."""
    outcome: OutcomeName | None = None
    """`ok`; `failure`: no connection, reset, timeout, 5xx, a stream that stalled or broke off;
    `neutral`: 4xx, too busy, cancelled by the client; `fatal`: the engine is lost, as reported by
    a GPU monitor, for example. Derived from `status` when omitted.
    """
    reservation_id: Id | None = None
    """Reservation of the request, as evidence of a failure; each reservation counts once."""
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    """HTTP status of the engine: 2xx is ok, 4xx and 503 are neutral, other 5xx a failure. A failure
    with a 4xx is neutral, regardless of `outcome`.
    """
    latency_ms: NonNegative | None = None
    """Latency, milliseconds. Accepted and ignored: the time of a request depends on its length."""
    count: Annotated[int, Meta(ge=1, le=REPORTS_MAX)] = 1
    """Number of requests with this outcome; 1 with a reservation."""

    def __post_init__(self) -> None:
        if self.outcome is None and self.status is None:
            raise ValueError("expected `outcome`, `status`, or both")


class DrainRequest(RequestBody, kw_only=True):
    """Body of POST /workers/{worker_id}/drain."""

    migrate: bool = True
    """Whether to move the reservations to other ranks; otherwise they end on this worker. With
    several callers the last value applies.
    """
    by: DrainCaller = "operator"
    """Caller that requests the drain. Each caller's request ends only by an undrain of that
    caller.
    """


class UndrainRequest(RequestBody, kw_only=True):
    """Body of POST /workers/{worker_id}/undrain."""

    by: DrainCaller = "operator"
    """Caller that withdraws its request; the drain goes on while another caller still requests a
    drain.
    """


class DrainView(Struct, kw_only=True):
    """Drain of a worker, which gets no new requests."""

    state: Literal["draining", "drained"]
    """`draining`, or `drained` once no reservation is left."""
    asked_by: list[DrainRequester]
    """Callers that request the drain: `operator`; `planner`, when scaling down; `source`, when the
    worker's source no longer lists the worker.
    """
    reservations: int
    """Reservations still booked on the worker."""


class LearnRequest(RequestBody, kw_only=True):
    """Body of POST /canary/learn."""

    model_name: Name = DEFAULT_NAME
    """Model of the learned reference answers to discard."""


class RankHealth(Struct, kw_only=True):
    """Health of one rank."""

    state: HealthState
    """State of the rank; `unhealthy`, `draining` and `dead` ranks get no new requests."""
    weight: float
    """Fraction of a full share of requests, 0 to 1."""
    breaker: BreakerStateName
    """State of the circuit breaker. `open`: no requests; `half_open`: probes test the recovery."""
    cause: str | None
    """Kind of failure that led to this state; null while the rank is healthy."""
    failures: int
    """Consecutive failed checks."""
    checked: bool
    """Whether the rank is checked at all. Checks need an HTTP endpoint and prompts."""
    spare: bool
    """Whether the rank is a standby that replaces a failed rank."""
    reservations: int
    """Reservations booked on the rank."""
    baseline_ms: float | None
    """Usual duration of a check, milliseconds; null before enough checks have passed."""
    last_result: str | None
    """Result of the last check; null before the first check."""
    last_result_age_s: float | None
    """Seconds since the last result."""
    last_latency_ms: float | None
    """Duration of the attempt that passed, milliseconds; null when no attempt passed."""
    last_error: str | UnsetType = UNSET
    """Error message of the last check; absent without an error."""
    misconfigured: str | UnsetType = UNSET
    """Reason why the engine rejects our checks (4xx); absent while the engine accepts checks."""
    next_check_s: float | None
    """Seconds until the next check; null when none is scheduled."""


class WorkerHealth(Struct, kw_only=True):
    """Health of a worker."""

    state: HealthState
    """State of the worst rank."""
    ranks: dict[int, RankHealth]
    """Health by data-parallel rank."""


class WorkerDraining(Struct, kw_only=True):
    """Result of a drain or an undrain."""

    state: HealthState | Literal["schedulable", "drained"]
    """State of the worst rank with health checks; otherwise `draining`, `drained`, or
    `schedulable` for a worker in service.
    """
    drain: DrainView | UnsetType = UNSET
    """Callers of the drain and remaining reservations; absent for a worker in service."""
    ranks: dict[int, RankHealth] | UnsetType = UNSET
    """Health by data-parallel rank; absent when health checks are off."""


class RankHealthRow(RankHealth, kw_only=True):
    """Health of one rank of a partition."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""


class CapacityView(Struct, kw_only=True):
    """Capacity of the serving ranks compared with the promised load of the model."""

    level: int
    """Level of degradation, 0 to 4."""
    ratio: float
    """Capacity divided by the promised load; without a promise, the sum of weights divided by the
    number of ranks that are not spares.
    """
    effective_rps: float | UnsetType = UNSET
    """Sustainable requests per second; absent without a promise, as are the fields after this
    one.
    """
    by_cache_rps: float | UnsetType = UNSET
    """Requests per second limited by the KV cache sizes; 0: unknown."""
    by_prefill_rps: float | UnsetType = UNSET
    """Requests per second limited by prefill speed; 0: unknown."""
    by_decode_rps: float | UnsetType = UNSET
    """Requests per second limited by decode speed; 0: unknown."""
    on_trial: bool | UnsetType = UNSET
    """True while the level follows the weights of ranks because too few bookings were observed for
    an estimate; otherwise absent.
    """


class PartitionHealthView(Struct, kw_only=True):
    """Health of the ranks of one model and tenant."""

    model_name: str
    """Model of the ranks."""
    tenant_id: str
    """Tenant of the ranks."""
    reference_source: ReferenceSource | None
    """Source of the reference answers: the canary file, the answer of two thirds of the ranks, or
    the first answer of each rank; of several the first of these. null: no reference yet.
    """
    capacity: CapacityView | None
    """Capacity estimate; null while degradation is off."""
    spares: int
    """Standby ranks, including failed ranks that were replaced."""
    spares_wanted: int
    """Target number of spare workers."""
    ranks: list[RankHealthRow]
    """Ranks by worker and rank."""


class FleetHealth(Struct, kw_only=True):
    """Response of GET /health/fleet."""

    partitions: list[PartitionHealthView]
    """Health by model and tenant."""
