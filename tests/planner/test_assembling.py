"""Tests of deployments that are built from settings and can tick."""

import json
from pathlib import Path

import pytest

from select_service.files.request_trace import TraceError
from select_service.planner.config_loader import convert_config
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role, RoleReplicas, TickInput, TrafficWindow
from select_service.planner.wiring import build_cluster, build_deployment


@pytest.mark.parametrize("mode", ["disagg", "prefill", "decode", "agg"])
def test_a_deployment_of_each_mode_ticks(mode: str) -> None:
    document = {"name": "a", "model_name": "m", "mode": mode, "max_gpu_budget": 8}
    config = convert_config({"selectors": ["http://s"], "deployments": [document]})
    cluster = build_cluster(config, 0.0)
    replicas = {role: RoleReplicas(ready=1, expected=1) for role in Role}
    traffic = TrafficWindow(duration_s=180.0, requests=10.0, isl=100.0, osl=10.0)
    told = TickInput(now_s=180.0, replicas=replicas, traffic=traffic)
    effects = cluster.tick({"a": told})["a"]
    assert effects.diagnostics.run_throughput
    assert effects.diagnostics.throughput_reason == Reason.MODEL_NOT_READY
    assert effects.next_tick.at_s == 360.0


def test_a_trace_is_seen_before_the_first_tick(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = {"input_length": 512, "output_length": 9, "hash_ids": [1]}
    lines = (json.dumps({"timestamp": second * 1000, **row}) for second in range(1000))
    trace.write_text("\n".join(lines))
    settings = DeploymentSettings(mode="agg", load_predictor="constant", forecast_quantile=0.5)
    cold = build_deployment(settings, 0.0)
    warm = build_deployment(settings, 0.0, warmup_trace=str(trace))
    told = TickInput(
        now_s=180.0,
        replicas={Role.DECODE: RoleReplicas(ready=1, expected=1)},
        traffic=TrafficWindow(duration_s=180.0),
    )
    assert cold.run_tick(told).diagnostics.forecast is None
    forecast = warm.run_tick(told).diagnostics.forecast
    assert forecast is None or forecast.requests == pytest.approx(180.0)
    with pytest.raises(TraceError):
        build_deployment(settings, 0.0, warmup_trace=__file__)
