"""Metrics of plugins: calls by outcome, duration and success of the last call."""

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from select_service.planner.deployment_status import DeploymentStatus


def plugin_metrics(prefix: str, statuses: Iterable[DeploymentStatus]) -> Iterator[Metric]:
    """Yield the metrics of all plugins; families without samples if there are no plugins."""
    listed = list(statuses)
    calls = CounterMetricFamily(
        prefix + "plugin_calls",
        "Calls of plugins by outcome.",
        labels=("deployment", "plugin", "stage", "outcome"),
    )
    for status in listed:
        for kind, count in sorted(status.plugin_calls.items()):
            labels = (status.name, kind.plugin, kind.stage.value, kind.outcome.value)
            calls.add_metric(labels, float(count))
    yield calls
    up = GaugeMetricFamily(
        prefix + "plugin_up",
        "1 if the last call of a plugin was answered.",
        labels=("deployment", "plugin"),
    )
    seconds = GaugeMetricFamily(
        prefix + "plugin_call_seconds",
        "Duration of the last call of a plugin.",
        labels=("deployment", "plugin"),
    )
    for status in listed:
        for call in status.last_calls.values():
            up.add_metric((status.name, call.plugin), float(call.is_good))
            seconds.add_metric((status.name, call.plugin), call.seconds)
    yield from (up, seconds)
