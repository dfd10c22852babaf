"""Schedule of the load and throughput loops, and of the next tick."""

from math import gcd

from msgspec import Struct

from select_service.planner.core.settings import (
    DeploymentSettings,
    is_load_enabled,
    is_throughput_enabled,
    loop_intervals,
)

TIME_TOLERANCE_S = 1e-9
"""Tolerance, seconds: sums of intervals are not exact."""


class NextTick(Struct, frozen=True, kw_only=True):
    """Needs of the next tick. traffic_s: traffic window, seconds; None if traffic is not read"""

    at_s: float
    run_load: bool
    run_throughput: bool
    traffic_s: float | None


class DueLoops(Struct, frozen=True, kw_only=True):
    """Loops that are due in a tick.

    check: whether demand is compared with the forecast before the throughput loop is due
    """

    load: bool
    throughput: bool
    check: bool = False


def scale_interval_s(settings: DeploymentSettings) -> float:
    """Return the seconds between two ticks.

    The interval is as set, or the greatest common divisor of the loops in ms.
    """
    if settings.scale_interval_seconds is not None:
        return settings.scale_interval_seconds
    # Integers of milliseconds, as gcd needs integers.
    return gcd(*(round(each * 1000) for each in loop_intervals(settings))) / 1000


class TickSchedule:
    """Schedule of ticks.

    The first tick comes a scale interval after `start_s`, each loop after its own interval.
    """

    def __init__(self, settings: DeploymentSettings, start_s: float) -> None:
        self._settings = settings
        self._interval_s = scale_interval_s(settings)
        self._is_watching = False
        """Whether ticks look for demand at the load interval, because nothing is ready."""
        self._load_s = self._throughput_s = self._check_s = start_s
        self.checks = 1
        """Parts of the throughput interval after which demand is compared with the forecast."""
        self.last_s = start_s
        """Time of the last tick."""

    def due_loops(self, now_s: float) -> DueLoops:
        """Return the due loops. A disabled load loop still runs: it keeps the models up to date."""
        return DueLoops(
            load=self._is_load_due(now_s),
            throughput=self._is_throughput_due(now_s),
            check=self._is_check_due(now_s),
        )

    def record_tick(self, now_s: float, due: DueLoops, *, is_asleep: bool = False) -> NextTick:
        """Record a tick and return the next.

        is_asleep: whether no replica is ready, so that the first request must be noticed soon
        """
        self.last_s = now_s
        # The throughput interval may be minutes; the first request after a pause must not wait so
        # long.
        if is_asleep and self._settings.load_guards:
            self._is_watching = True
        elif due.throughput or not is_throughput_enabled(self._settings):
            self._is_watching = False  # the regular ticks have caught up
        if due.load:
            self._load_s = now_s
        if due.throughput:
            self._throughput_s = now_s
        if due.throughput or due.check:
            self._check_s = now_s
        return self.next_after(now_s)

    def next_after(self, now_s: float) -> NextTick:
        """Return the needs of the tick after this time."""
        interval_s = self._interval_s
        if self._is_watching:
            interval_s = min(interval_s, self._settings.load_adjustment_interval_seconds)
        if self.checks > 1:
            interval_s = min(interval_s, self._check_interval_s)
        return self.tick_needs(now_s + interval_s)

    def tick_needs(self, at_s: float) -> NextTick:
        """Return the needs of a tick at this time, however late."""
        throughput = self._is_throughput_due(at_s)
        load = self._is_load_due(at_s)
        window: float | None = None
        # The longer window wins if both loops run: the load loop can use it, but not the reverse.
        if throughput:
            window = self._settings.throughput_adjustment_interval_seconds
        elif self._is_check_due(at_s):
            window = self._check_interval_s
        elif load and (is_load_enabled(self._settings) or self._is_watching):
            window = self._settings.load_adjustment_interval_seconds
        return NextTick(at_s=at_s, run_load=load, run_throughput=throughput, traffic_s=window)

    def _is_load_due(self, now_s: float) -> bool:
        """Return whether the load interval has passed."""
        interval = self._settings.load_adjustment_interval_seconds
        return now_s - self._load_s >= interval - TIME_TOLERANCE_S

    @property
    def _check_interval_s(self) -> float:
        """Seconds between two checks of the demand."""
        return self._settings.throughput_adjustment_interval_seconds / self.checks

    def _is_check_due(self, now_s: float) -> bool:
        """Return whether demand is to be compared although no forecast is due."""
        is_due = self.checks > 1 and now_s - self._check_s >= (
            self._check_interval_s - TIME_TOLERANCE_S
        )
        return is_due and not self._is_throughput_due(now_s)

    def _is_throughput_due(self, now_s: float) -> bool:
        """Return whether the throughput loop runs and its interval has passed."""
        interval = self._settings.throughput_adjustment_interval_seconds
        return (
            is_throughput_enabled(self._settings)
            and now_s - self._throughput_s >= interval - TIME_TOLERANCE_S
        )
