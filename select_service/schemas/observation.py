"""Body of GET /planner/observation: traffic and ranks of a model and tenant, for an autoscaler."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import RankAddress

Role = Literal["prefill", "decode", "aggregated"]


class BinEdges(Struct, kw_only=True):
    """Bin edges of the histograms, in equal steps of the logarithm.

    Bin i is from edge i to before edge i + 1; values outside are counted in the outermost bins.
    """

    tokens: list[float]
    """Edges for `isl`, `uncached_isl` and `osl`: 65 edges, from 1 to 2**20 tokens."""
    seconds: list[float]
    """Edges for `ttft_s` and `itl_s`: 129 edges, from 2**-10 to 2**10 seconds."""


class ObservedHistogram(Struct, kw_only=True):
    """Histogram of observed values."""

    counts: list[int]
    """Number of values by bin; `bins` has the edges."""
    sum: float
    """Sum of all values."""


class ObservedEngine(Struct, kw_only=True):
    """Metrics reported by the engine of a rank; null for a metric that the engine does not
    report.
    """

    requests_waiting: int | None
    """Requests waiting in the engine."""
    requests_running: int | None
    """Requests running in the engine."""
    kv_usage: float | None
    """Used fraction of the KV cache, 0 to 1."""


class ObservedRank(RankAddress, kw_only=True):
    """Current state of one rank, with the load booked by all replicas."""

    role: Role
    """Registered role; `aggregated` when omitted."""
    state: str | UnsetType = UNSET
    """Health state; absent with `--health-checks off`."""
    cause: str | UnsetType = UNSET
    """Cause of the health state, `operator` for a drain; absent while healthy."""
    out_s: float | UnsetType = UNSET
    """Seconds since the rank was taken out of rotation; absent while it serves."""
    spare: bool | UnsetType = UNSET
    """Present and true for a spare, which gets no requests until it replaces a failed rank."""
    weight: float | UnsetType = UNSET
    """Fraction of a full share of requests, 0: none; absent with `--health-checks off`."""
    active_prefill_tokens: int
    """Prompt tokens not yet computed."""
    active_blocks: int
    """Blocks of live reservations."""
    live_requests: int
    """Live reservations."""
    block_size: int
    """Tokens in a block."""
    total_kv_blocks: int | None
    """Blocks of the rank's KV cache; null when not registered."""
    max_num_batched_tokens: int | None
    """Most tokens computed in one step; null when not registered."""
    engine: ObservedEngine | UnsetType = UNSET
    """Metrics reported by the engine while the last reading is fresh; absent otherwise."""


class ObservedPairs(Struct, kw_only=True):
    """Pairs booked by this selector in the window, and the links between hosts."""

    remote: int
    """Pairs on two ranks; each counts once in `arrivals`, `isl` and `uncached_isl`."""
    local: int
    """Pairs whose decode rank computes the prompt itself."""
    local_uncached_isl: ObservedHistogram
    """Prompt tokens that these ranks had to compute, a part of `uncached_isl`; the rest was
    computed on prefill ranks.
    """
    moved_tokens: int
    """Prompt tokens whose KV blocks moved from the prefill to the decode rank."""
    link_seconds: float | None
    """Seconds that the network links needed for them, by their declared speed; null if tokens moved
    over a link of unknown speed.
    """
    leaving_hosts: int
    """Hosts with prefill ranks; their links send one transfer after the other."""
    entering_hosts: int
    """Hosts with decode ranks; their links receive one transfer after the other."""
    link_backlog_s: float | None
    """Seconds of the longest queue of transfers before a link now, of all replicas; null with
    unknown speeds.
    """


class ObservedHealth(Struct, kw_only=True):
    """Health of the ranks of a model and tenant, in ranks."""

    total: int
    """Registered ranks, with spares."""
    healthy: int
    """Ranks in state `healthy`, with spares."""
    capacity_lost: int
    """Ranks that health has taken out, without drains by operators and planners."""
    degradation_level: int
    """Degradation level, 0 to 4; 0 with `--degradation off`."""
    capacity_ratio: float | None
    """Remaining capacity divided by the promise; null with `--degradation off`."""
    spares: int
    """Spares in any state."""
    spares_wanted: int
    """Recommended number of spares, see `--spares-fraction`."""


Triple = Annotated[list[float], Meta(min_length=3, max_length=3)]


class Observation(Struct, kw_only=True):
    """Traffic of a model and tenant in a window that ends now.

    All fields except `ranks` cover the requests to this selector only; add the numbers of several
    selectors.
    """

    model_name: str
    """Observed model."""
    tenant_id: str
    """Observed tenant."""
    window_s: float
    """Length of the window actually covered, seconds."""
    complete: bool
    """Whether the window is as long as requested, within a second. False after a start until the
    window is covered: earlier traffic is unknown, not zero.
    """
    arrivals: int
    """Requests for a rank, including refused, queued and later abandoned requests. A selection
    booked by another call counts once, a pair as well; with prefill workers present, other bookings
    on decode workers are not counted.
    """
    arrival_variation: float | None
    """Squared coefficient of variation of the times between arrivals (1: Poisson), from counts in
    slots of a second; null with fewer than 10 slots, or no arrivals.
    """
    rejected: dict[str, int]
    """Requests without a rank, by reason."""
    queued_now: int
    """Requests waiting in this selector."""
    queued_tokens: int
    """Prompt tokens of the waiting requests."""
    isl: ObservedHistogram
    """Prompt tokens of the requests that were placed."""
    uncached_isl: ObservedHistogram
    """Prompt tokens not cached on the chosen ranks."""
    osl: ObservedHistogram
    """Output tokens of freed requests, from their output blocks; only for callers that report
    these.
    """
    kv_hit_rate: float | None
    """Cached prompt tokens divided by all prompt tokens; null without prompt tokens."""
    prefill_s: list[Triple]
    """Samples of three numbers: uncached tokens, seconds from admission to `prefill_complete`,
    tokens left to compute on the rank at admission. At most 256, spread evenly.
    """
    decode_s: list[Triple]
    """Samples, each of an output block: live requests and active KV tokens of the rank, seconds per
    token. At most 256, spread evenly.
    """
    ttft_s: ObservedHistogram
    """Seconds from admission to `prefill_complete`, of pairs to `first_token`; only for callers
    that report these.
    """
    itl_s: ObservedHistogram
    """Seconds per token of every output block after the first report; only for callers that report
    output blocks.
    """
    health: ObservedHealth | UnsetType = UNSET
    """Health of the ranks; absent with `--health-checks off`."""
    bins: BinEdges
    """Bin edges of the histograms."""
    pairs: ObservedPairs | UnsetType = UNSET
    """Pairs; absent if none was chosen."""
    ranks: list[ObservedRank]
    """Ranks by worker and rank."""
