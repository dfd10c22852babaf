"""Tests of unknown traffic values: only dependent decisions wait, with a reason."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import EngineLimits, Role, TrafficWindow
from select_service.planner.wiring import build_deployment
from tests.planner.core.deployments import LIMITS, a_deployment, both, replicas, tick_input

P, D = Role.PREFILL, Role.DECODE
STEADY = {"load_predictor": "constant", "forecast_quantile": 0.5, "lead": False}


def written_profile(directory: Path) -> str:
    prefill = {"prefill_isl": [100, 1000, 2000, 4000, 8000]}
    prefill["prefill_ttft"] = [10 + 0.05 * each for each in prefill["prefill_isl"]]
    points = [(n, c) for n in (1, 8, 32) for c in (500, 4000)]
    decode = {
        "x_kv_usage": [n * c / 400_000 for n, c in points],
        "y_context_length": [c for _, c in points],
        "z_itl": [6 + 3e-5 * n * c + 0.1 * n for n, c in points],
        "max_kv_tokens": 400_000,
    }
    for name, arrays in (("prefill", prefill), ("decode", decode)):
        (directory / f"{name}_raw_data.json").write_bytes(msgspec.json.encode(arrays))
    return str(directory)


def window(**more: Any) -> TrafficWindow:
    return TrafficWindow(duration_s=60.0, **({"requests": 1200.0, "isl": 3000.0} | more))


def run_tick(deployment: PlannedDeployment, of: TrafficWindow, **counts: int) -> TickEffects:
    return deployment.run_tick(
        tick_input(60.0, both(counts.get("p", 1), counts.get("d", 2)), of=of)
    )


@pytest.mark.parametrize("stabilise", [True, False])
def test_prefill_is_sized_by_a_profile_while_no_answer_has_been_reported(
    tmp_path: Path, stabilise: bool
) -> None:
    settings = DeploymentSettings(
        profile_results_dir=written_profile(tmp_path),
        throughput_adjustment_interval_seconds=60.0,
        max_gpu_budget=-1,
        stabilise=stabilise,
        **STEADY,
    )
    deployment = build_deployment(settings, 0.0)
    effects = run_tick(deployment, window(requests=600.0))
    roles = effects.diagnostics.roles
    assert roles[P].model_source == roles[D].model_source == "profile"
    assert roles[D].sized is not None
    assert roles[D].sized.reason is Reason.NO_OUTPUT_LENGTHS
    assert roles[P].sized is not None
    assert (roles[P].sized.replicas or 0) > 1
    assert effects.scale_to is not None
    assert effects.scale_to[P] > 1
    assert effects.scale_to.get(D, 2) == 2
    assert effects.diagnostics.throughput_reason is Reason.SCALE


@pytest.mark.parametrize(
    ("of", "mode", "limits", "reason"),
    [
        ({"isl": None}, "disagg", LIMITS, Reason.NO_PROMPT_LENGTHS),
        ({}, "agg", LIMITS, Reason.NO_OUTPUT_LENGTHS),
        ({}, "decode", LIMITS, Reason.NO_OUTPUT_LENGTHS),
        ({"osl": 100.0}, "agg", EngineLimits(max_kv_tokens=9000), Reason.LIMITS_UNKNOWN),
        ({"osl": 100.0}, "decode", EngineLimits(), Reason.LIMITS_UNKNOWN),
        ({"osl": 100.0}, "decode", EngineLimits(max_kv_tokens=100), Reason.SLO_OUT_OF_REACH),
    ],
)
def test_the_reason_names_the_missing_value(
    of: dict[str, Any], mode: str, limits: EngineLimits, reason: Reason
) -> None:
    deployment = a_deployment(mode=mode, **STEADY)
    found = {role: msgspec.structs.replace(replicas(2), limits=limits) for role in deployment.roles}
    effects = deployment.run_tick(tick_input(60.0, found, of=window(**of)))
    assert effects.scale_to is None
    assert effects.diagnostics.throughput_reason is reason


def test_a_missing_model_still_holds_both_roles() -> None:
    settings = DeploymentSettings(
        throughput_adjustment_interval_seconds=60.0, max_gpu_budget=-1, **STEADY
    )
    effects = run_tick(build_deployment(settings, 0.0), window())
    assert effects.scale_to is None
    assert effects.diagnostics.throughput_reason is Reason.MODEL_NOT_READY


def test_the_document_profile_has_the_reasons_of_the_reference() -> None:
    effects = run_tick(a_deployment(document=True), window())
    assert effects.diagnostics.throughput_reason is Reason.MODEL_NOT_READY


def test_with_load_scaling_an_unsized_role_keeps_its_floor() -> None:
    deployment = a_deployment(enable_load_scaling=True, **STEADY)
    effects = run_tick(deployment, window(requests=1500.0), p=1, d=3)
    assert effects.diagnostics.throughput_reason is Reason.SET_LOWER_BOUND
    assert effects.diagnostics.roles[P].floor > 1
    assert effects.diagnostics.roles[D].floor == 3
