"""Checks of the demand between two forecasts, as often as replicas can start.

A forecast stands for an interval. Where replicas start in a fraction of it, an excess need not wait
for its end: a part of the interval is compared with the forecast, and may only add replicas.
"""

from math import sqrt

from msgspec.structs import replace

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.settings import DeploymentSettings, is_throughput_enabled
from select_service.planner.core.tick_input import TrafficWindow

CHECKS_MAX = 6
"""Maximum checks of an interval: shorter windows are mostly chance."""
CHECK_S_MIN = 10.0
"""Minimum time between two checks, seconds."""
CHANCE_DEVIATIONS = 2.0
"""Standard deviations by which requests of a window may exceed their mean by chance."""


def count_checks(settings: DeploymentSettings, startup_s: float) -> int:
    """Return the parts of an interval after which demand is compared; 1: at its end only."""
    if not settings.adaptive_interval or not is_throughput_enabled(settings):
        return 1
    interval_s = settings.throughput_adjustment_interval_seconds
    return max(1, min(CHECKS_MAX, int(interval_s / max(startup_s, CHECK_S_MIN))))


def raise_forecast(
    forecast: ExpectedTraffic, traffic: TrafficWindow, interval_s: float
) -> ExpectedTraffic | None:
    """Return the forecast with the demand of a part of the interval; None if it is no higher."""
    if not traffic.requests or traffic.duration_s <= 0.0:
        return None
    variation = max(1.0, traffic.arrival_variation or 1.0)
    # Bursts are no demand: only what exceeds their usual size raises the forecast.
    certain = traffic.requests - CHANCE_DEVIATIONS * sqrt(variation * traffic.requests)
    requests = certain * interval_s / traffic.duration_s
    if requests <= forecast.demand_requests:
        return None
    return replace(forecast, requests=max(forecast.requests, requests), demand_requests=requests)
