"""Assembly of a deployment of the core, with models and forecaster."""

from collections.abc import Mapping
from pathlib import Path

from select_service.base.command_line import file_error_text
from select_service.files.request_trace import TraceError
from select_service.planner.config import PlannerConfig
from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.performance.engine_capacity import EngineKind
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.settings import DeploymentSettings, scaled_roles
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import Role
from select_service.planner.forecast_setup import build_traffic_forecast, warm_up_forecast
from select_service.planner.profile_files import read_profile


def build_deployment(
    settings: DeploymentSettings, start_s: float, *, warmup_trace: str | None = None
) -> PlannedDeployment:
    """Build a deployment. Raises TraceError for an unreadable trace, and ProfileFileError."""
    interval_s = settings.throughput_adjustment_interval_seconds
    forecast = build_traffic_forecast(settings, interval_s)
    if warmup_trace is not None:
        try:
            warm_up_forecast(forecast, Path(warmup_trace), interval_s)
        except OSError as error:
            raise TraceError(f"warmup_trace: {file_error_text(warmup_trace, error)}") from None
        except TraceError as error:
            raise TraceError(f"warmup_trace: {error}") from None
    return PlannedDeployment(settings, build_models(settings), forecast, start_s)


def build_models(settings: DeploymentSettings) -> Mapping[Role, EngineModel]:
    """Build an empty model for every role of the mode. Raises ProfileFileError."""
    decode: EngineKind = "aggregated" if settings.mode == "agg" else "decode"
    kinds: dict[Role, EngineKind] = {Role.PREFILL: "prefill", Role.DECODE: decode}
    directory = settings.profile_results_dir
    profile = None if directory is None else read_profile(directory)
    return {
        role: EngineModel(kinds[role], settings, profile=profile) for role in scaled_roles(settings)
    }


def build_cluster(config: PlannerConfig, start_s: float) -> ClusterPlanner:
    """Build the cluster of all deployments of a file."""
    return ClusterPlanner(
        {
            each.name: build_deployment(each, start_s, warmup_trace=each.warmup_trace)
            for each in config.deployments
        },
        {each.name: each.priority for each in config.deployments},
        config.cluster_gpus,
    )
