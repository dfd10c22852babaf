"""Bodies of the health of engines."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.bodies.common import DEFAULT_NAME, U32, Id, Name, NonNegative, RequestBody

REPORTS_MAX = 1000
"""Requests that one report may stand for."""

HealthState = Literal["healthy", "suspicious", "unhealthy", "draining", "dead"]
BreakerWord = Literal["closed", "open", "half_open"]
DrainCaller = Literal["operator", "planner"]
"""Who may ask for a drain over HTTP."""
DrainAsker = Literal["operator", "planner", "source"]
OutcomeWord = Literal["ok", "failure", "neutral", "fatal"]
ReferenceSource = Literal["file", "agreement", "self"]


class OutcomeRequest(RequestBody, kw_only=True):
    """POST /workers/{worker_id}/outcome: what became of a request that was sent there."""

    dp_rank: U32 = 0
    """Data-parallel rank that had the request."""
    outcome: OutcomeWord | None = None
    """`ok`; `failure`: no connection, reset, timeout, 5xx, a stream that stalled or broke off;
    `neutral`: 4xx, too busy, cancelled by the client; `fatal`: the engine is lost, as whoever
    watches its GPU knows. Left out: as `status` says."""
    reservation_id: Id | None = None
    """Reservation of the request. It is the evidence of a failure; each counts once."""
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    """HTTP status of the engine: 2xx is ok, 4xx and 503 are neutral, other 5xx a failure. A failure
    with a 4xx is neutral, whatever `outcome` says."""
    latency_ms: NonNegative | None = None
    """Accepted; how long a request takes depends on its length and is not judged."""
    count: Annotated[int, Meta(ge=1, le=REPORTS_MAX)] = 1
    """Requests that ended so; 1 with a reservation."""

    def __post_init__(self) -> None:
        if self.outcome is None and self.status is None:
            raise ValueError("expected `outcome`, `status`, or both")


class DrainRequest(RequestBody, kw_only=True):
    """POST /workers/{worker_id}/drain."""

    migrate: bool = True
    """Move its reservations to other ranks? Otherwise they end where they are. Of several who ask
    the last one says it."""
    by: DrainCaller = "operator"
    """Who asks. What each of them has asked for only an undrain of its own ends."""


class UndrainRequest(RequestBody, kw_only=True):
    """POST /workers/{worker_id}/undrain."""

    by: DrainCaller = "operator"
    """Whose drain ends; it goes on while somebody else wants it."""


class DrainView(Struct, kw_only=True):
    """A worker that gets no new requests."""

    state: Literal["draining", "drained"]
    """`drained`: nothing is left on it."""
    asked_by: list[DrainAsker]
    """Everybody who wants it: `operator`; `planner`: it scales down; `source`: the source that it
    belonged to has dropped it."""
    reservations: int
    """What is still booked on it."""


class LearnRequest(RequestBody, kw_only=True):
    """POST /canary/learn."""

    model_name: Name = DEFAULT_NAME
    """Model whose right answers are forgotten."""


class RankHealth(Struct, kw_only=True):
    """How fit one rank is."""

    state: HealthState
    """Where it stands; `unhealthy`, `draining` and `dead` ranks get no new requests."""
    weight: float
    """How much of its share of requests it gets, 0 to 1."""
    breaker: BreakerWord
    """`open`: it is left alone; `half_open`: it is asked whether it works again."""
    cause: str | None
    """Kind of the failure that it is there for; null while it is healthy."""
    failures: int
    """Failing checks in a row."""
    checked: bool
    """Is it checked at all? It is not without an endpoint for HTTP, or without prompts."""
    spare: bool
    """Does it wait for another to fail?"""
    reservations: int
    """What is booked on it."""
    baseline_ms: float | None
    """How long a check usually takes; null before enough have passed."""
    last_result: str | None
    """What its last check found; null before the first."""
    last_result_age_s: float | None
    """Seconds since then."""
    last_latency_ms: float | None
    """How long the attempt took that passed; null when none did."""
    last_error: str | UnsetType = UNSET
    """What was wrong, in words; absent when nothing was."""
    misconfigured: str | UnsetType = UNSET
    """Why it refuses our checks as such (4xx); absent when it does not."""
    next_check_s: float | None
    """Seconds until its next check; null while none is planned."""


class WorkerHealth(Struct, kw_only=True):
    """How fit a worker is."""

    state: HealthState
    """That of its worst rank."""
    ranks: dict[int, RankHealth]
    """By data-parallel rank."""


class WorkerDraining(Struct, kw_only=True):
    """What became of a drain, or of its end."""

    state: HealthState | Literal["schedulable", "drained"]
    """With health on that of its worst rank; else `draining`, `drained`, or `schedulable` when it
    serves."""
    drain: DrainView | UnsetType = UNSET
    """Who wants it to drain, and what it still has; absent when it serves."""
    ranks: dict[int, RankHealth] | UnsetType = UNSET
    """By data-parallel rank; absent when health is off."""


class RankHealthRow(RankHealth, kw_only=True):
    """One rank of a partition."""

    worker_id: int
    """Id of its worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""


class CapacityView(Struct, kw_only=True):
    """What the ranks that serve can carry of what was promised for the model."""

    level: int
    """Level of degradation, 0 to 4."""
    ratio: float
    """Capacity over promise; without a promise, the sum of weights over the ranks that are no
    spares."""
    effective_rps: float | UnsetType = UNSET
    """Requests per second that can be carried; absent without a promise, as what follows."""
    by_cache_rps: float | UnsetType = UNSET
    """By the sizes of the KV caches; 0: unknown."""
    by_prefill_rps: float | UnsetType = UNSET
    """By prefill speed; 0: unknown."""
    by_decode_rps: float | UnsetType = UNSET
    """By decode speed; 0: unknown."""
    on_trial: bool | UnsetType = UNSET
    """True while the level follows the weights of ranks, because too little was booked to learn
    from; else absent."""


class PartitionHealthView(Struct, kw_only=True):
    """The ranks of one model and tenant."""

    model_name: str
    """Model that they serve."""
    tenant_id: str
    """Tenant that they serve."""
    reference_source: ReferenceSource | None
    """Where the right answers come from: the canary file, what two thirds of the ranks say, or what
    each said first; of several the first of these. null: nothing is known yet."""
    capacity: CapacityView | None
    """null while degradation is off."""
    spares: int
    """Ranks that wait for others to fail, failed ones that were replaced among them."""
    spares_wanted: int
    """How many of its workers should be spares."""
    ranks: list[RankHealthRow]
    """By worker and rank."""


class FleetHealth(Struct, kw_only=True):
    """GET /health/fleet."""

    partitions: list[PartitionHealthView]
    """By model and tenant."""
