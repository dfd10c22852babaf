"""Settings of health checks."""

from math import inf
from typing import NamedTuple


class HealthRules(NamedTuple):
    """Settings of health checks, in seconds unless the name has another unit.

    interval_s: time between two checks of a rank
    confirm_s: time from a failing check to the confirming check
    failures: consecutive failing checks that make a rank unhealthy
    recovery_s: open time of the breaker, multiplied by `backoff` after every failed probe
    connect_s: time between two attempts to connect to a rank that refused connections; 0 means
        that only the breaker decides
    alpha, spike_factor, spike_margin_ms, baseline_samples, anchor_factor: see `LatencyBaseline`
    slow_start_s: time from recovery to full weight, starting at `slow_start_weight`
    passive_failures: reported failures within `passive_window_s` that make one failing check
    drain_s: time until the remaining reservations of a draining rank are released
    max_eject: share of a partition that limited causes may eject; 1 means no limit
    capacity_floor: part of the promised rate, or of the ranks, that has to answer before a silent
        rank is ejected beyond `max_eject`
    """

    interval_s: float = 30.0
    timeout_s: float = 5.0
    retries: int = 2
    retry_pause_s: float = 0.5
    confirm_s: float = 2.0
    failures: int = 3
    recovery_s: float = 60.0
    backoff: float = 2.0
    recovery_s_max: float = 600.0
    connect_s: float = 3.0
    passes_after_wrong_answers: int = 3
    probe_pause_s: float = 1.0
    alpha: float = 0.1
    spike_factor: float = 3.0
    spike_margin_ms: float = 50.0
    baseline_samples: int = 5
    anchor_factor: float = 2.0
    slow_start_s: float = 30.0
    slow_start_weight: float = 0.25
    passive_failures: int = 3
    passive_window_s: float = 30.0
    drain_s: float = 300.0
    dead_after_s: float = 600.0
    dead_probe_s: float = 300.0
    dead_passes: int = 3
    max_eject: float = 0.5
    capacity_floor: float = 0.25


DESIGN_DOCUMENT_RULES = HealthRules(
    backoff=1.0,
    connect_s=0.0,
    passes_after_wrong_answers=1,
    spike_margin_ms=0.0,
    baseline_samples=1,
    anchor_factor=inf,
    slow_start_s=0.0,
    max_eject=1.0,
)
"""Settings of the original design document: first samples, no limits, no confirmations."""
