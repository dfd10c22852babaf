"""Prometheus metrics of the states at the scrape, possibly in another thread than the updates.

Metrics of Dynamo's planner keep its names, with the additional label `deployment`. The states of
both enumerations keep Dynamo's order, followed by ours.
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
from select_service.planner.runtime.plugin_metrics import plugin_metrics

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
    "no_prompt_lengths",
    "no_output_lengths",
    "limits_unknown",
)

ReadValue = Callable[[DeploymentStatus], float | None]
ReadValues = Callable[[DeploymentStatus], Mapping[str, float | None]]


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


def _field_of(found: object, field: str) -> float | None:
    """Return a field of a record; None without a record."""
    return None if found is None else getattr(found, field)


def _read_part(part: str, field: str) -> ReadValue:
    """Return a function that reads a field of the last traffic or forecast; None if unknown."""
    return lambda status: _field_of(getattr(status, part), field)


def _read_sized(role: Role, field: str) -> ReadValue:
    """Return a function that reads a field of the last size of a role; None without a size."""
    return lambda status: _field_of(status.sized.get(role), field)


def _read_pairs(field: str) -> ReadValue:
    """Return a function that reads a field of the pairs of the last window; None without pairs."""
    return lambda status: _field_of(_field_of(status.traffic, "pairs"), field)


def _moved_tokens_per_s(status: DeploymentStatus) -> float | None:
    """Return the rate of moved tokens; None without pairs."""
    traffic = status.traffic
    if traffic is None or traffic.pairs is None or traffic.duration_s <= 0.0:
        return None
    return traffic.pairs.moved_tokens / traffic.duration_s


def _mean_duration_s(status: DeploymentStatus) -> float | None:
    """Return the duration of a mean request, from the means."""
    traffic = status.traffic
    if traffic is None or traffic.ttft_s is None or traffic.itl_s is None or traffic.osl is None:
        return None
    return traffic.ttft_s + max(0.0, traffic.osl - 1.0) * traffic.itl_s


GAUGES: Final[Mapping[str, tuple[str, ReadValue]]] = {
    "num_prefill_replicas": ("Ready prefill replicas.", _read_latest("prefill_ready")),
    "num_decode_replicas": ("Ready decode replicas.", _read_latest("decode_ready")),
    "observed_ttft_ms": ("Mean reported time to first token.", _read_latest("ttft_observed_ms")),
    "observed_itl_ms": ("Mean reported time between tokens.", _read_latest("itl_observed_ms")),
    "observed_requests_per_second": (
        "Requests per second in the last window.",
        _read_latest("requests_s"),
    ),
    "observed_request_duration_seconds": (
        "Duration of a mean request, from the reported means.",
        _mean_duration_s,
    ),
    "observed_input_sequence_tokens": (
        "Mean prompt length in tokens.",
        _read_part("traffic", "isl"),
    ),
    "observed_output_sequence_tokens": (
        "Mean answer length in tokens.",
        _read_part("traffic", "osl"),
    ),
    "observed_local_share": (
        "Part of the requests whose decode rank computes the prompt itself.",
        _read_pairs("local_share"),
    ),
    "observed_moved_tokens_per_second": (
        "Prompt tokens per second that moved from a prefill to a decode rank.",
        _moved_tokens_per_s,
    ),
    "observed_link_use": (
        "Part of the time that the links between hosts were in use for moved tokens.",
        _read_pairs("link_use"),
    ),
    "observed_link_backlog_seconds": (
        "Longest queue of transfers before a link between hosts.",
        _read_pairs("link_backlog_s"),
    ),
    "predicted_requests_per_second": ("Forecast requests per second.", _read_latest("forecast_s")),
    "predicted_input_sequence_tokens": (
        "Forecast prompt length in tokens.",
        _read_part("forecast", "isl"),
    ),
    "predicted_output_sequence_tokens": (
        "Forecast answer length in tokens.",
        _read_part("forecast", "osl"),
    ),
    "predicted_num_prefill_replicas": (
        "Prefill replicas needed by the forecast.",
        _read_sized(Role.PREFILL, "replicas"),
    ),
    "predicted_num_decode_replicas": (
        "Decode replicas needed by the forecast.",
        _read_sized(Role.DECODE, "replicas"),
    ),
    "gpu_hours": (
        "GPU hours of ready, starting and lost replicas since the start.",
        lambda status: status.gpu_hours,
    ),
    "sla_target_ttft_ms": ("Target time to first token.", _read_part("settings", "ttft_ms")),
    "sla_target_itl_ms": ("Target time between tokens.", _read_part("settings", "itl_ms")),
    "estimated_ttft_ms": (
        "Time to first token estimated by the performance model.",
        _read_latest("ttft_estimated_ms"),
    ),
    "estimated_itl_ms": (
        "Time between tokens estimated by the performance model.",
        _read_latest("itl_estimated_ms"),
    ),
    "engine_prefill_capacity_requests_per_second": (
        "Capacity of a prefill engine that is always busy.",
        _read_sized(Role.PREFILL, "engine_rps"),
    ),
    "engine_decode_capacity_requests_per_second": (
        "Capacity of a decode engine that is always busy.",
        _read_sized(Role.DECODE, "engine_rps"),
    ),
    "forecast_error": (
        "Mean relative error of the last forecasts.",
        _read_part("forecast", "error"),
    ),
    "degradation_level": (
        "Highest degradation level of the selectors.",
        _read_part("diagnostics", "degradation_level"),
    ),
    "observation_stale": (
        "1 if nothing was observed for three throughput intervals.",
        _read_part("diagnostics", "stale"),
    ),
    "slo_out_of_reach": (
        "1 if no number of replicas keeps the target for this traffic.",
        lambda status: status.slo_out_of_reach,
    ),
    "attainment_target": (
        "Target part of the requests that keep the latency targets.",
        _read_part("settings", "attainment"),
    ),
}
"""Map from name to help and value of a gauge for each deployment; None: no series."""


def _read_attainment(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the attainments of the last window."""
    return {slo: status.latest.get(f"{slo}_met") for slo in ("ttft", "itl")}


