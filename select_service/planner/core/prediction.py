"""Stage PREDICT: the builtin prediction, with the parts that plugins replace."""

from collections.abc import Sequence

from msgspec.structs import replace

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.stages import SourcedPrediction
from select_service.planner.core.tick_input import HIT_RATE_MAX

_LENGTHS = ("isl", "osl", "accept_length")


def apply_predictions(
    builtin: ExpectedTraffic, answers: Sequence[SourcedPrediction]
) -> ExpectedTraffic:
    """Return the prediction of a tick. Of each field the smallest priority with a value counts."""
    ranked = sorted(answers, key=lambda answer: answer.priority)  # ties keep their order
    given: dict[str, float] = {}
    source = ""
    for answer in ranked:
        own = answer.prediction
        # Both numbers of requests come from one plugin: the demand of one predictor above the
        # requests of another would be the plan of neither.
        has_requests = own.requests is not None or own.demand_requests is not None
        if has_requests and "requests" not in given:
            requests = builtin.requests if own.requests is None else own.requests
            given["requests"] = requests
            given["demand_requests"] = max(requests, own.demand_requests or 0.0)
            source = answer.source
        for field in _LENGTHS:
            if (value := getattr(own, field)) is not None:
                given.setdefault(field, value)
        if own.kv_hit_rate is not None:
            given.setdefault("kv_hit_rate", min(own.kv_hit_rate, HIT_RATE_MAX))
    if not given:
        return builtin
    changed = replace(builtin, **given)
    if not source:
        return changed
    # The measured error belongs to the builtin prediction, not to the plugin's.
    return replace(changed, predictor=source, error=None, proven=True)
