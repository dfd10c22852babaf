"""Player of whole ticks of a deployment, with the settings of the reference."""

from collections.abc import Iterator
from typing import Any, Literal

from select_service.planner.core.forecasting.predictor_registry import (
    choose_predictors,
    make_predictors,
)
from select_service.planner.core.forecasting.traffic_forecast import TrafficForecast
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from tests.vectors.differences import Difference, differences
from tests.vectors.planner_given import given_model

Case = dict[str, Any]
DOCUMENT: dict[str, Any] = {
    "sizing": "mean",
    "stabilise": False,
    "robust": False,
    "load_guards": False,
    "gradual_reconcile": False,
    "lead": False,
    "forecast_quantile": 0.5,
}
NOT_OURS = ("pre_deployment_sweeping_mode",)


def play(case: Case) -> Iterator[Difference]:
    """Compare the targets, reasons and diagnostics of every tick."""
    given = {key: value for key, value in case["config"].items() if key not in NOT_OURS}
    settings = DeploymentSettings(**DOCUMENT, **given)
    interval = min(tick["at_s"] for tick in case["ticks"])
    deployment = _deployment(case, settings, case["ticks"][0]["at_s"] - interval)
    for at, tick in enumerate(case["ticks"]):
        effects = deployment.run_tick(_tick_input(tick, case["limits"], settings))
        expected = {key: tick[key] for key in _tick_results(effects, settings)}
        yield from differences(expected, _tick_results(effects, settings), f"ticks[{at}]")


def _deployment(case: Case, settings: DeploymentSettings, start_s: float) -> PlannedDeployment:
    forward = case["forward_seconds"]
    decode: Literal["aggregated", "decode"] = "aggregated" if settings.mode == "agg" else "decode"
    models = {
        Role.PREFILL: given_model("prefill", forward.get("prefill")),
        Role.DECODE: given_model(decode, forward.get(decode)),
    }
    interval_s = settings.throughput_adjustment_interval_seconds
    known = choose_predictors(settings, make_predictors(settings, interval_s))
    return PlannedDeployment(
        settings, models, TrafficForecast(settings, interval_s, known), start_s
    )


def _tick_input(tick: Case, limits: Case, settings: DeploymentSettings) -> TickInput:
    told = tick["input"]
    workers, traffic = told["workers"], told.get("traffic")
    replicas = {}
    for role in Role:
        ready = workers.get(f"ready_num_{role}")
        if ready is not None:
            replicas[role] = _replicas(workers, role, ready, limits)
    passes = {
        Role(role): tuple(_pass(one) for one in found)
        for role, found in (told.get("fpm") or {}).items()
    }
    used = traffic is not None and tick["used_traffic"]
    return TickInput(
        now_s=tick["at_s"],
        replicas=replicas,
        passes=passes or None,
        traffic=_traffic(traffic) if used else None,
    )


def _replicas(workers: Case, role: Role, ready: int, limits: Case) -> RoleReplicas:
    pending = any(workers.get(f"pending_num_{each}") for each in Role)
    return RoleReplicas(
        ready=ready,
        expected=workers.get(f"expected_num_{role}"),
        pending=workers.get(f"pending_num_{role}") or 0,
        in_progress=workers.get(f"{role}_scaling_in_progress") or False,
        startup_only=pending,
        limits=EngineLimits(**limits),
    )


def _pass(one: Case) -> ForwardPass:
    return ForwardPass(
        worker=one["worker"],
        rank=one.get("rank", 0),
        wall_s=one.get("wall", 0.0),
        prefill_requests=one.get("npre", 0),
        prefill_tokens=one.get("pre", 0),
        decode_requests=one.get("ndec", 0),
        decode_kv_tokens=one.get("dec", 0),
        queued_prefill_requests=one.get("qn", 0),
        queued_prefill_tokens=one.get("qp", 0),
        queued_decode_requests=one.get("qdn", 0),
        queued_decode_kv_tokens=one.get("qd", 0),
    )


def _traffic(told: Case) -> TrafficWindow:
    known = {key: None if value == "nan" else value for key, value in told.items()}
    return TrafficWindow(
        duration_s=told["duration_s"],
        requests=known["num_req"],
        isl=known["isl"],
        osl=known["osl"],
        kv_hit_rate=known.get("kv_hit_rate"),
        accept_length=known.get("accept_length"),
    )


def _tick_results(effects: TickEffects, settings: DeploymentSettings) -> Case:
    said = effects.diagnostics
    scale = effects.scale_to
    prefill, decode = said.roles.get(Role.PREFILL), said.roles.get(Role.DECODE)
    forecast = said.forecast
    estimated = [
        prefill.load.estimate_ms if prefill and prefill.load else None,
        decode.load.estimate_ms if decode and decode.load else None,
    ]
    rps = [
        at.sized.engine_rps if at is not None and at.sized is not None else None
        for at in (prefill, decode)
    ]
    if settings.mode == "agg" and decode is not None and decode.load is not None:
        estimated = [decode.load.estimate_ms, decode.load.itl_ms]
        rps = [rps[1], rps[1]]
    return {
        "scale_to": None if scale is None else [scale.get(role) for role in Role],
        "load_reason": said.load_reason,
        "throughput_reason": said.throughput_reason,
        "lower_bound": [at.floor if at else 1 for at in (prefill, decode)],
        "estimated_ms": estimated,
        "predicted": [None] * 4
        if forecast is None
        else [forecast.requests, forecast.isl, forecast.osl, forecast.kv_hit_rate],
        "engine_rps": rps,
    }
