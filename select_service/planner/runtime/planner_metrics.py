"""Prometheus metrics of the states at the scrape, possibly in another thread than the updates.

Metrics of the reference planner keep its names, with the additional label `deployment`. The states
of its two enumerations keep its order, followed by ours.
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
from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import ForwardPass, Role
from select_service.planner.deployment_status import DeploymentStatus, DeploymentStatuses

PREFIX = "dynamo_planner_"
ENGINES_MAX = 1024
"""Maximum ranks with their own series, over all deployments."""

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

ReadValue = Callable[[DeploymentStatus], float | None]
ReadValues = Callable[[DeploymentStatus], Mapping[str, float | None]]


class _GaugeRow(NamedTuple):
    """Gauge with a series for each deployment with a known value."""

    name: str
    help: str
    read: ReadValue


class _LabelledRow(NamedTuple):
    """Series with an additional label. counts: whether the value only grows"""

    name: str
    help: str
    label: str
    read: ReadValues
    counts: bool = False


def _read_latest(column: str) -> ReadValue:
    """Return a function that reads the last value of a column."""
    return lambda status: status.latest.get(column)


def _read_ready(role: Role) -> ReadValue:
    """Return a function that reads the ready replicas of a role."""
    return _read_latest(f"{role.value}_ready")


def _read_needed(role: Role) -> ReadValue:
    """Return a function that reads the replicas needed by the forecast."""
    return lambda status: None if role not in status.sized else status.sized[role].replicas


def _read_engine_rps(role: Role) -> ReadValue:
    """Return a function that reads the capacity of an engine, requests/s."""
    return lambda status: None if role not in status.sized else status.sized[role].engine_rps


def _read_stale(status: DeploymentStatus) -> float | None:
    """Return whether the observations are stale, or None before the first tick."""
    said = status.diagnostics
    return None if said is None else float(said.stale)


def _mean_duration_s(status: DeploymentStatus) -> float | None:
    """Return the duration of a mean request, from the means."""
    traffic = status.traffic
    if traffic is None or traffic.ttft_s is None or traffic.itl_s is None or traffic.osl is None:
        return None
    return traffic.ttft_s + max(0.0, traffic.osl - 1.0) * traffic.itl_s


GAUGES: Final[tuple[_GaugeRow, ...]] = (
    _GaugeRow("num_prefill_replicas", "Ready prefill replicas.", _read_ready(Role.PREFILL)),
    _GaugeRow("num_decode_replicas", "Ready decode replicas.", _read_ready(Role.DECODE)),
    _GaugeRow(
        "observed_ttft_ms", "Mean reported time to first token.", _read_latest("ttft_observed_ms")
    ),
    _GaugeRow(
        "observed_itl_ms", "Mean reported time between tokens.", _read_latest("itl_observed_ms")
    ),
    _GaugeRow(
        "observed_requests_per_second",
        "Requests per second in the last window.",
        _read_latest("requests_s"),
    ),
    _GaugeRow(
        "observed_request_duration_seconds",
        "Duration of a mean request, from the reported means.",
        _mean_duration_s,
    ),
    _GaugeRow(
        "observed_input_sequence_tokens",
        "Mean prompt length in tokens.",
        lambda status: None if status.traffic is None else status.traffic.isl,
    ),
    _GaugeRow(
        "observed_output_sequence_tokens",
        "Mean answer length in tokens.",
        lambda status: None if status.traffic is None else status.traffic.osl,
    ),
    _GaugeRow(
        "predicted_requests_per_second", "Forecast requests per second.", _read_latest("forecast_s")
    ),
    _GaugeRow(
        "predicted_input_sequence_tokens",
        "Forecast prompt length in tokens.",
        lambda status: None if status.forecast is None else status.forecast.isl,
    ),
    _GaugeRow(
        "predicted_output_sequence_tokens",
        "Forecast answer length in tokens.",
        lambda status: None if status.forecast is None else status.forecast.osl,
    ),
    _GaugeRow(
        "predicted_num_prefill_replicas",
        "Prefill replicas needed by the forecast.",
        _read_needed(Role.PREFILL),
    ),
    _GaugeRow(
        "predicted_num_decode_replicas",
        "Decode replicas needed by the forecast.",
        _read_needed(Role.DECODE),
    ),
    _GaugeRow(
        "gpu_hours",
        "GPU hours of ready and starting replicas since the start.",
        lambda status: status.gpu_hours,
    ),
    _GaugeRow(
        "sla_target_ttft_ms", "Target time to first token.", lambda status: status.settings.ttft_ms
    ),
    _GaugeRow(
        "sla_target_itl_ms", "Target time between tokens.", lambda status: status.settings.itl_ms
    ),
    _GaugeRow(
        "estimated_ttft_ms",
        "Time to first token estimated by the performance model.",
        _read_latest("ttft_estimated_ms"),
    ),
    _GaugeRow(
        "estimated_itl_ms",
        "Time between tokens estimated by the performance model.",
        _read_latest("itl_estimated_ms"),
    ),
    _GaugeRow(
        "engine_prefill_capacity_requests_per_second",
        "Capacity of a prefill engine that is always busy.",
        _read_engine_rps(Role.PREFILL),
    ),
    _GaugeRow(
        "engine_decode_capacity_requests_per_second",
        "Capacity of a decode engine that is always busy.",
        _read_engine_rps(Role.DECODE),
    ),
    _GaugeRow(
        "forecast_error",
        "Mean relative error of the last forecasts.",
        lambda status: None if status.forecast is None else status.forecast.error,
    ),
    _GaugeRow(
        "observation_stale",
        "1 if nothing was observed for three throughput intervals.",
        _read_stale,
    ),
    _GaugeRow(
        "slo_out_of_reach",
        "1 if no number of replicas keeps the target for this traffic.",
        lambda status: float(status.slo_out_of_reach),
    ),
    _GaugeRow(
        "attainment_target",
        "Target part of the requests that keep the latency targets.",
        lambda status: status.settings.attainment,
    ),
)


def _last_roles(status: DeploymentStatus) -> Mapping[Role, RoleDiagnostics]:
    """Return the roles of the last tick."""
    said = status.diagnostics
    return {} if said is None else said.roles


def _read_attainment(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the attainments of the last window."""
    return {slo: status.latest.get(f"{slo}_met") for slo in ("ttft", "itl")}


