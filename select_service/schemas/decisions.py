"""Bodies of decisions: why a prompt was placed on its rank."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import ErrorBody
from select_service.schemas.pairs import PairPath, PairSelection


class WaitView(Struct, kw_only=True):
    """Wait of a request in the queue before its decision."""

    policy_class: str
    """Policy class of the queue."""
    position: int
    """Position on arrival among the requests of the class, from 1."""
    seconds: float
    """Time in the queue, seconds."""


class CandidateView(Struct, kw_only=True):
    """Rank eligible for the decision: its inputs and the resulting cost."""

    worker_id: int | None
    """Id of the worker; null when the rank left too long ago for its name to be kept."""
    dp_rank: int | None
    """Data-parallel rank of the worker; null if `worker_id` is null."""
    chosen: bool
    """Whether this rank was chosen."""
    gpu_blocks: int
    """Leading blocks of the prompt in the rank's GPU memory."""
    cpu_blocks: int
    """Leading blocks in GPU or CPU memory; cumulative."""
    disk_blocks: int
    """Leading blocks in GPU or CPU memory or on disk; cumulative."""
    external_blocks: int
    """Leading blocks in any storage; cumulative."""
    inside_tokens: int | UnsetType = UNSET
    """Reusable tokens behind the last of `gpu_blocks`, less those that the engine computes again;
    only of ranks with several cache groups, and absent when 0.
    """
    assumed_tokens: int | UnsetType = UNSET
    """Tokens of `gpu_blocks` that no event confirms: the rank should hold them because of earlier
    bookings or the session; absent when 0.
    """
    shared_credit_tokens: int | UnsetType = UNSET
    """Credit for tokens that a shared cache holds behind `external_blocks`: their number times 1
    minus the price of a fetch; part of the term `cached_tokens`; absent when 0.
    """
    leading_run: int
    """Leading blocks of the prompt shared with live requests of the rank."""
    prefill_tokens: int
    """Prompt tokens booked on the rank and not reported as computed."""
    active_blocks: int
    """Blocks held by live requests of the rank, including output blocks; a shared block counts
    once.
    """
    active_requests: int
    """Live reservations of the rank."""
    booked_work_tokens: int
    """Prompt tokens to compute for all unfinished prefills of the rank."""
    left_work_tokens: int
    """`booked_work_tokens` minus the part of the oldest prefill already shown done by KV events."""
    extra_wait_tokens: int
    """`left_work_tokens` above the minimum of the candidates shown: the additional work queued
    before the prompt on this rank.
    """
    extra_prefill_tokens: int
    """Prompt tokens to compute on this rank, above the minimum of the candidates shown."""
    weight: float
    """Health weight of the rank, up to 1. The cost becomes `(cost + b) / weight - b`, with b the
    cost of a block: 1, or the tokens of a block under policies of work.
    """
    speed: float
    """Declared prefill speed of the rank (`prefill_tokens_per_s`) divided by the median of the
    declared speeds; 1 if not declared. Policies of work also divide the cost by this ratio.
    """
    factor: float
    """Factor on the cost from the preferred taints of the request; 1: no effect."""
    terms: dict[str, float]
    """Terms of the cost by their names in the policy; the last term is the cost itself."""


class DecisionFacts(Struct, kw_only=True):
    """Fields common to all views of a decision."""

    decision: int | None
    """Number of the decision, from 1 since the start; null for pairs and for a dry run."""
    seconds_ago: float | None
    """Seconds since the decision; null for a dry run."""
    selection_id: str | UnsetType = UNSET
    """Id sent with the request; absent without an id. Longer ids are cut to 48 bytes."""
    reservation_id: str | UnsetType = UNSET
    """Id of the reservation; absent when nothing was booked. Longer ids are cut to 48 bytes."""
    model_name: str
    """Requested model."""
    tenant_id: str
    """Requested tenant."""
    policy: str
    """Cost function of the decision."""
    isl_tokens: int
    """Length of the prompt in tokens."""
    prompt_blocks: int
    """Complete blocks of the prompt."""
    prompt_hash: str | None
    """Sequence hash of the last complete block, 16 hexadecimal digits, which identifies all
    complete blocks; null without a complete block.
    """
    reserved: bool
    """Whether load was booked with the choice."""
    choice: Literal["cheapest", "tie", "drawn", "pinned", "only"]
    """Kind of the choice. `cheapest`: a single rank had the lowest cost; `tie`: random among
    equally cheap ranks; `drawn`: random, weighted by the temperature; `pinned`: the request named
    the rank; `only`: a single rank was eligible.
    """
    candidate_count: int
    """Number of eligible ranks."""
    waited: WaitView | UnsetType = UNSET
    """Wait in the queue; absent when the request did not wait."""


class ListedPair(Struct, kw_only=True):
    """Pair in a row of a list."""

    number: int
    """Number of the decision among those about pairs, for `by=pair`."""
    path: PairPath
    """`remote`: two ranks; `local`: the rank of the row does both."""
    reason: str
    """Reason for the path, as in the answer."""
    prefill_worker_id: int
    """Id of the worker of the prefill leg."""
    prefill_dp_rank: int
    """Data-parallel rank of the prefill leg."""
    move_tokens: int
    """Prompt tokens whose KV blocks move to the decode rank."""


class DecisionRow(DecisionFacts, kw_only=True):
    """Decision as a row of a list."""

    worker_id: int | None
    """Id of the chosen worker, for pairs that of the decode leg; null when the worker left too long
    ago for its name to be kept.
    """
    dp_rank: int | None
    """Data-parallel rank of the chosen worker; null if `worker_id` is null."""
    cost: float | None
    """Cost of the chosen rank or pair; null for pairs of `--policy reference`, which compares no
    costs.
    """
    runner_up_cost: float | None
    """Lowest cost of the other candidates, for pairs that of the other path; null for a single
    candidate.
    """
    pair: ListedPair | UnsetType = UNSET
    """Chosen pair; absent for requests for one rank."""


class DecisionList(Struct, kw_only=True):
    """Decisions, newest first."""

    decisions: list[DecisionRow]
    """Decisions, newest first; no more than `limit`."""
    kept: int
    """Number of decisions kept for look-up now, regardless of the filter."""


class DecisionView(DecisionFacts, kw_only=True):
    """Decision with its candidates."""

    block_size: int
    """Tokens in a block of this model."""
    temperature: float
    """Router temperature. 0: the lowest cost is chosen; above 0: a random choice, the more even the
    higher the temperature.
    """
    draw: float
    """Random number from 0 to 1 that decided among equally cheap ranks, or by temperature."""
    reported_share: float
    """Fraction of about the last hundred ended prefills with an end reported by callers
    (`prefill_complete`). Below 0.5, policies of work count booked tokens with a factor of 0.3.
    """
    would_wait: bool | UnsetType = UNSET
    """Whether the request would wait now because no rank has capacity; only in dry runs."""
    estimated_wait_s: float | UnsetType = UNSET
    """Estimated wait of the request, which is compared with its `deadline_ms`, seconds; only in dry
    runs, and absent without a wait or while no release rate is known.
    """
    refusal: ErrorBody | UnsetType = UNSET
    """Error of a request that would be refused instead of waiting; only in dry runs."""
    candidates: list[CandidateView]
    """Candidates by cost, lowest first. All candidates up to 64; of more, the chosen rank and at
    least the 16 cheapest. Empty for pairs.
    """
    pair: PairSelection | UnsetType = UNSET
    """Chosen pair with the costs of both paths, without its hand-over; absent for requests for one
    rank.
    """
