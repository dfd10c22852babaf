"""The body of GET /planner/observation: what an autoscaler is told of a model and tenant."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Role = Literal["prefill", "decode", "aggregated"]


class BinEdges(Struct, kw_only=True):
    """Where the bins of histograms begin and end, equal steps of the logarithm.

    Bin i is from edge i to before edge i + 1; what is outside is in the outermost bins.
    """

    tokens: list[float]
    """Of `isl`, `uncached_isl` and `osl`: 65 edges, from 1 to 2**20."""
    seconds: list[float]
    """Of `ttft_s` and `itl_s`: 129 edges, from 2**-10 to 2**10."""


class ObservedHistogram(Struct, kw_only=True):
    """How often which values were seen."""

    counts: list[int]
    """By bin, see `bins`."""
    sum: float
    """Of all values."""


class ObservedEngine(Struct, kw_only=True):
    """What the engine of a rank says of itself; a field is null when it does not say it."""

    requests_waiting: int | None
    """Requests that wait in the engine."""
    requests_running: int | None
    """Requests that run in the engine."""
    kv_usage: float | None
    """Used part of its KV cache, 0 to 1."""


class ObservedRank(Struct, kw_only=True):
    """One rank now, with the load that all replicas have booked on it."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Its data-parallel rank."""
    role: Role
    """As registered; `aggregated` when left out."""
    state: str | UnsetType = UNSET
    """State of its health; absent with `--health-checks off`."""
    weight: float | UnsetType = UNSET
    """Its share of requests, 0: none; absent with `--health-checks off`."""
    active_prefill_tokens: int
    """Prompt tokens that are still to be computed."""
    active_blocks: int
    """Blocks of live reservations."""
    live_requests: int
    """Live reservations."""
    block_size: int
    """Tokens of a block."""
    total_kv_blocks: int | None
    """Blocks of its KV cache; null when not registered."""
    max_num_batched_tokens: int | None
    """Tokens that it computes in one step; null when not registered."""
    engine: ObservedEngine | UnsetType = UNSET
    """Its own words, while its last reading is fresh; absent otherwise."""


Triple = Annotated[list[float], Meta(min_length=3, max_length=3)]


class Observation(Struct, kw_only=True):
    """Traffic of a model and tenant in a window that ends now.

    All but `ranks` is what this selector was asked and told; of several, numbers are added.
    """

    model_name: str
    """Model that is observed."""
    tenant_id: str
    """Tenant that is observed."""
    window_s: float
    """Seconds that are really covered."""
    complete: bool
    """Is that, within a second, what was asked for? False after a start until the window is
    covered: what was before is unknown, and not nothing."""
    arrivals: int
    """Requests for a rank, refused, queued and later given up ones included. A rank that is asked
    for and booked in another call counts once; beside prefill workers, decode workers count
    not at all."""
    arrival_variation: float | None
    """Squared coefficient of variation of the times between arrivals (1: Poisson), from counts by
    slots of a second; null when there are fewer than 10 slots, or no arrivals."""
    rejected: dict[str, int]
    """Requests that got no rank, by reason."""
    queued_now: int
    """Requests that wait in this selector."""
    queued_tokens: int
    """Prompt tokens of those."""
    isl: ObservedHistogram
    """Prompt tokens of the requests that got a rank."""
    uncached_isl: ObservedHistogram
    """Of those, what the chosen ranks did not have cached."""
    osl: ObservedHistogram
    """Tokens of answers that were freed, as their output blocks say; of callers that report
    those."""
    kv_hit_rate: float | None
    """Cached over all prompt tokens; null without any."""
    prefill_s: list[Triple]
    """Samples: uncached tokens, seconds from admission to `prefill_complete`, tokens that were left
    to compute on the rank before it. At most 256, spread evenly."""
    decode_s: list[Triple]
    """Samples, one for an output block: live requests and active KV tokens of the rank, seconds a
    token. At most 256, spread evenly."""
    ttft_s: ObservedHistogram
    """Seconds from admission to `prefill_complete`, where callers report that."""
    itl_s: ObservedHistogram
    """Seconds a token of every output block after the first report, where callers report those."""
    bins: BinEdges
    """What the histograms count by."""
    ranks: list[ObservedRank]
    """By worker and rank."""
