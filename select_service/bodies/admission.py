"""HTTP bodies of the admission stage."""

from msgspec import UNSET, Struct, UnsetType

from select_service.bodies.common import BusyTokens, Fraction, Name, RequestBody


class OverloadedBody(Struct, kw_only=True):
    """The refusal when all workers are busy, in the words of Dynamo's frontend."""

    message: str
    """What happened, for people."""
    type: str = "service_unavailable"
    """Always `service_unavailable`."""
    code: int = 503
    """The HTTP status again."""


class BusyThresholdChange(RequestBody, kw_only=True):
    """POST /busy_threshold: what is left out stays, null clears."""

    model: Name | UnsetType = UNSET
    """Name of the model, as in the `model_name` of its workers."""
    model_name: Name | UnsetType = UNSET
    """Another name of `model`; one of the two is required, and two must be equal."""
    active_decode_blocks_threshold: Fraction | UnsetType | None = UNSET
    """Used part of a rank's KV cache, 0 to 1, above which it is busy; null: not judged."""
    active_prefill_tokens_threshold: BusyTokens | UnsetType | None = UNSET
    """Prompt tokens still to be computed above which a rank is busy; null: not judged."""

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
    def of_model(self) -> str:
        assert isinstance(self.model, str)
        return self.model


class BusyThresholdView(Struct, kw_only=True):
    """The thresholds that count for a model; null: not judged."""

    model: str
    """Name of the model."""
    active_decode_blocks_threshold: float | None
    """Used part of a rank's KV cache, 0 to 1, above which it is busy."""
    active_prefill_tokens_threshold: int | None
    """Prompt tokens still to be computed above which a rank is busy."""


class BusyThresholdList(Struct, kw_only=True):
    """GET /busy_threshold."""

    thresholds: list[BusyThresholdView]
    """Every model that is judged, by name."""


class ShedRequest(RequestBody, kw_only=True):
    """POST /admission/shed."""

    tier: Name | None
    """This priority tier and all below it are refused from now on; null ends it."""


class ClassState(Struct, kw_only=True):
    """What waits in one policy class, over all models."""

    policy_class: str
    """Name of the class."""
    waiting_requests: int
    """Requests that wait now."""
    waiting_isl_tokens: int
    """Prompt tokens of the requests that wait now."""


class DegradedModel(Struct, kw_only=True):
    """What is given up for one model."""

    model_name: str
    """Which one."""
    level: int
    """Level of degradation, 1 to 4."""
    shed_tier: str | None
    """Highest tier that is shed for it; null: none is, for this reason."""
    refuses_new: bool
    """Are all its requests refused with `degraded`?"""
    batch_multiplier: float
    """Of batch budgets and busy thresholds, what counts."""
    latency_multiplier: float
    """By which queue timeouts are multiplied."""


class AdmissionState(Struct, kw_only=True):
    """GET /admission: switches that are thrown, and what admission did since the start."""

    tiers: list[str]
    """Priority tiers, highest first."""
    default_tier: str
    """Tier of requests that name none."""
    shed_tier: str | None
    """Highest tier that an operator sheds; null: none is. For a model of `degraded` the higher one
    of both counts."""
    shed_tiers: list[str]
    """All tiers that are shed: `shed_tier` and those below it."""
    queueing: bool
    """Do requests wait for room?"""
    queue_timeout_s: float | None
    """Seconds that a request waits at most; null: as long as its client does, or nothing waits."""
    waiting_requests: int
    """Requests that wait now, over all models."""
    waiting_isl_tokens: int
    """Prompt tokens of the requests that wait now."""
    classes: list[ClassState]
    """What waits, by policy class."""
    thresholds: list[BusyThresholdView]
    """Busy thresholds of every model that is judged."""
    outcomes: dict[str, int]
    """Requests since the start by what became of them: admitted, refused as busy, shed, ..."""
    degraded: list[DegradedModel] | UnsetType = UNSET
    """Models whose ranks cannot carry what was promised, by name; absent while there are none.
    With `--degradation auto` only."""