def _read_pending(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the seconds without progress, by role."""
    roles = _last_roles(status)
    return {role.value: one.pending_s for role, one in roles.items()}


def _read_start_up(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the start-up seconds, by role."""
    roles = _last_roles(status)
    return {role.value: one.startup_s for role, one in roles.items()}


def _read_reversals(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the reversals, by role."""
    roles = _last_roles(status)
    return {role.value: float(status.reversals[role]) for role in roles}


def _read_decisions(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the counts of all reasons.

    Zeros are included, so that the first tick with a reason is an increase.
    """
    return {reason.value: float(status.by_reason[reason]) for reason in Reason}


LABELLED: Final[tuple[_LabelledRow, ...]] = (
    _LabelledRow(
        "attainment",
        "Part of the requests of a window that kept the latency target.",
        "slo",
        _read_attainment,
    ),
    _LabelledRow(
        "pending_seconds", "Seconds since the last progress of a start-up.", "role", _read_pending
    ),
    _LabelledRow(
        "startup_seconds",
        "Smoothed time from a decision to ready replicas.",
        "role",
        _read_start_up,
    ),
    _LabelledRow(
        "reversals",
        "Decisions against the direction of the last one.",
        "role",
        _read_reversals,
        counts=True,
    ),
    _LabelledRow("decisions", "Number of ticks by reason.", "reason", _read_decisions, counts=True),
)


def _queued_prefill(one: ForwardPass) -> float:
    """Return the queued prefill tokens."""
    return one.queued_prefill_tokens


def _queued_decode(one: ForwardPass) -> float:
    """Return the queued KV tokens."""
    return one.queued_decode_kv_tokens


def _inflight_decode(one: ForwardPass) -> float:
    """Return the KV tokens of live requests."""
    return one.decode_kv_tokens


ENGINE_GAUGES: Final[tuple[tuple[str, str, Callable[[ForwardPass], float]], ...]] = (
    ("engine_queued_prefill_tokens", "Queued prompt tokens.", _queued_prefill),
    ("engine_queued_decode_kv_tokens", "KV tokens of queued requests.", _queued_decode),
    ("engine_inflight_decode_kv_tokens", "KV tokens of live requests.", _inflight_decode),
)


class PlannerCollector(Collector):
    """Collector of all deployments of a planner."""

    def __init__(self, statuses: DeploymentStatuses) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        statuses = list(self._statuses)
        yield from (_gauge_metric(row, statuses) for row in GAUGES)
        yield from (_labelled_metric(row, statuses) for row in LABELLED)
        yield _state_metric("load_scaling_decision", LOAD_STATES, _load_reason, statuses)
        yield _state_metric(
            "throughput_scaling_decision", THROUGHPUT_STATES, _throughput_reason, statuses
        )
        yield from _engine_metrics(statuses)


def render_metrics(registry: CollectorRegistry) -> bytes:
    """Return the metrics in the Prometheus text format."""
    return generate_latest(registry)


def make_registry(statuses: DeploymentStatuses) -> CollectorRegistry:
    """Return the registry, including process metrics if the platform has them."""
    # Without a description the registry need not collect at registration, when there are no states.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PlannerCollector(statuses))
    ProcessCollector(registry=registry)
    return registry


def _gauge_metric(row: _GaugeRow, statuses: Iterable[DeploymentStatus]) -> Metric:
    """Return a gauge of all deployments."""
    family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=("deployment",))
    for status in statuses:
        if (value := row.read(status)) is not None:
            family.add_metric((status.name,), value)
    return family


def _labelled_metric(row: _LabelledRow, statuses: Iterable[DeploymentStatus]) -> Metric:
    """Return a labelled metric of all deployments."""
    kind = CounterMetricFamily if row.counts else GaugeMetricFamily
    family = kind(PREFIX + row.name, row.help, labels=("deployment", row.label))
    for status in statuses:
        for label, value in row.read(status).items():
            if value is not None:
                family.add_metric((status.name, label), value)
    return family


def _load_reason(status: DeploymentStatus) -> Reason | None:
    """Return the last reason of the load loop."""
    return status.load_reason


def _throughput_reason(status: DeploymentStatus) -> Reason | None:
    """Return the last reason of the throughput loop."""
    return status.throughput_reason


def _state_metric(
    name: str,
    states: tuple[str, ...],
    read: Callable[[DeploymentStatus], Reason | None],
    statuses: Iterable[DeploymentStatus],
) -> Metric:
    """Return 1 at the state of each deployment; a state outside of the list has its own series."""
    family = StateSetMetricFamily(
        PREFIX + name, "1 at the last result of the loop.", labels=("deployment",)
    )
    for status in statuses:
        reason = read(status)
        now = "unset" if reason is None else reason.value
        # A reason outside of the reference's list gets its own series instead of an error.
        values = dict.fromkeys(states, False) | {now: True}
        family.add_metric((status.name,), values)
    return family


def _engine_metrics(statuses: Iterable[DeploymentStatus]) -> Iterator[Metric]:
    """Yield the metrics of ranks."""
    found = [(status.name, one) for status in statuses for one in _newest_passes(status)]
    for name, text, read in ENGINE_GAUGES:
        labels = ("deployment", "worker_id", "dp_rank")
        family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
        # The number of ranks is unbounded, and so would be the scrape.
        for deployment, one in islice(found, ENGINES_MAX):
            family.add_metric((deployment, one.worker, str(one.rank)), read(one))
        yield family
    truncated = GaugeMetricFamily(
        PREFIX + "engine_series_truncated", "Ranks beyond the limit of series."
    )
    truncated.add_metric((), float(max(0, len(found) - ENGINES_MAX)))
    yield truncated


def _newest_passes(status: DeploymentStatus) -> Iterator[ForwardPass]:
    """Yield the newest pass of each rank, in order."""
    tick = status.tick
    if tick is None or tick.passes is None:
        return
    newest = {(one.worker, one.rank): one for passes in tick.passes.values() for one in passes}
    for key in sorted(newest):
        yield newest[key]
