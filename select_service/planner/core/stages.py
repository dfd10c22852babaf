"""Stages of a tick, answers of plugins to them, and records of the calls."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

BUILTIN_SOURCES: Final = ("load", "throughput")
"""Sources of the builtin proposals; no plugin may have these names."""
TEXT_MAX = 200
"""Limit of a reason given by a plugin, characters."""
TARGETS_MAX = 16
"""Limit of the targets of an answer."""
REQUESTS_MAX = 1e12
TOKENS_MAX = 1e8
"""Limits of predicted requests of a window, and of predicted lengths."""


class Stage(StrEnum):
    """Stages of a tick in their order. Plugins answer to PREDICT, PROPOSE and CONSTRAIN."""

    OBSERVE = "observe"
    PREDICT = "predict"
    PROPOSE = "propose"
    RECONCILE = "reconcile"
    CONSTRAIN = "constrain"
    EXECUTE = "execute"


PluginText = Annotated[str, Meta(max_length=TEXT_MAX)]
_Requests = Annotated[float, Meta(ge=0, le=REQUESTS_MAX)]
_Tokens = Annotated[float, Meta(gt=0, le=TOKENS_MAX)]


class Prediction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Answer to PREDICT. A field without a value keeps the builtin prediction.

    requests:        expected requests of a throughput interval
    demand_requests: requests to plan replicas for; at least, and without a value, `requests`
    isl, osl:        expected mean lengths of prompt and answer, tokens
    kv_hit_rate:     expected cached part of prompts, 0 to 1
    accept_length:   expected tokens generated in an iteration
    reason:          text for status and report
    """

    requests: _Requests | None = None
    demand_requests: _Requests | None = None
    isl: _Tokens | None = None
    osl: _Tokens | None = None
    kv_hit_rate: Annotated[float, Meta(ge=0, le=1)] | None = None
    accept_length: Annotated[float, Meta(ge=1, le=100)] | None = None
    reason: PluginText = ""


class SourcedPrediction(Struct, frozen=True, kw_only=True):
    """Prediction of a plugin; of each field the smallest priority with a value counts."""

    source: str
    priority: int
    prediction: Prediction


class CallOutcome(StrEnum):
    """Outcomes of the call of a plugin."""

    ANSWERED = "answered"
    REPEATED = "repeated"
    """The plugin is not due by its `interval_s`; the last answer counts."""
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INVALID = "invalid"
    BUSY = "busy"
    """An earlier call still runs."""
    PAUSED = "paused"
    """The plugin is not called: after failures, or without a heartbeat."""


class PluginCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of the call of a plugin.

    seconds: duration of the call
    is_held: whether the last good answer counts, because of `on_failure: hold`
    text:    error, or the reason given by the plugin
    """

    plugin: str
    stage: Stage
    outcome: CallOutcome
    seconds: float = 0.0
    is_held: bool = False
    text: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the plugin works."""
        return self.outcome in (CallOutcome.ANSWERED, CallOutcome.REPEATED)
