"""Validation of a planner's settings, alone and together: one line for each fault."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from select_service.base.suggestions import printable_name
from select_service.net.urls import service_url_error
from select_service.planner.config import (
    DeploymentConfig,
    KubernetesConnectorConfig,
    PlannerConfig,
    VirtualConnectorConfig,
)
from select_service.planner.core.settings import (
    NEVER_S,
    DeploymentSettings,
    loop_intervals,
    minimum_replicas,
    replica_gpus,
    scaled_roles,
)
from select_service.planner.core.tick_input import REPLICAS_MAX, Role
from select_service.planner.graph_targets import PARENT_GRAPH_VARIABLE, kubernetes_targets
from select_service.planner.plugins.plugin_faults import find_plugin_faults

TICK_MS_MIN = 10
"""Minimum interval of ticks: a shorter one would poll the selectors permanently."""
_EXTRAS = {"arima": "statsmodels", "prophet": "prophet"}
"""Map from predictor, which is also the extra's name, to the package that it needs."""
_POSITIVE = (
    "ttft_ms",
    "itl_ms",
    "throughput_adjustment_interval_seconds",
    "load_adjustment_interval_seconds",
    "kalman_q_level",
    "kalman_q_trend",
    "kalman_r",
    "down_window_s",
    "startup_s",
    "scaling_max_wait",
    "pending_stuck_secs",
    "decode_scale_up_kv_rate",
)
_MINIMUMS = {
    "kalman_min_points": 1,
    "prophet_window_size": 2,
    "max_num_fpm_samples": 5,
    "load_min_observations": 5,
    "max_throughput_scaling_replicas": 1,
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 1,
    "speculative_nextn": 0,
    "spares_from": 1,
    "min_endpoint": 0,
    "prefill_min_endpoint": 0,
    "decode_min_endpoint": 0,
    "min_gpu_budget": -1,
    "max_gpu_budget": -1,
    "prefill_scale_up_queue_tokens": 0,
    "prefill_scale_down_queue_tokens": 0,
}
_RANGES = {
    "attainment": (0.5, 0.9999),
    "forecast_quantile": (0.5, 0.99),
    "load_scaling_down_sensitivity": (1.0, 100.0),
    "decode_scale_down_kv_rate": (0.0, 1000.0),
    "down_cooldown_s": (0.0, 86_400.0),
    "replace_after_s": (0.0, NEVER_S),
    "spares_part": (0.0, 1.0),
}


def find_config_faults(config: PlannerConfig) -> Iterator[str]:
    """Yield the faults of a configuration."""
    for name in _find_repeated(each.name for each in config.deployments):
        yield f"deployments: name `{printable_name(name)}` is given twice: make names unique"
    # A selector counted twice would double the observed traffic, and with it the replicas.
    for url in _find_repeated(each.rstrip("/") for each in config.selectors):
        yield (
            f"selectors: `{printable_name(url)}` is given twice, so its requests "
            "would count twice: "
            "remove one"
        )
    for scaled in _find_repeated(
        each for own in config.deployments for each in _scaled_objects(own)
    ):
        yield f"connector: {scaled} is the target of two roles or deployments: give each its own"
    for url in config.selectors:
        if fault := service_url_error(url):
            yield f"`{printable_name(url)}`: {fault}"
    yield from find_plugin_faults(config)
    if (config.client_cert_file is None) != (config.client_key_file is None):
        yield "client_cert_file and client_key_file must be given together"
    for each in config.deployments:
        for fault in _deployment_faults(each, has_selectors=bool(config.selectors)):
            yield f"deployment `{printable_name(each.name)}`: {fault}"
    least = sum(map(_minimum_gpus, config.deployments))
    if config.cluster_gpus is not None and least > config.cluster_gpus:
        yield (
            f"cluster_gpus: the minimum replicas of all deployments need {least} GPUs, "
            f"got {config.cluster_gpus}"
        )


def _find_repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _scaled_objects(deployment: DeploymentConfig) -> Iterator[str]:
    """Yield descriptions of the objects that the connector writes to."""
    connector = deployment.connector
    if isinstance(connector, VirtualConnectorConfig) and connector.path is not None:
        yield f"the decision in `{printable_name(os.path.abspath(connector.path))}`"
    if not isinstance(connector, KubernetesConnectorConfig):
        return
    for role, target in kubernetes_targets(connector).items():
        if role not in scaled_roles(deployment):
            continue
        of_role = None
        if target.kind == "DynamoGraphDeployment" and target.component is None:
            of_role = f"component of role {role}"
        parts = (target.kind, connector.namespace, target.name, target.component, of_role)
        yield " ".join(printable_name(each) for each in parts if each is not None)


def _deployment_faults(deployment: DeploymentConfig, *, has_selectors: bool) -> Iterator[str]:
    """Yield the faults of a deployment."""
    yield from find_settings_faults(deployment)
    yield from _source_faults(deployment, has_selectors=has_selectors)
    if isinstance(deployment.connector, KubernetesConnectorConfig):
        yield from _target_faults(deployment, deployment.connector)


def find_settings_faults(settings: DeploymentSettings) -> Iterator[str]:
    """Yield the faults of the core's settings."""
    yield from _number_faults(settings)
    if settings.pending_stuck_secs < settings.startup_s:
        yield (
            f"pending_stuck_secs: expected at least startup_s ({settings.startup_s:g}), "
            f"got {settings.pending_stuck_secs:g}"
        )
    yield from _threshold_faults(settings)
    yield from _interval_faults(settings)
    yield from _budget_faults(settings)


