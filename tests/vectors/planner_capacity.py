"""Player of engine cases: capacity and latency of one engine with given seconds per iteration."""

from collections.abc import Iterator
from typing import Any

from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.performance.engine_capacity import LinearIterationTime
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import EngineLimits, ForwardPass
from tests.vectors.differences import Difference, differences

NAMES = {
    "wall": "wall_s",
    "npre": "prefill_requests",
    "pre": "prefill_tokens",
    "ndec": "decode_requests",
    "dec": "decode_kv_tokens",
    "qn": "queued_prefill_requests",
    "qp": "queued_prefill_tokens",
    "qdn": "queued_decode_requests",
    "qd": "queued_decode_kv_tokens",
}


def play_capacity(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the best batch."""
    shape = MeanRequest(
        case["isl"], case["osl"], case["kv_hit_rate"] or 0.0, case["accept_length"] or 1.0
    )
    slo = LatencyTargets(case.get("ttft_sla_ms", 0.0), case.get("itl_sla_ms", 0.0))
    found = _model(case).find_capacity(shape, EngineLimits(**case["limits"]), slo)
    yield from differences(case["capacity"], None if found is None else found._asdict())


def play_estimates(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the present latencies."""
    model, limits = _model(case), EngineLimits(**case["limits"])
    model.observe_passes([pass_of(one) for one in case["observed_before"]], 0.0)
    now = pass_of(case["now"])
    for at, ask in enumerate(case["asked"]):
        if ask["ask"] == "ttft":
            found = model.ttft_s(
                now,
                limits,
                ask["kv_hit_rate"] or 0.0,
                queue_scale=ask["queue_scale"],
                decode_scale=ask["decode_scale"],
                queued_decode=ask["include_queued_decode"],
            )
        else:
            found = model.itl_s(
                now,
                decode_scale=ask["decode_scale"],
                queued_prefill_as_kv=ask["queued_prefill_as_kv"],
            )
        yield from differences(ask["seconds"], found, f"asked[{at}]")


def _model(case: dict[str, Any]) -> EngineModel:
    return EngineModel(
        case["model"],
        DeploymentSettings(robust=False),
        LinearIterationTime(*case["forward_seconds"]),
    )


def pass_of(given: dict[str, Any]) -> ForwardPass:
    return ForwardPass(worker="a", **{NAMES[key]: value for key, value in given.items()})
