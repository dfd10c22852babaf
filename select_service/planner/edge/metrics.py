"""Statuses -> Prometheus, as of the scrape; maybe in another thread than they are told.

Names that the reference planner has are its names, with the label `deployment` besides; the states
of its two enumerations stand in its order, and ours after them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from select_service.planner.core.diagnostics import RoleDiagnostics
from select_service.planner.core.inputs import ForwardPass, Role
from select_service.planner.core.reasons import Reason
from select_service.planner.status import DeploymentStatus, Statuses

PREFIX = "dynamo_planner_"
ENGINES_MAX = 1024
"""Ranks with series of their own, of all deployments together."""

LOAD_STATES: Final = (
    "unset",
    "disabled",
    "no_fpm_data",
    "scaling_in_progress",
    "worker_count_mismatch",
    "insufficient_data",
    "no_change",
    "scale_up",
    "scale_down",
    "scale_down_capped_by_throughput",
    "scale_down_refused_consolidation",
    "override_by_user_plugin",
    "reconcile_clamped_to_floor",
    "reconcile_clamped_to_ceiling",
    "held_over",
    "rejected_by_plugin",
    "gpu_budget_guard_hold",
    "gpu_budget_reconcile",
    "hot_engine",
    "imbalance",
    "selector_queue",
    "silent_engines",
    "no_forecast_yet",
    "startup_down",
)
THROUGHPUT_STATES: Final = (
    "unset",
    "disabled",
    "no_traffic_data",
    "predict_failed",
    "model_not_ready",
    "set_lower_bound",
    "scale",
    "override_by_user_plugin",
    "held_over",
    "circuit_open",
    "rejected_by_plugin",
    "gpu_budget_guard_hold",
    "no_change",
    "gpu_budget_reconcile",
    "partner_not_ready",
    "slo_out_of_reach",
    "idle",
)

Read = Callable[[DeploymentStatus], float | None]
Many = Callable[[DeploymentStatus], Mapping[str, float | None]]


class _Gauge(NamedTuple):
    """One series of each deployment, but for those of which it reads None."""

    name: str
    help: str
    read: Read


class _Labelled(NamedTuple):
    """Series by one more label. counts: it only grows"""

    name: str
    help: str
    label: str
    read: Many
    counts: bool = False


def _latest(column: str) -> Read:
    return lambda status: status.latest.get(column)


def _ready(role: Role) -> Read:
    return _latest(f"{role.value}_ready")


def _needed(role: Role) -> Read:
    return lambda status: None if role not in status.sized else status.sized[role].replicas


def _rps(role: Role) -> Read:
    return lambda status: None if role not in status.sized else status.sized[role].engine_rps


def _stale(status: DeploymentStatus) -> float | None:
    said = status.diagnostics
    return None if said is None else float(said.stale)


def _duration_s(status: DeploymentStatus) -> float | None:
    """A mean request, from the means."""
    traffic = status.traffic
    if traffic is None or traffic.ttft_s is None or traffic.itl_s is None or traffic.osl is None:
        return None
    return traffic.ttft_s + max(0.0, traffic.osl - 1.0) * traffic.itl_s


GAUGES: Final[tuple[_Gauge, ...]] = (
    _Gauge("num_prefill_replicas", "Prefill replicas that are ready.", _ready(Role.PREFILL)),
    _Gauge("num_decode_replicas", "Decode replicas that are ready.", _ready(Role.DECODE)),
    _Gauge(
        "observed_ttft_ms", "Mean time to first token as reported.", _latest("ttft_observed_ms")
    ),
    _Gauge("observed_itl_ms", "Mean time between tokens as reported.", _latest("itl_observed_ms")),
    _Gauge("observed_requests_per_second", "Requests of the last window.", _latest("requests_s")),
    _Gauge(
        "observed_request_duration_seconds",
        "A mean request, from the reported means.",
        _duration_s,
    ),
    _Gauge(
        "observed_input_sequence_tokens",
        "Mean tokens of a prompt.",
        lambda status: None if status.traffic is None else status.traffic.isl,
    ),
    _Gauge(
        "observed_output_sequence_tokens",
        "Mean tokens of an answer.",
        lambda status: None if status.traffic is None else status.traffic.osl,
    ),
    _Gauge("predicted_requests_per_second", "Forecast requests.", _latest("forecast_s")),
    _Gauge(
        "predicted_input_sequence_tokens",
        "Forecast tokens of a prompt.",
        lambda status: None if status.forecast is None else status.forecast.isl,
    ),
    _Gauge(
        "predicted_output_sequence_tokens",
        "Forecast tokens of an answer.",
        lambda status: None if status.forecast is None else status.forecast.osl,
    ),
    _Gauge(
        "predicted_num_prefill_replicas",
        "Prefill replicas that the forecast needs.",
        _needed(Role.PREFILL),
    ),
    _Gauge(
        "predicted_num_decode_replicas",
        "Decode replicas that the forecast needs.",
        _needed(Role.DECODE),
    ),
    _Gauge(
        "gpu_hours",
        "GPU hours of ready and starting replicas since the start.",
        lambda status: status.gpu_hours,
    ),
    _Gauge("sla_target_ttft_ms", "The target.", lambda status: status.settings.ttft_ms),
    _Gauge("sla_target_itl_ms", "The target.", lambda status: status.settings.itl_ms),
    _Gauge(
        "estimated_ttft_ms",
        "Time to first token as the model estimates it.",
        _latest("ttft_estimated_ms"),
    ),
    _Gauge(
        "estimated_itl_ms",
        "Time between tokens as the model estimates it.",
        _latest("itl_estimated_ms"),
    ),
    _Gauge(
        "engine_prefill_capacity_requests_per_second",
        "Of one prefill engine that is always busy.",
        _rps(Role.PREFILL),
    ),
    _Gauge(
        "engine_decode_capacity_requests_per_second",
        "Of one decode engine that is always busy.",
        _rps(Role.DECODE),
    ),
    _Gauge(
        "forecast_error",
        "Mean error of the last forecasts, as a part.",
        lambda status: None if status.forecast is None else status.forecast.error,
    ),
    _Gauge(
        "observation_stale",
        "1: nothing was observed for three throughput intervals.",
        _stale,
    ),
    _Gauge(
        "slo_out_of_reach",
        "1: no number of replicas keeps the target for this traffic.",
        lambda status: float(status.slo_out_of_reach),
    ),
    _Gauge(
        "attainment_target",
        "Part of the requests that shall keep the targets.",
        lambda status: status.settings.attainment,
    ),
)


def _roles(status: DeploymentStatus) -> Mapping[Role, RoleDiagnostics]:
    """Of the last tick."""
    said = status.diagnostics
    return {} if said is None else said.roles


def _attainment(status: DeploymentStatus) -> Mapping[str, float | None]:
    return {slo: status.latest.get(f"{slo}_met") for slo in ("ttft", "itl")}


def _pending(status: DeploymentStatus) -> Mapping[str, float | None]:
    roles = _roles(status)
    return {role.value: one.pending_s for role, one in roles.items()}


def _startup(status: DeploymentStatus) -> Mapping[str, float | None]:
    roles = _roles(status)
    return {role.value: one.startup_s for role, one in roles.items()}


def _reversals(status: DeploymentStatus) -> Mapping[str, float | None]:
    roles = _roles(status)
    return {role.value: float(status.reversals[role]) for role in roles}


def _decisions(status: DeploymentStatus) -> Mapping[str, float | None]:
    """All from the start, so that the first of its kind is an increase."""
    return {reason.value: float(status.by_reason[reason]) for reason in Reason}


LABELLED: Final[tuple[_Labelled, ...]] = (
    _Labelled("attainment", "Part of the requests of a window that kept it.", "slo", _attainment),
    _Labelled("pending_seconds", "Since when a start-up makes no progress.", "role", _pending),
    _Labelled("startup_seconds", "From a decision to ready, smoothed.", "role", _startup),
    _Labelled("reversals", "Changes of direction.", "role", _reversals, counts=True),
    _Labelled("decisions", "Ticks by reason.", "reason", _decisions, counts=True),
)


def _queued_prefill(one: ForwardPass) -> float:
    return one.queued_prefill_tokens


def _queued_decode(one: ForwardPass) -> float:
    return one.queued_decode_kv_tokens


def _inflight_decode(one: ForwardPass) -> float:
    return one.decode_kv_tokens


ENGINE_GAUGES: Final[tuple[tuple[str, str, Callable[[ForwardPass], float]], ...]] = (
    ("engine_queued_prefill_tokens", "Prompt tokens that wait.", _queued_prefill),
    ("engine_queued_decode_kv_tokens", "KV tokens of requests that wait.", _queued_decode),
    ("engine_inflight_decode_kv_tokens", "KV tokens of live requests.", _inflight_decode),
)


class PlannerCollector(Collector):
    """Of all deployments that a planner has."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        statuses = list(self._statuses)
        yield from (_gauge(row, statuses) for row in GAUGES)
        yield from (_labelled(row, statuses) for row in LABELLED)
        yield _states("load_scaling_decision", LOAD_STATES, _load_reason, statuses)
        yield _states(
            "throughput_scaling_decision", THROUGHPUT_STATES, _throughput_reason, statuses
        )
        yield from _of_engines(statuses)


