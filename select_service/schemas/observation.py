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
    booked by another call counts once; with prefill workers present, decode workers are not
    counted.
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
    """Seconds from admission to `prefill_complete`; only for callers that report the latter."""
    itl_s: ObservedHistogram
    """Seconds per token of every output block after the first report; only for callers that report
    output blocks.
    """
    bins: BinEdges
    """Bin edges of the histograms."""
    ranks: list[ObservedRank]
    """Ranks by worker and rank."""
