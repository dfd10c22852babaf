"""What one engine carries and how late it is, with given seconds of an iteration."""

from collections.abc import Iterator
from typing import Any

from scripts.playing.differences import Difference, differences
from select_service.planner.core.contracts import Shape, Slo
from select_service.planner.core.inputs import ForwardPass, Limits
from select_service.planner.core.perf.capacity import Given
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.settings import Settings

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
    """The best batch."""
    shape = Shape(
        case["isl"], case["osl"], case["kv_hit_rate"] or 0.0, case["accept_length"] or 1.0
    )
    slo = Slo(case.get("ttft_sla_ms", 0.0), case.get("itl_sla_ms", 0.0))
    found = _model(case).capacity(shape, Limits(**case["limits"]), slo)
    yield from differences(case["capacity"], None if found is None else found._asdict())


def play_estimates(case: dict[str, Any]) -> Iterator[Difference]:
    """Latencies now."""
    model, limits = _model(case), Limits(**case["limits"])
    model.observe([pass_of(one) for one in case["observed_before"]], 0.0)
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
    return EngineModel(case["model"], Settings(robust=False), Given(*case["forward_seconds"]))


def pass_of(given: dict[str, Any]) -> ForwardPass:
    return ForwardPass(worker="a", **{NAMES[key]: value for key, value in given.items()})
