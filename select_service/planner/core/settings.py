"""Settings of a deployment, as read by the core; validated elsewhere."""

from collections.abc import Mapping
from math import ceil
from typing import Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.tick_input import Role

NEVER_S: Final = 1e9
"""Value of `replace_after_s` for lost replicas that are never replaced in their place, seconds."""
DeploymentMode = Literal["disagg", "prefill", "decode", "agg"]
OptimizationTarget = Literal["sla", "throughput", "latency", "load"]
Predictor = Literal["auto", "constant", "kalman", "arima", "prophet", "seasonal"]

GPU_FIELDS: Final = {Role.PREFILL: "prefill_engine_num_gpu", Role.DECODE: "decode_engine_num_gpu"}


class DeploymentSettings(Struct, frozen=True, kw_only=True):
    """Settings with the planner's defaults; the document profile has those of Dynamo's planner."""

    mode: DeploymentMode = "disagg"
    optimization_target: OptimizationTarget = "sla"
    ttft_ms: float = 500.0
    itl_ms: float = 50.0
    attainment: float = 0.95
    enable_throughput_scaling: bool = True
    enable_load_scaling: bool = False
    throughput_adjustment_interval_seconds: float = 180.0
    load_adjustment_interval_seconds: float = 5.0
    scale_interval_seconds: float | None = None
    adaptive_interval: bool = False
    """Whether demand is compared with the forecast as often as replicas can start."""

    load_predictor: Predictor = "auto"
    load_predictor_log1p: bool = False
    kalman_q_level: float = 1.0
    kalman_q_trend: float = 0.1
    kalman_r: float = 10.0
    kalman_min_points: int = 5
    prophet_window_size: int = 50
    forecast_quantile: float = 0.8
    lead: bool = True
    """Whether forecasts are for the end of a start-up, not for the next window."""

    max_num_fpm_samples: int = 64
    fpm_sample_bucket_size: int = 16
    load_min_observations: int = 5
    robust: bool = True
    profile_results_dir: str | None = None

    load_scaling_down_sensitivity: float = 80.0
    prefill_scale_up_queue_tokens: int = 5000
    prefill_scale_down_queue_tokens: int = 500
    decode_scale_up_kv_rate: float = 80.0
    decode_scale_down_kv_rate: float = 30.0
    load_guards: bool = True
    """Whether the guards of the load loop are on: hot engine, missing data, medians of three ticks,
    queue at the selector (spec: OURS).
    """
    step: Literal["single", "proportional"] = "single"

    sizing: Literal["queue", "mean"] = "queue"
    stabilise: bool = True
    down_window_s: float = 300.0
    down_cooldown_s: float = 60.0
    startup_s: float = 120.0
    """Start-up time of a replica until measured, seconds."""

    min_endpoint: int = 1
    prefill_min_endpoint: int | None = None
    decode_min_endpoint: int | None = None
    min_gpu_budget: int = -1
    max_gpu_budget: int = 8
    gradual_reconcile: bool = True
    """Whether a lowered budget is reached one replica a role and tick."""
    max_throughput_scaling_replicas: int = 8
    prefill_engine_num_gpu: int | None = None
    decode_engine_num_gpu: int | None = None
    """GPUs of a replica; None means the number reported by the platform, or 1 without a report."""
    speculative_nextn: int = 0
    scaling_max_wait: float = 1800.0
    pending_stuck_secs: float = 300.0
    advisory: bool = False
    replace_lost: bool = True
    """Whether replicas that health has taken out count as lost and are replaced."""
    replace_after_s: float = 600.0
    """Time out of rotation after which a lost replica itself is replaced, seconds."""
    spares_part: float = 0.05
    """Part of the needed replicas that is added as hot spares, rounded up."""
    spares_from: int = 20
    """Needed replicas of a role from which hot spares are added."""


_Settings = TypeVar("_Settings", bound=DeploymentSettings)


def scaled_roles(settings: DeploymentSettings) -> tuple[Role, ...]:
    """Return the scaled roles of the mode; engines of `agg` count as decode."""
    return {
        "disagg": (Role.PREFILL, Role.DECODE),
        "prefill": (Role.PREFILL,),
        "decode": (Role.DECODE,),
        "agg": (Role.DECODE,),
    }[settings.mode]


def minimum_replicas(settings: DeploymentSettings, role: Role) -> int:
    """Return the minimum number of replicas of a role."""
    own: int | None = getattr(settings, f"{role}_min_endpoint")
    return settings.min_endpoint if own is None else own


def replica_gpus(settings: DeploymentSettings, role: Role) -> int:
    """Return the GPUs of a replica; 1 if neither set nor reported."""
    own: int | None = getattr(settings, GPU_FIELDS[role])
    return 1 if own is None else own


def with_reported_gpus(settings: _Settings, reported: Mapping[Role, int]) -> _Settings:
    """Return the settings with the reported GPUs of replicas, where no setting gives the number."""
    given = {
        GPU_FIELDS[role]: count
        for role, count in reported.items()
        if getattr(settings, GPU_FIELDS[role]) is None
    }
    return replace(settings, **given) if given else settings


def with_reserved_gpus(settings: DeploymentSettings, gpus: int) -> DeploymentSettings:
    """Return the settings with a GPU budget that is smaller by so many GPUs."""
    if not gpus:
        return settings
    low, high = settings.min_gpu_budget, settings.max_gpu_budget
    return replace(
        settings,
        min_gpu_budget=low if low < 0 else max(0, low - gpus),
        max_gpu_budget=high if high < 0 else max(0, high - gpus),
    )


def wanted_spares(settings: DeploymentSettings, needed: int) -> int:
    """Return the number of hot spares beside the needed replicas of a role."""
    return ceil(settings.spares_part * needed) if needed >= settings.spares_from else 0


def is_load_enabled(settings: DeploymentSettings) -> bool:
    """Return whether the load loop proposes; in easy modes always."""
    return settings.enable_load_scaling or settings.optimization_target != "sla"


def is_throughput_enabled(settings: DeploymentSettings) -> bool:
    """Return whether the throughput loop runs."""
    return settings.enable_throughput_scaling and settings.optimization_target == "sla"


def loop_intervals(settings: DeploymentSettings) -> list[float]:
    """Return the intervals of the enabled loops, seconds."""
    result = []
    if is_load_enabled(settings):
        result.append(settings.load_adjustment_interval_seconds)
    if is_throughput_enabled(settings):
        result.append(settings.throughput_adjustment_interval_seconds)
    return result