def _threshold_faults(settings: DeploymentSettings) -> Iterator[str]:
    """Yield the faults of pairs in which the first value must be below the second."""
    pairs = [("load_min_observations", "max_num_fpm_samples", True)]
    if settings.optimization_target == "load":  # overlapping thresholds would oscillate
        pairs.append(("decode_scale_down_kv_rate", "decode_scale_up_kv_rate", False))
        pairs.append(("prefill_scale_down_queue_tokens", "prefill_scale_up_queue_tokens", False))
    for field, above, may_equal in pairs:
        low, high = getattr(settings, field), getattr(settings, above)
        if low > high or (low == high and not may_equal):
            most = "at most" if may_equal else "less than"
            yield f"{field}: expected {most} {above} ({high:g}), got {low:g}"


def _number_faults(settings: DeploymentSettings) -> Iterator[str]:
    """Yield numbers outside of their ranges."""
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{field}: expected a finite number, got {value}"
    for field in _POSITIVE:
        if (value := getattr(settings, field)) <= 0:
            yield f"{field}: expected more than 0, got {value:g}"
    for field, least in _MINIMUMS.items():
        value = getattr(settings, field)
        if value is not None and not least <= value <= REPLICAS_MAX:
            yield f"{field}: expected {least} to {REPLICAS_MAX}, got {value}"
    for field, (low, high) in _RANGES.items():
        if not low <= (value := getattr(settings, field)) <= high:
            yield f"{field}: expected {low:g} to {high:g}, got {value:g}"
    buckets = settings.fpm_sample_bucket_size
    if buckets < 1 or math.isqrt(buckets) ** 2 != buckets:
        yield f"fpm_sample_bucket_size: expected a perfect square such as 16, got {buckets}"


def _interval_faults(settings: DeploymentSettings) -> Iterator[str]:
    """Yield the faults of the loops' intervals."""
    intervals = loop_intervals(settings)
    if not intervals:
        yield "both loops are off: set enable_throughput_scaling or enable_load_scaling to true"
        return
    if len(intervals) == 2 and intervals[0] >= intervals[1]:
        yield (
            "throughput_adjustment_interval_seconds: expected more than "
            f"load_adjustment_interval_seconds ({intervals[0]:g}), got {intervals[1]:g}"
        )
    of_both = " and ".join(f"{each:g}" for each in intervals)
    of_all_ms = [round(each * 1000) for each in intervals]
    tick = settings.scale_interval_seconds
    # Integers of milliseconds: a divisor of floats would depend on rounding.
    ms = math.gcd(*of_all_ms) if tick is None else round(tick * 1000)
    if ms <= 0 or any(each % ms for each in of_all_ms):
        got = 0.0 if tick is None else tick
        yield f"scale_interval_seconds: expected a divisor of {of_both}, got {got:g}"
    elif ms < TICK_MS_MIN:
        yield (
            f"scale_interval_seconds: intervals {of_both} need a tick every {ms} ms: choose "
            "intervals with a larger divisor"
        )


def _budget_faults(settings: DeploymentSettings) -> Iterator[str]:
    """Yield the faults of the GPU budget."""
    low, high = settings.min_gpu_budget, settings.max_gpu_budget
    if high < 0:
        return
    if low > high:
        yield f"min_gpu_budget: expected at most max_gpu_budget ({high}), got {low}"
    if (least := _minimum_gpus(settings)) > high:
        yield f"max_gpu_budget: the minimum replicas need {least} GPUs, got {high}"


def _minimum_gpus(settings: DeploymentSettings) -> int:
    """Return the GPUs of the minimum replicas."""
    return sum(
        minimum_replicas(settings, each) * replica_gpus(settings, each)
        for each in scaled_roles(settings)
    )


def _source_faults(deployment: DeploymentConfig, *, has_selectors: bool) -> Iterator[str]:
    """Yield missing libraries and sources."""
    package = _EXTRAS.get(deployment.load_predictor)
    if package is not None and find_spec(package) is None:
        extra = deployment.load_predictor
        yield f"load_predictor {extra} needs: pip install 'select-service[{extra}]'"
    if deployment.prometheus is None:
        if not has_selectors:
            yield "no source of traffic: give `selectors`, or `prometheus` of the deployment"
    elif fault := service_url_error(deployment.prometheus.url):
        yield f"prometheus.url `{printable_name(deployment.prometheus.url)}`: {fault}"


def _target_faults(
    deployment: DeploymentConfig, connector: KubernetesConnectorConfig
) -> Iterator[str]:
    """Yield missing and surplus targets of a Kubernetes connector."""
    wanted, found = scaled_roles(deployment), kubernetes_targets(connector)
    for role in Role:
        if role in wanted and role not in found:
            yield (
                f"connector.{role}: expected a target in mode {deployment.mode}, or `graph` with "
                f"the name of a DynamoGraphDeployment (default: {PARENT_GRAPH_VARIABLE})"
            )
        given = connector.prefill if role is Role.PREFILL else connector.decode
        if role not in wanted and given is not None:
            yield f"connector.{role}: no target is expected in mode {deployment.mode}"
    if connector.graph is not None and (connector.prefill or connector.decode):
        yield "connector.graph: expected either the graph or targets of roles, not both"
    if find_spec("kubernetes_asyncio") is None:
        yield "connector kubernetes needs: pip install 'select-service[kubernetes]'"