def _last_roles(status: DeploymentStatus) -> Mapping[Role, RoleDiagnostics]:
    """Return the roles of the last tick."""
    return {} if status.diagnostics is None else status.diagnostics.roles


def _read_by_role(field: str) -> ReadValues:
    """Return a function that reads a field of the last diagnostics, by role."""
    return lambda status: {
        role.value: getattr(one, field) for role, one in _last_roles(status).items()
    }


def _read_reversals(status: DeploymentStatus) -> Mapping[str, float | None]:
    """Return the reversals, by role."""
    return {role.value: float(status.reversals[role]) for role in _last_roles(status)}


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
        "pending_seconds",
        "Seconds since the last progress of a start-up.",
        "role",
        _read_by_role("pending_s"),
    ),
    _LabelledRow(
        "startup_seconds",
        "Smoothed time from a decision to ready replicas.",
        "role",
        _read_by_role("startup_s"),
    ),
    _LabelledRow(
        "capacity_lost",
        "Replicas that health has taken out; neither ready nor starting.",
        "role",
        _read_by_role("lost"),
    ),
    _LabelledRow(
        "idle_spares",
        "Ready replicas that are idle spares.",
        "role",
        _read_by_role("spares"),
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

ENGINE_GAUGES: Final = (
    ("engine_queued_prefill_tokens", "Queued prompt tokens.", "queued_prefill_tokens"),
    ("engine_queued_decode_kv_tokens", "KV tokens of queued requests.", "queued_decode_kv_tokens"),
    ("engine_inflight_decode_kv_tokens", "KV tokens of live requests.", "decode_kv_tokens"),
)
"""Name and help of a gauge for each rank, and the field of its last pass."""


class PlannerCollector(Collector):
    """Collector of all deployments of a planner."""

    def __init__(self, statuses: DeploymentStatuses) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        statuses = list(self._statuses)
        yield from (_gauge_metric(name, *row, statuses) for name, row in GAUGES.items())
        yield from (_labelled_metric(row, statuses) for row in LABELLED)
        yield _state_metric("load", LOAD_STATES, statuses)
        yield _state_metric("throughput", THROUGHPUT_STATES, statuses)
        yield from _engine_metrics(statuses)
        yield from plugin_metrics(PREFIX, statuses)


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


def _gauge_metric(
    name: str, text: str, read: ReadValue, statuses: Iterable[DeploymentStatus]
) -> Metric:
    """Return a gauge of all deployments. text: help"""
    family = GaugeMetricFamily(PREFIX + name, text, labels=("deployment",))
    for status in statuses:
        if (value := read(status)) is not None:
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


def _state_metric(
    loop: str, states: tuple[str, ...], statuses: Iterable[DeploymentStatus]
) -> Metric:
    """Return 1 at the state of each deployment; a state outside of the list has its own series.

    loop: `load` or `throughput`
    """
    name = f"{PREFIX}{loop}_scaling_decision"
    family = StateSetMetricFamily(name, "1 at the last result of the loop.", labels=("deployment",))
    for status in statuses:
        reason: Reason | None = getattr(status, f"{loop}_reason")
        now = "unset" if reason is None else reason.value
        # A reason outside of Dynamo's list gets its own series instead of an error.
        values = dict.fromkeys(states, False) | {now: True}
        family.add_metric((status.name,), values)
    return family


def _engine_metrics(statuses: Iterable[DeploymentStatus]) -> Iterator[Metric]:
    """Yield the metrics of ranks."""
    found = [(status.name, one) for status in statuses for one in _newest_passes(status)]
    for name, text, field in ENGINE_GAUGES:
        labels = ("deployment", "worker_id", "dp_rank")
        family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
        # The number of ranks is unbounded, and so would be the scrape.
        for deployment, one in islice(found, ENGINES_MAX):
            family.add_metric((deployment, one.worker, str(one.rank)), getattr(one, field))
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
