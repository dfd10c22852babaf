"""HTTP bodies that compare policies."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.bodies.common import RequestBody
from select_service.bodies.policies import NAME_BYTES_MAX, ScopeOfPolicy

SLOT_S_MIN = 120.0
SLOT_S_MAX = 300.0
SLOT_S = 180.0
NAMED_BYTES_MAX = 4 * NAME_BYTES_MAX
"""Of a policy with its options."""

NamedPolicy = Annotated[str, Meta(max_length=NAMED_BYTES_MAX)]


class ExtraTokens(Struct, kw_only=True):
    """Tokens above the least of the candidates, a mean over the decisions."""

    wait: float
    """Work before the prompt."""
    prefill: float
    """What the prompt itself would compute."""


class ShadowRow(Struct, kw_only=True):
    """Decisions of one policy, as another sees them."""

    policy: str
    """Policy that decided."""
    decisions: int
    """Decisions that were compared."""
    other: int
    """Those of them in which the other policy would not have chosen the same."""
    no_choice: int
    """Decisions between a single candidate; in no other number."""
    partial: int
    """Compared ones with more candidates than are kept, so that the other policy might have chosen
    one that it did not see."""
    regret: float
    """What the other policy gives for the choices that were made, above the lowest of its costs: a
    mean over the decisions, in the unit of its cost."""
    lowest_cost: float
    """The mean of those lowest costs."""
    made: ExtraTokens
    """Of the choices that were made."""
    shadow: ExtraTokens
    """Of the choices that the other policy would have made."""


class ShadowState(Struct, kw_only=True):
    """What another policy would have chosen, since the start."""

    shadow_policy: str
    """That policy, with its options."""
    skipped: int
    """Decisions that it did not look at, because there were too many."""
    backlog: int
    """Decisions that it is still to look at."""
    policies: list[ShadowRow]
    """By the policy that decided."""


class ExperimentRequest(RequestBody, kw_only=True):
    """POST /experiments: switch a scope between two policies by time."""

    policies: Annotated[tuple[NamedPolicy, ...], Meta(min_length=2, max_length=2)]
    """The two, for example `reference` or, with options, `work+strict-tail`."""
    slot_s: Annotated[float, Meta(ge=SLOT_S_MIN, le=SLOT_S_MAX)] = SLOT_S
    """Seconds for which one of them counts; at the beginning of each slot 30 are not measured."""
    scope: ScopeOfPolicy | UnsetType = UNSET
    """What is switched; everything when left out."""


class ArmView(Struct, kw_only=True):
    """One of the two policies."""

    policy: str
    """The policy, with its options."""
    requests: int
    """Its measured requests, those of pairs that are not over included."""
    mean_ttft_s: float | None
    """Mean over its slots of the measured pairs; null: there is no such pair."""


class DifferenceView(Struct, kw_only=True):
    """The second policy less the first, in seconds: a mean over pairs."""

    mean_s: float
    """Below 0: the second policy is faster."""
    low_s: float
    """Lower end of the interval."""
    high_s: float
    """Upper end of the interval. Where it does not hold 0 the policies differ."""
    confidence: float
    """Of the interval: so often it holds the true difference."""
    relative: float
    """`mean_s` over the mean of the first policy."""


class PairView(Struct, kw_only=True):
    """Two neighbouring slots that are over; numbers in the order of `policies`."""

    began: int
    """Which policy began: 0 the first, 1 the second."""
    requests: list[int]
    """Measured requests."""
    mean_ttft_s: list[float | None]
    """Their mean times; null: there are none, so that the pair is left out."""


class ExperimentView(Struct, kw_only=True):
    """An experiment and what it has found."""

    experiment_id: str
    """Its name."""
    state: Literal["running", "ended"]
    """Are policies still switched?"""
    ending: Literal["deleted", "slots_max"] | None
    """Why it ended: somebody ended it, or it had as many slots as there may be. Null: it runs."""
    model_name: str | None
    """Model that is switched; null: all."""
    tenant_id: str | None
    """Tenant of that model that is switched; null: all."""
    policies: list[ArmView]
    """The first one and the second."""
    slot_s: float
    """Seconds of a slot."""
    dropped_s: float
    """Seconds at the beginning of each slot of which bookings are not measured."""
    seconds: float
    """How long it has been running, or ran."""
    current: str | None
    """The policy that counts in the scope now; null: it has ended."""
    pairs_measured: int
    """Pairs of slots that are over and have measured requests in both."""
    pairs_left_out: int
    """Pairs that are over and have none in one of them."""
    difference: DifferenceView | None
    """Null: there are not two measured pairs yet."""
    unreported: int
    """Bookings in measured time that ended without `prefill_complete`."""
    unfollowed: int
    """Bookings in measured time that were not measured, because too many were under way."""
    pairs: list[PairView] | UnsetType = UNSET
    """All pairs that are over, the oldest first; absent in lists."""


class ExperimentList(Struct, kw_only=True):
    """Experiments that run, or are remembered."""

    experiments: list[ExperimentView]
    """The oldest first, without their pairs."""
