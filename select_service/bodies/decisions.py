"""Bodies of the decisions: why a prompt went where it went."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class WaitView(Struct, kw_only=True):
    """How a request waited in the queue before it was decided."""

    policy_class: str
    """Class in whose queue it waited."""
    position: int
    """Its position among the requests of the class when it came, from 1."""
    seconds: float
    """How long it waited."""


class CandidateView(Struct, kw_only=True):
    """One rank that might have been chosen: what was known of it, and what that came to."""

    worker_id: int | None
    """Id of the worker; null when the rank has left so long ago that nobody knows it any more."""
    dp_rank: int | None
    """Data-parallel rank of the worker; null with the worker."""
    chosen: bool
    """Is it the rank that was chosen?"""
    gpu_blocks: int
    """Leading blocks of the prompt in its GPU memory."""
    cpu_blocks: int
    """Leading blocks in GPU or CPU memory; cumulative."""
    disk_blocks: int
    """Leading blocks in GPU or CPU memory or on disk; cumulative."""
    external_blocks: int
    """Leading blocks in whatever storage; cumulative."""
    leading_run: int
    """Leading blocks of the prompt that its live requests have, too."""
    prefill_tokens: int
    """Prompt tokens that were booked on it and not reported as computed."""
    active_blocks: int
    """Blocks that its live requests held, output blocks included; shared ones count once."""
    active_requests: int
    """Its live reservations."""
    booked_work_tokens: int
    """Prompt tokens that its unfinished prefills would compute in all."""
    left_work_tokens: int
    """The same, less what its KV events show to be done of the oldest one."""
    extra_wait_tokens: int
    """`left_work_tokens` above the least of the candidates that are shown: how much more work lies
    before the prompt here."""
    extra_prefill_tokens: int
    """What the prompt itself would compute here, above the least of the candidates shown."""
    weight: float
    """How fit the rank was, up to 1. Its cost is `(cost + b) / weight - b`, b being what a block
    costs: 1, or its tokens under policies of work."""
    speed: float
    """Its declared prefill speed (`prefill_tokens_per_s`) over the median of the declared ones; 1
    where it is not declared. Policies of work divided its cost by this, too."""
    factor: float
    """What the preferred taints of the request multiplied its cost by; 1: nothing."""
    terms: dict[str, float]
    """What the cost is made of, in the names of the policy; the last one is the cost itself."""


class DecisionFacts(Struct, kw_only=True):
    """What is said of every decision."""

    decision: int | None
    """Number of the decision, from 1 since the start; null for one that was only asked about."""
    seconds_ago: float | None
    """How long ago it was decided; null for one that was only asked about."""
    selection_id: str | UnsetType = UNSET
    """As it was sent; absent when none was. Of more than 48 bytes the beginning."""
    reservation_id: str | UnsetType = UNSET
    """Name of the booking; absent when nothing was booked. Of more than 48 bytes the beginning."""
    model_name: str
    """Model that was asked for."""
    tenant_id: str
    """Tenant that was asked for."""
    policy: str
    """Cost function."""
    isl_tokens: int
    """Length of the prompt in tokens."""
    prompt_blocks: int
    """Complete blocks of the prompt."""
    prompt_hash: str | None
    """Sequence hash of its last complete block in 16 hexadecimal digits, which stands for all
    complete blocks; null when there is none."""
    reserved: bool
    """Was load booked with the choice?"""
    choice: Literal["cheapest", "tie", "drawn", "pinned", "only"]
    """`cheapest`: it alone had the lowest cost; `tie`: drawn among equally cheap ranks; `drawn`: by
    chance, as the temperature says; `pinned`: the request named it; `only`: no other might be
    chosen."""
    candidate_count: int
    """Ranks that might be chosen."""
    waited: WaitView | UnsetType = UNSET
    """How it waited; absent when it did not."""


class DecisionRow(DecisionFacts, kw_only=True):
    """A decision in a list."""

    worker_id: int | None
    """The chosen worker; null when it has left so long ago that nobody knows it any more."""
    dp_rank: int | None
    """Its data-parallel rank; null with the worker."""
    cost: float
    """Cost of the chosen rank."""
    runner_up_cost: float | None
    """Lowest cost of another candidate; null when there was none."""


class DecisionList(Struct, kw_only=True):
    """Decisions, the newest first."""

    decisions: list[DecisionRow]
    """At most `limit` of them."""
    kept: int
    """Decisions that can be looked up now, whatever the filter."""


class DecisionView(DecisionFacts, kw_only=True):
    """A decision with its candidates."""

    block_size: int
    """Tokens in a block of this model."""
    temperature: float
    """0: the lowest cost was taken; above: drawn, the higher the more evenly."""
    draw: float
    """The number from 0 to 1 that decided among equally cheap ranks, or by temperature."""
    reported_share: float
    """Of the last hundred or so prefills that had ended, those whose end callers had reported
    (`prefill_complete`). Below 0.5 policies of work count what is booked at 0.3."""
    would_wait: bool | UnsetType = UNSET
    """Would the request wait now, because no rank has room? Only where it was asked about."""
    candidates: list[CandidateView]
    """By cost, the lowest first. All of them up to 64; of more the chosen one and at least the 16
    cheapest."""
