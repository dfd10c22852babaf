"""HTTP bodies of admission control: overload refusals, busy thresholds and load shedding."""

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import BusyTokens, Fraction, Name, RequestBody


class OverloadedBody(Struct, kw_only=True):
    """Refusal sent when all workers are busy, in the format of Dynamo's frontend."""

    message: str
    """Explanation for people."""
    type: str = "service_unavailable"
    """Kind of the error, always `service_unavailable`."""
    code: int = 503
    """HTTP status of the response."""


class BusyThresholdChange(RequestBody, kw_only=True):
    """Body of POST /busy_threshold: omitted thresholds are kept, null clears a threshold."""

    model: Name | UnsetType = UNSET
    """Name of the model, equal to the `model_name` of its workers."""
    model_name: Name | UnsetType = UNSET
    """Alias of `model`; one of the two is required, and if both are given they must be equal."""
    active_decode_blocks_threshold: Fraction | UnsetType | None = UNSET
    """Used fraction of a rank's KV cache, 0 to 1, above which the rank is busy; null: not
    limited.
    """
    active_prefill_tokens_threshold: BusyTokens | UnsetType | None = UNSET
    """Prompt tokens not yet computed above which a rank is busy; null: not limited."""

    def __post_init__(self) -> None:
        if self.model is UNSET:
            self.model = self.model_name
        if self.model is UNSET:
            raise ValueError("the field `model_name` is missing")
        if self.model_name not in (UNSET, self.model):
            raise ValueError(
                f"model `{self.model}` and model_name `{self.model_name}` differ; "
                "they are two names of one field, give one of them"
            )

    @property
    def resolved_model(self) -> str:
        assert isinstance(self.model, str)
        return self.model


class BusyThresholdView(Struct, kw_only=True):
    """Effective busy thresholds of a model; null: not limited."""

    model: str
    """Name of the model."""
    active_decode_blocks_threshold: float | None
    """Used fraction of a rank's KV cache, 0 to 1, above which the rank is busy."""
    active_prefill_tokens_threshold: int | None
    """Prompt tokens not yet computed above which a rank is busy."""


class BusyThresholdList(Struct, kw_only=True):
    """Response of GET /busy_threshold."""

    thresholds: list[BusyThresholdView]
    """All models with busy thresholds, sorted by name."""


class ShedRequest(RequestBody, kw_only=True):
    """Body of POST /admission/shed."""

    tier: Name | None
    """Highest priority tier to refuse; all lower tiers are refused too. Null ends the shedding."""


class FlowState(Struct, kw_only=True):
    """Waiting requests of one `fairness_id` in a policy class, summed over all models."""

    fairness_id: str
    """The `fairness_id`; empty for the requests without one."""
    waiting_requests: int
    """Requests waiting now."""
    waiting_isl_tokens: int
    """Prompt tokens of the requests waiting now."""


class ClassState(Struct, kw_only=True):
    """Queue of one policy class, summed over all models."""

    policy_class: str
    """Name of the policy class."""
    waiting_requests: int
    """Requests waiting now."""
    waiting_isl_tokens: int
    """Prompt tokens of the requests waiting now."""
    deadline_exceeded: int
    """Requests since the start whose `deadline_ms` was not met."""
    flows: list[FlowState]
    """The 16 `fairness_id` with most waiting requests; empty while none waits by name."""


class DegradedModel(Struct, kw_only=True):
    """Active degradation measures of one model."""

    model_name: str
    """Name of the model."""
    level: int
    """Level of degradation, 1 to 4."""
    shed_tier: str | None
    """Highest tier shed because of the degradation; null: no tier is shed for this reason."""
    refuses_new: bool
    """Whether all requests of the model are refused with `degraded`."""
    batch_multiplier: float
    """Factor applied to batch budgets and busy thresholds."""
    latency_multiplier: float
    """Factor applied to queue timeouts."""


class AdmissionState(Struct, kw_only=True):
    """Response of GET /admission: active switches, and outcomes since the start of the process."""

    tiers: list[str]
    """Priority tiers, highest first."""
    default_tier: str
    """Tier of requests without a tier."""
    shed_tier: str | None
    """Highest tier shed by an operator; null: no tier. For a model listed in `degraded` the higher
    of both tiers applies.
    """
    shed_tiers: list[str]
    """All shed tiers: `shed_tier` and the tiers below."""
    queueing: bool
    """Whether requests wait in a queue while no rank has capacity."""
    queue_timeout_s: float | None
    """Longest wait of a request, seconds; null: as long as its client waits, or no queueing."""
    waiting_requests: int
    """Requests waiting now, over all models."""
    waiting_isl_tokens: int
    """Prompt tokens of the requests waiting now."""
    classes: list[ClassState]
    """Waiting requests by policy class."""
    thresholds: list[BusyThresholdView]
    """Busy thresholds of every model that has some."""
    outcomes: dict[str, int]
    """Requests since the start by outcome: admitted, refused as busy, shed, ..."""
    degraded: list[DegradedModel] | UnsetType = UNSET
    """Models with ranks that cannot carry the promised load, sorted by name; absent when there are
    none. Present only with `--degradation auto`.
    """
