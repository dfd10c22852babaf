"""Settings -> a deployment of the core, with its models and its forecaster."""

from collections.abc import Mapping
from pathlib import Path

from select_service.command_line import file_fault
from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.core.cluster import Cluster
from select_service.planner.core.inputs import Role
from select_service.planner.core.perf.capacity import Kind
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.settings import Settings, roles_of
from select_service.planner.core.tick import Deployment
from select_service.planner.forecasting import traffic_forecast, warm_up
from select_service.planner.profiles import read_profile
from select_service.request_trace import TraceError


def deployment_of(
    settings: Settings, start_s: float, *, warmup_trace: str | None = None
) -> Deployment:
    """Raises TraceError for a trace that cannot be read, and ProfileError."""
    interval_s = settings.throughput_adjustment_interval_seconds
    forecast = traffic_forecast(settings, interval_s)
    if warmup_trace is not None:
        try:
            warm_up(forecast, Path(warmup_trace), interval_s)
        except OSError as error:
            raise TraceError(f"warmup_trace: {file_fault(warmup_trace, error)}") from None
        except TraceError as error:
            raise TraceError(f"warmup_trace: {error}") from None
    return Deployment(settings, models_of(settings), forecast, start_s)


def models_of(settings: Settings) -> Mapping[Role, EngineModel]:
    """Of every role of the mode; nothing has been learnt yet.  Raises ProfileError."""
    decode: Kind = "aggregated" if settings.mode == "agg" else "decode"
    kinds: dict[Role, Kind] = {Role.PREFILL: "prefill", Role.DECODE: decode}
    directory = settings.profile_results_dir
    profile = None if directory is None else read_profile(directory)
    return {
        role: EngineModel(kinds[role], settings, profile=profile) for role in roles_of(settings)
    }


def cluster_of(config: PlannerConfig, start_s: float) -> Cluster:
    """All deployments of a file."""
    return Cluster(
        {each.name: _deployment(each, start_s) for each in config.deployments},
        {each.name: each.priority for each in config.deployments},
        config.cluster_gpus,
    )


def _deployment(config: DeploymentConfig, start_s: float) -> Deployment:
    return deployment_of(config, start_s, warmup_trace=config.warmup_trace)
