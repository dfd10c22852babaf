"""Builders of tick inputs, and of deployments with a given performance model."""

from collections.abc import Sequence
from typing import Any

from select_service.planner.core.forecast_contracts import Forecaster
from select_service.planner.core.settings import DeploymentSettings, scaled_roles
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from tests.vectors.planner_given import LastValue, given_model
from tests.vectors.planner_ticks import DOCUMENT

LIMITS = EngineLimits(
    max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000, context_length=32_768
)
FORWARD = {
    "prefill": (0.01, 5e-05, 0.0, 0.0),
    "decode": (0.006, 0.0, 3e-08, 0.0001),
    "aggregated": (0.008, 5e-05, 3e-08, 0.0001),
}

HOT, WARM, IDLE = "hot", "warm", "idle"
PREFILLS = {
    HOT: {"prefill_requests": 2, "prefill_tokens": 2048, "queued_prefill_tokens": 30_000},
    WARM: {"prefill_requests": 1, "prefill_tokens": 1000, "queued_prefill_tokens": 6_000},
    IDLE: {"prefill_requests": 1, "prefill_tokens": 200, "queued_prefill_tokens": 0},
}
DECODES = {
    HOT: {"decode_requests": 250, "decode_kv_tokens": 900_000},
    WARM: {"decode_requests": 60, "decode_kv_tokens": 200_000},
    IDLE: {"decode_requests": 4, "decode_kv_tokens": 8_000},
}


def passes(role: Role, states: Sequence[str]) -> tuple[ForwardPass, ...]:
    """Return a pass of an engine with one rank for each state."""
    table = PREFILLS if role is Role.PREFILL else DECODES
    return tuple(
        ForwardPass(worker=f"w{at}", wall_s=0.05, **table[state]) for at, state in enumerate(states)
    )


def traffic(requests: float | None, seconds: float = 60.0, **more: Any) -> TrafficWindow:
    """Return traffic with prompts of 3,000 tokens and answers of 150."""
    shape = {} if not requests else {"isl": 3000.0, "osl": 150.0}
    return TrafficWindow(duration_s=seconds, requests=requests, **{**shape, **more})


def replicas(ready: int, pending: int = 0, **more: Any) -> RoleReplicas:
    """Return replica counts in which all pending replicas are known to be starting."""
    return RoleReplicas(
        ready=ready,
        expected=ready + pending,
        pending=pending,
        startup_only=pending > 0,
        limits=LIMITS,
        **more,
    )


def a_deployment(
    *, document: bool = False, forecaster: Forecaster | None = None, **given: Any
) -> PlannedDeployment:
    """Return a deployment from time 0, with loops of 60 and 5 s and ticks every 5 s."""
    base = dict(DOCUMENT) if document else {}
    base |= {
        "max_gpu_budget": 16,
        "itl_ms": 20.0,
        "throughput_adjustment_interval_seconds": 60.0,
        "scale_interval_seconds": 5.0,
    }
    settings = DeploymentSettings(**{**base, **given})
    decode = "aggregated" if settings.mode == "agg" else "decode"
    models = {
        Role.PREFILL: given_model("prefill", FORWARD["prefill"]),
        Role.DECODE: given_model(decode, FORWARD[decode]),
    }
    chosen = {role: models[role] for role in scaled_roles(settings)}
    return PlannedDeployment(settings, chosen, forecaster or LastValue(), 0.0)


def tick_input(
    now_s: float,
    counts: dict[Role, RoleReplicas],
    *,
    of: TrafficWindow | None = None,
    engines: dict[Role, tuple[ForwardPass, ...]] | None = None,
) -> TickInput:
    """Return the input of a tick."""
    return TickInput(now_s=now_s, replicas=counts, traffic=of, passes=engines)


def both(prefill: RoleReplicas | int, decode: RoleReplicas | int) -> dict[Role, RoleReplicas]:
    """Return the replicas of a disaggregated deployment."""
    given = {Role.PREFILL: prefill, Role.DECODE: decode}
    return {role: replicas(each) if isinstance(each, int) else each for role, each in given.items()}
