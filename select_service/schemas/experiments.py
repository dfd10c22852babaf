"""HTTP bodies of shadow policies and of experiments between two policies."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import RequestBody
from select_service.schemas.policies import NAME_BYTES_MAX, ScopeOfPolicy

SLOT_S_MIN = 120.0
SLOT_S_MAX = 300.0
SLOT_S = 180.0
POLICY_WITH_OPTIONS_BYTES_MAX = 4 * NAME_BYTES_MAX
"""Longest name of a policy with its options, bytes."""

PolicyWithOptions = Annotated[str, Meta(max_length=POLICY_WITH_OPTIONS_BYTES_MAX)]


class ExtraTokens(Struct, kw_only=True):
    """Tokens above the minimum of the candidates, mean over the decisions."""

    wait: float
    """Work queued before the prompt, tokens."""
    prefill: float
    """Tokens of the prompt itself to be computed."""


class ShadowRow(Struct, kw_only=True):
    """Decisions of one policy, evaluated by the shadow policy."""

    policy: str
    """Policy that made the decisions."""
    decisions: int
    """Number of compared decisions."""
    other: int
    """Compared decisions in which the shadow policy would have chosen another rank."""
    no_choice: int
    """Decisions with a single candidate; not part of any other number."""
    partial: int
    """Compared decisions with more candidates than are recorded: the shadow policy might have
    chosen a rank that was not recorded.
    """
    regret: float
    """Cost of the actual choices under the shadow policy, above the lowest of its costs; mean over
    the decisions, in the unit of its cost.
    """
    lowest_cost: float
    """Mean of the lowest costs under the shadow policy."""
    made: ExtraTokens
    """Extra tokens of the actual choices."""
    shadow: ExtraTokens
    """Extra tokens of the choices that the shadow policy would have made."""


class ShadowState(Struct, kw_only=True):
    """Comparison with a shadow policy since the start of the process."""

    shadow_policy: str
    """Shadow policy with its options."""
    skipped: int
    """Decisions not compared because too many arrived."""
    backlog: int
    """Decisions waiting to be compared."""
    policies: list[ShadowRow]
    """Results by the policy that made the decisions."""


class ExperimentRequest(RequestBody, kw_only=True):
    """Body of POST /experiments: alternates a scope between two policies in time slots."""

    policies: Annotated[tuple[PolicyWithOptions, ...], Meta(min_length=2, max_length=2)]
    """Two policies, for example `reference` or, with options, `work+strict-tail`."""
    slot_s: Annotated[float, Meta(ge=SLOT_S_MIN, le=SLOT_S_MAX)] = SLOT_S
    """Length of a slot with one policy, seconds; the first 30 s of each slot are not measured."""
    scope: ScopeOfPolicy | UnsetType = UNSET
    """Scope of the experiment; everything when omitted."""


class ArmView(Struct, kw_only=True):
    """Measurements of one of the two policies."""

    policy: str
    """Policy with its options."""
    requests: int
    """Measured requests of the policy, including those of unfinished pairs."""
    mean_ttft_s: float | None
    """Mean over the policy's slots of the measured pairs, seconds; null: no measured pair yet."""


class DifferenceView(Struct, kw_only=True):
    """Second policy minus the first, seconds, mean over pairs."""

    mean_s: float
    """Mean difference, seconds; below 0: the second policy is faster."""
    low_s: float
    """Lower end of the confidence interval, seconds."""
    high_s: float
    """Upper end of the confidence interval, seconds. The policies differ if 0 is outside."""
    confidence: float
    """Confidence level: probability that the interval contains the true difference."""
    relative: float
    """`mean_s` divided by the mean of the first policy."""


class PairView(Struct, kw_only=True):
    """Two finished neighbouring slots; numbers in the order of `policies`."""

    began: int
    """Index of the policy of the earlier slot: 0 the first policy, 1 the second."""
    requests: list[int]
    """Measured requests."""
    mean_ttft_s: list[float | None]
    """Mean times of the measured requests, seconds; null: no requests, and the pair is left out."""


class ExperimentView(Struct, kw_only=True):
    """Experiment and its results."""

    experiment_id: str
    """Id of the experiment."""
    state: Literal["running", "ended"]
    """Whether the policies still alternate."""
    ending: Literal["deleted", "slots_max"] | None
    """Reason of the end: stopped by a request, or the limit of slots reached. Null: still
    running.
    """
    model_name: str | None
    """Model of the experiment; null: all models."""
    tenant_id: str | None
    """Tenant of that model; null: all tenants."""
    policies: list[ArmView]
    """First and second policy."""
    slot_s: float
    """Length of a slot, seconds."""
    dropped_s: float
    """Unmeasured time at the beginning of each slot, seconds."""
    seconds: float
    """Elapsed time of the experiment, or its total time after the end."""
    current: str | None
    """Policy active in the scope now; null: the experiment has ended."""
    pairs_measured: int
    """Finished pairs of slots with measured requests in both slots."""
    pairs_left_out: int
    """Finished pairs without measured requests in one of the slots."""
    difference: DifferenceView | None
    """Difference between the policies; null: fewer than two measured pairs."""
    unreported: int
    """Reservations of measured time that ended without `prefill_complete`."""
    unfollowed: int
    """Reservations of measured time that were not measured, because too many were being
    measured.
    """
    pairs: list[PairView] | UnsetType = UNSET
    """All finished pairs, oldest first; absent in lists."""


class ExperimentList(Struct, kw_only=True):
    """List of running and remembered experiments."""

    experiments: list[ExperimentView]
    """Experiments without their pairs, oldest first."""
