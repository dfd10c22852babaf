"""The settings of one deployment, as the core reads them; `planner.config` judges them."""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.inputs import Role

Mode = Literal["disagg", "prefill", "decode", "agg"]
Target = Literal["sla", "throughput", "latency", "load"]
Predictor = Literal["auto", "constant", "kalman", "arima", "prophet", "seasonal"]

GPU_FIELDS: Final = {Role.PREFILL: "prefill_engine_num_gpu", Role.DECODE: "decode_engine_num_gpu"}


class Settings(Struct, frozen=True, kw_only=True):
    """Defaults are the planner's; `document()` in `planner.config` gives those of the reference."""

    mode: Mode = "disagg"
    optimization_target: Target = "sla"
    ttft_ms: float = 500.0
    itl_ms: float = 50.0
    attainment: float = 0.95
    enable_throughput_scaling: bool = True
    enable_load_scaling: bool = False
    throughput_adjustment_interval_seconds: float = 180.0
    load_adjustment_interval_seconds: float = 5.0
    scale_interval_seconds: float | None = None

    load_predictor: Predictor = "auto"
    load_predictor_log1p: bool = False
    kalman_q_level: float = 1.0
    kalman_q_trend: float = 0.1
    kalman_r: float = 10.0
    kalman_min_points: int = 5
    prophet_window_size: int = 50
    forecast_quantile: float = 0.8
    lead: bool = True
    """Forecast for the end of a start-up, not for the next window."""

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
    """Hot engine, missing data, medians of three ticks, queue of the selector (spec: OURS)."""
    step: Literal["single", "proportional"] = "single"

    sizing: Literal["queue", "mean"] = "queue"
    stabilise: bool = True
    down_window_s: float = 300.0
    down_cooldown_s: float = 60.0
    startup_s: float = 120.0
    """How long a replica starts, until that has been measured."""

    min_endpoint: int = 1
    prefill_min_endpoint: int | None = None
    decode_min_endpoint: int | None = None
    min_gpu_budget: int = -1
    max_gpu_budget: int = 8
    gradual_reconcile: bool = True
    """A lowered budget is reached one replica per role and tick."""
    max_throughput_scaling_replicas: int = 8
    prefill_engine_num_gpu: int | None = None
    decode_engine_num_gpu: int | None = None
    """None: what the platform says of a replica, and 1 where it says nothing."""
    speculative_nextn: int = 0
    scaling_max_wait: float = 1800.0
    pending_stuck_secs: float = 300.0
    advisory: bool = False


_Settings = TypeVar("_Settings", bound=Settings)


def roles_of(settings: Settings) -> tuple[Role, ...]:
    """What is scaled in this mode; engines of `agg` count as decode."""
    return {
        "disagg": (Role.PREFILL, Role.DECODE),
        "prefill": (Role.PREFILL,),
        "decode": (Role.DECODE,),
        "agg": (Role.DECODE,),
    }[settings.mode]


def min_endpoint_of(settings: Settings, role: Role) -> int:
    """The least replicas of a role."""
    is_prefill = role is Role.PREFILL
    own = settings.prefill_min_endpoint if is_prefill else settings.decode_min_endpoint
    return settings.min_endpoint if own is None else own


def gpus_of(settings: Settings, role: Role) -> int:
    """GPUs of one replica, 1 where nobody has said it."""
    own: int | None = getattr(settings, GPU_FIELDS[role])
    return 1 if own is None else own


def with_gpus(settings: _Settings, said: Mapping[Role, int]) -> _Settings:
    """With what the platform says of the GPUs of replicas, where no setting says it."""
    given = {
        GPU_FIELDS[role]: count
        for role, count in said.items()
        if getattr(settings, GPU_FIELDS[role]) is None
    }
    return replace(settings, **given) if given else settings


def intervals_of(settings: Settings) -> list[float]:
    """Of the loops that are on, in seconds."""
    easy = settings.optimization_target != "sla"
    result = []
    if settings.enable_load_scaling or easy:
        result.append(settings.load_adjustment_interval_seconds)
    if settings.enable_throughput_scaling and not easy:
        result.append(settings.throughput_adjustment_interval_seconds)
    return result
