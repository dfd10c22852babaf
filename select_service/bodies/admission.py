"""HTTP bodies of the admission stage; see schema for their rules."""

from msgspec import UNSET, Struct, UnsetType

from select_service.bodies.common import BusyTokens, Fraction, Name


class OverloadedBody(Struct, kw_only=True):
    """The refusal when all workers are busy, in the words of Dynamo's frontend."""

    message: str
    type: str = "service_unavailable"
    code: int = 503


class BusyThresholdChange(Struct, kw_only=True):
    """POST /busy_threshold: what is left out stays, null clears."""

    model: Name
    active_decode_blocks_threshold: Fraction | UnsetType | None = UNSET
    active_prefill_tokens_threshold: BusyTokens | UnsetType | None = UNSET


class BusyThresholdView(Struct, kw_only=True):
    """The thresholds that count for a model; null: not judged."""

    model: str
    active_decode_blocks_threshold: float | None
    active_prefill_tokens_threshold: int | None


class BusyThresholdList(Struct, kw_only=True):
    thresholds: list[BusyThresholdView]


class ShedRequest(Struct, kw_only=True):
    """POST /admission/shed: this tier and all below it are refused; null ends it."""

    tier: Name | None


class ClassState(Struct, kw_only=True):
    """What waits in one policy class, over all models."""

    policy_class: str
    waiting_requests: int
    waiting_isl_tokens: int


class AdmissionState(Struct, kw_only=True):
    """GET /admission: switches that are thrown, and what admission did since the start.

    tiers:   highest first; `shed_tier` and all below it are shed
    outcomes: requests by what became of them
    """

    tiers: list[str]
    default_tier: str
    shed_tier: str | None
    shed_tiers: list[str]
    queueing: bool
    queue_timeout_s: float | None
    waiting_requests: int
    waiting_isl_tokens: int
    classes: list[ClassState]
    thresholds: list[BusyThresholdView]
    outcomes: dict[str, int]
