"""Which settings of a planner make no sense, or not together: one line for each fault."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from select_service.planner.config import (
    DeploymentConfig,
    KubernetesConnector,
    PlannerConfig,
    VirtualConnector,
)
from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Role,
)
from select_service.planner.core.settings import (
    Settings,
    gpus_of,
    intervals_of,
    min_endpoint_of,
    roles_of,
)
from select_service.spelling import shown
from select_service.urls import service_url_error

TICK_MS_MIN = 10
"""More often every selector would be asked all the time."""
_EXTRAS = {"arima": "statsmodels", "prophet": "prophet"}
"""Predictor, and name of the extra that brings it -> the package that it needs."""
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
_LEAST = {
    "kalman_min_points": 1,
    "prophet_window_size": 2,
    "max_num_fpm_samples": 5,
    "load_min_observations": 5,
    "max_throughput_scaling_replicas": 1,
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 1,
    "speculative_nextn": 0,
    "min_endpoint": 0,
    "prefill_min_endpoint": 0,
    "decode_min_endpoint": 0,
    "min_gpu_budget": -1,
    "max_gpu_budget": -1,
    "prefill_scale_up_queue_tokens": 0,
    "prefill_scale_down_queue_tokens": 0,
}
_WITHIN = {
    "attainment": (0.5, 0.9999),
    "forecast_quantile": (0.5, 0.99),
    "load_scaling_down_sensitivity": (1.0, 100.0),
    "decode_scale_down_kv_rate": (0.0, 1000.0),
    "down_cooldown_s": (0.0, 86_400.0),
}


def faults(config: PlannerConfig) -> Iterator[str]:
    for name in _repeated(each.name for each in config.deployments):
        yield f"deployments: the name `{shown(name)}` is there twice"
    for url in _repeated(each.rstrip("/") for each in config.selectors):
        yield f"selectors: `{shown(url)}` is there twice, and its requests would count twice"
    for scaled in _repeated(each for own in config.deployments for each in _scaled_by(own)):
        yield f"connector: {scaled} would be scaled by two at a time"
    for url in (*config.selectors, *(each.url for each in config.proposers)):
        if fault := service_url_error(url):
            yield f"`{shown(url)}`: {fault}"
    if (config.client_cert_file is None) != (config.client_key_file is None):
        yield "client_cert_file and client_key_file belong together"
    for each in config.deployments:
        for fault in _faults_of(each, has_selectors=bool(config.selectors)):
            yield f"deployment `{shown(each.name)}`: {fault}"
    least = sum(map(_least_gpus, config.deployments))
    if config.cluster_gpus is not None and least > config.cluster_gpus:
        yield (
            f"cluster_gpus: the least replicas of all deployments need {least} GPUs, "
            f"got {config.cluster_gpus}"
        )


def _repeated(names: Iterable[str]) -> list[str]:
    """Those that are there more than once, sorted."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _scaled_by(given: DeploymentConfig) -> Iterator[str]:
    """What the connector writes to, in words."""
    connector = given.connector
    if isinstance(connector, VirtualConnector) and connector.path is not None:
        yield f"the decision in `{shown(os.path.abspath(connector.path))}`"
    if not isinstance(connector, KubernetesConnector):
        return
    for target in (connector.prefill, connector.decode):
        if target is not None:
            parts = (target.kind, connector.namespace, target.name, target.component)
            yield " ".join(shown(each) for each in parts if each is not None)


def _faults_of(given: DeploymentConfig, *, has_selectors: bool) -> Iterator[str]:
    yield from settings_faults(given)
    yield from _faults_of_sources(given, has_selectors=has_selectors)
    if isinstance(given.connector, KubernetesConnector):
        yield from _faults_of_targets(given, given.connector)


def settings_faults(given: Settings) -> Iterator[str]:
    """Of what the core reads."""
    yield from _faults_of_numbers(given)
    if given.pending_stuck_secs < given.startup_s:
        yield (
            f"pending_stuck_secs: expected at least startup_s ({given.startup_s:g}), "
            f"got {given.pending_stuck_secs:g}"
        )
    yield from _faults_of_thresholds(given)
    yield from _faults_of_intervals(given)
    yield from _faults_of_budget(given)