def metrics_text(registry: CollectorRegistry) -> bytes:
    """The Prometheus text format."""
    return generate_latest(registry)


def registry_of(statuses: Statuses) -> CollectorRegistry:
    """With the metrics of the process, where the platform has them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PlannerCollector(statuses))
    ProcessCollector(registry=registry)
    return registry


def _gauge(row: _Gauge, statuses: Iterable[DeploymentStatus]) -> Metric:
    family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=("deployment",))
    for status in statuses:
        if (value := row.read(status)) is not None:
            family.add_metric((status.name,), value)
    return family


def _labelled(row: _Labelled, statuses: Iterable[DeploymentStatus]) -> Metric:
    kind = CounterMetricFamily if row.counts else GaugeMetricFamily
    family = kind(PREFIX + row.name, row.help, labels=("deployment", row.label))
    for status in statuses:
        for label, value in row.read(status).items():
            if value is not None:
                family.add_metric((status.name, label), value)
    return family


def _load_reason(status: DeploymentStatus) -> Reason | None:
    return status.load_reason


def _throughput_reason(status: DeploymentStatus) -> Reason | None:
    return status.throughput_reason


def _states(
    name: str,
    states: tuple[str, ...],
    read: Callable[[DeploymentStatus], Reason | None],
    statuses: Iterable[DeploymentStatus],
) -> Metric:
    """1 at the state of each deployment; one that stands in no list has a series of its own."""
    family = StateSetMetricFamily(PREFIX + name, "1 at the last result.", labels=("deployment",))
    for status in statuses:
        reason = read(status)
        now = "unset" if reason is None else reason.value
        values = dict.fromkeys(states, False) | {now: True}
        family.add_metric((status.name,), values)
    return family


def _of_engines(statuses: Iterable[DeploymentStatus]) -> Iterator[Metric]:
    found = [(status.name, one) for status in statuses for one in _passes(status)]
    for name, text, read in ENGINE_GAUGES:
        labels = ("deployment", "worker_id", "dp_rank")
        family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
        for deployment, one in islice(found, ENGINES_MAX):
            family.add_metric((deployment, one.worker, str(one.rank)), read(one))
        yield family
    truncated = GaugeMetricFamily(
        PREFIX + "engine_series_truncated", "Ranks without series of their own."
    )
    truncated.add_metric((), float(max(0, len(found) - ENGINES_MAX)))
    yield truncated


def _passes(status: DeploymentStatus) -> Iterator[ForwardPass]:
    """The newest of each rank, in order."""
    tick = status.tick
    if tick is None or tick.passes is None:
        return
    newest = {(one.worker, one.rank): one for passes in tick.passes.values() for one in passes}
    for key in sorted(newest):
        yield newest[key]
