"""Which loops are due at a tick, and when the next one is."""

from functools import reduce
from math import gcd

from msgspec import Struct

from select_service.planner.core.settings import Settings, intervals_of

EARLY_S = 1e-9
"""Sums of intervals are not exact."""


class NextTick(Struct, frozen=True, kw_only=True):
    """What the next tick needs. traffic_s: window of the traffic; None: it is not looked at."""

    at_s: float
    run_load: bool
    run_throughput: bool
    traffic_s: float | None


class Due(Struct, frozen=True, kw_only=True):
    """Loops of one tick."""

    load: bool
    throughput: bool


def scale_interval_s(settings: Settings) -> float:
    """Between two ticks: as set, or the greatest common divisor of the loops, in ms."""
    if settings.scale_interval_seconds is not None:
        return settings.scale_interval_seconds
    return reduce(gcd, (round(each * 1000) for each in intervals_of(settings))) / 1000


def load_on(settings: Settings) -> bool:
    """Easy modes know nothing else."""
    return settings.enable_load_scaling or settings.optimization_target != "sla"


def throughput_on(settings: Settings) -> bool:
    return settings.enable_throughput_scaling and settings.optimization_target == "sla"


class Schedule:
    """The first tick comes a scale interval after `start_s`, each loop after its own."""

    def __init__(self, settings: Settings, start_s: float) -> None:
        self._settings = settings
        self._interval_s = scale_interval_s(settings)
        self._is_watching = False
        """Whether ticks look for demand as often as load is looked at: nothing is ready."""
        self._load_s = self._throughput_s = start_s
        self.last_s = start_s
        """When a tick last ran."""

    def due(self, now_s: float) -> Due:
        """A disabled load loop still runs: it keeps the models up to date."""
        return Due(load=self._load_due(now_s), throughput=self._throughput_due(now_s))

    def ran(self, now_s: float, due: Due, *, is_asleep: bool = False) -> NextTick:
        """After a tick.

        is_asleep: whether no replica is ready, so that the first request counts soon
        """
        self.last_s = now_s
        if is_asleep and self._settings.load_guards:
            self._is_watching = True
        elif due.throughput or not throughput_on(self._settings):
            self._is_watching = False  # ticks are at their times again
        if due.load:
            self._load_s = now_s
        if due.throughput:
            self._throughput_s = now_s
        return self.next_after(now_s)

    def next_after(self, now_s: float) -> NextTick:
        interval_s = self._interval_s
        if self._is_watching:
            interval_s = min(interval_s, self._settings.load_adjustment_interval_seconds)
        return self.needs(now_s + interval_s)

    def needs(self, at_s: float) -> NextTick:
        """Of a tick at this time, however late it is."""
        throughput = self._throughput_due(at_s)
        load = self._load_due(at_s)
        window: float | None = None
        if throughput:
            window = self._settings.throughput_adjustment_interval_seconds
        elif load and (load_on(self._settings) or self._is_watching):
            window = self._settings.load_adjustment_interval_seconds
        return NextTick(at_s=at_s, run_load=load, run_throughput=throughput, traffic_s=window)

    def _load_due(self, now_s: float) -> bool:
        interval = self._settings.load_adjustment_interval_seconds
        return now_s - self._load_s >= interval - EARLY_S

    def _throughput_due(self, now_s: float) -> bool:
        interval = self._settings.throughput_adjustment_interval_seconds
        return throughput_on(self._settings) and now_s - self._throughput_s >= interval - EARLY_S