def _faults_of_thresholds(given: Settings) -> Iterator[str]:
    """Pairs of which one must be below the other."""
    pairs = [("load_min_observations", "max_num_fpm_samples", True)]
    if given.optimization_target == "load":  # else replicas would come and go with every tick
        pairs.append(("decode_scale_down_kv_rate", "decode_scale_up_kv_rate", False))
        pairs.append(("prefill_scale_down_queue_tokens", "prefill_scale_up_queue_tokens", False))
    for field, above, may_equal in pairs:
        low, high = getattr(given, field), getattr(given, above)
        if low > high or (low == high and not may_equal):
            most = "at most" if may_equal else "less than"
            yield f"{field}: expected {most} {above} ({high:g}), got {low:g}"


def _faults_of_numbers(given: Settings) -> Iterator[str]:
    for field in given.__struct_fields__:
        value = getattr(given, field)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{field}: expected a finite number, got {value}"
    for field in _POSITIVE:
        if (value := getattr(given, field)) <= 0:
            yield f"{field}: expected more than 0, got {value:g}"
    for field, least in _LEAST.items():
        value = getattr(given, field)
        if value is not None and not least <= value <= REPLICAS_MAX:
            yield f"{field}: expected {least} to {REPLICAS_MAX}, got {value}"
    for field, (low, high) in _WITHIN.items():
        if not low <= (value := getattr(given, field)) <= high:
            yield f"{field}: expected {low:g} to {high:g}, got {value:g}"
    buckets = given.fpm_sample_bucket_size
    if buckets < 1 or math.isqrt(buckets) ** 2 != buckets:
        yield f"fpm_sample_bucket_size: expected a perfect square as 16, got {buckets}"


def _faults_of_intervals(given: Settings) -> Iterator[str]:
    intervals = intervals_of(given)
    if not intervals:
        yield "enable_throughput_scaling or enable_load_scaling must be true"
        return
    if len(intervals) == 2 and intervals[0] >= intervals[1]:
        yield (
            "throughput_adjustment_interval_seconds: expected more than "
            f"load_adjustment_interval_seconds ({intervals[0]:g}), got {intervals[1]:g}"
        )
    of_both = " and ".join(f"{each:g}" for each in intervals)
    of_all_ms = [round(each * 1000) for each in intervals]
    tick = given.scale_interval_seconds
    ms = math.gcd(*of_all_ms) if tick is None else round(tick * 1000)
    if ms <= 0 or any(each % ms for each in of_all_ms):
        got = 0.0 if tick is None else tick
        yield f"scale_interval_seconds: expected a divisor of {of_both}, got {got:g}"
    elif ms < TICK_MS_MIN:
        yield f"scale_interval_seconds: a tick of {of_both} would come every {ms} ms"


def _faults_of_budget(given: Settings) -> Iterator[str]:
    low, high = given.min_gpu_budget, given.max_gpu_budget
    if high < 0:
        return
    if low > high:
        yield f"min_gpu_budget: expected at most max_gpu_budget ({high}), got {low}"
    if (least := _least_gpus(given)) > high:
        yield f"max_gpu_budget: the least replicas need {least} GPUs, got {high}"


def _least_gpus(given: Settings) -> int:
    return sum(min_endpoint_of(given, each) * gpus_of(given, each) for each in roles_of(given))


def _faults_of_sources(given: DeploymentConfig, *, has_selectors: bool) -> Iterator[str]:
    package = _EXTRAS.get(given.load_predictor)
    if package is not None and find_spec(package) is None:
        extra = given.load_predictor
        yield f"load_predictor {extra} needs: pip install 'select-service[{extra}]'"
    if given.prometheus is None:
        if not has_selectors:
            yield "nothing to observe: give `selectors`, or `prometheus` to the deployment"
    elif fault := service_url_error(given.prometheus.url):
        yield f"prometheus.url `{shown(given.prometheus.url)}`: {fault}"


def _faults_of_targets(given: DeploymentConfig, connector: KubernetesConnector) -> Iterator[str]:
    wanted = roles_of(given)
    for role in Role:
        target = connector.prefill if role is Role.PREFILL else connector.decode
        if (target is None) is (role in wanted):
            expected = "expected a target" if role in wanted else "no target is expected"
            yield f"connector.{role}: {expected} in mode {given.mode}"
    if find_spec("kubernetes_asyncio") is None:
        yield "connector kubernetes needs: pip install 'select-service[kubernetes]'"
