"""The throughput loop of a deployment: forecast, sizes, floors, and what it proposes."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs
from msgspec.structs import replace

from select_service.planner.core.allowance import Allowance
from select_service.planner.core.contracts import Forecast, Forecaster, Said, Shape, Slo
from select_service.planner.core.diagnostics import Sized
from select_service.planner.core.inputs import Limits, Role, Traffic
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.reasons import Reason
from select_service.planner.core.recent import Recent
from select_service.planner.core.schedule import load_on
from select_service.planner.core.settings import Settings
from select_service.planner.core.sizing import MissCorrection
from select_service.planner.core.throughput import Demand, Engine, attained, demand_of, sized

STALE_WINDOWS = 3
"""Throughput intervals without a reading after which everything is held."""


class Thought(NamedTuple):
    """targets None: no opinion, or only a floor"""

    targets: dict[Role, int] | None
    reason: Reason
    sizes: Mapping[Role, Sized] = {}
    forecast: Said | None = None


class ThroughputStage:
    """Everything that it remembers is in the forecaster, the floors, the correction and what is
    recent of the traffic."""

    def __init__(
        self, settings: Settings, models: Mapping[Role, EngineModel], forecaster: Forecaster
    ) -> None:
        self.settings = settings
        self.allowance = Allowance(settings)
        self.correction = MissCorrection()
        self._recent = Recent(settings.throughput_adjustment_interval_seconds)
        self.floors = dict.fromkeys(self.allowance.roles, 1)
        self.spare = dict.fromkeys(self.allowance.roles, 0)
        """What a step down must leave."""
        self.exact = dict.fromkeys(self.allowance.roles, 0.0)
        """Replicas before rounding."""
        self.forecast: Forecast | None = None
        self.is_idle = False
        """Whether the last forecast is of no demand at all."""
        self.unknown = 0
        """Windows in a row without a reading."""
        self._last: dict[Role, int] | None = None
        """What was ready at the end of the last window; None: it was changing."""
        self._models = models
        self._forecaster = forecaster

    @property
    def stale(self) -> bool:
        return self.unknown >= STALE_WINDOWS

    def think(
        self,
        traffic: Traffic | None,
        ready: Mapping[Role, int],
        limits: Mapping[Role, Limits],
        lead_s: float,
        moving: bool,
    ) -> Thought:
        """Once an interval. moving: replicas start or go"""
        if traffic is None or traffic.requests is None:
            self.unknown += 1
            self._forecaster.skip()
            return Thought(None, Reason.NO_TRAFFIC_DATA)
        self.unknown = 0
        recent = self._recent.with_window(traffic)
        self._forecaster.add(_whole(recent, self.settings))
        forecast = self._forecaster.predict(lead_s if self.settings.lead else 0.0)
        self.forecast = forecast
        if not moving and self._last == ready:
            self._learn_misses(traffic, ready, limits)
        self._last = None if moving else dict(ready)
        demand = demand_of(forecast, recent, self.settings, self.correction.factor)
        self.is_idle = demand is not None and demand.rate <= 0.0
        if demand is None:
            return Thought(None, Reason.NO_TRAFFIC_DATA, forecast=_said(forecast))
        sizes = self._sizes(demand, limits)
        targets, reason = self._target(sizes, ready)
        return Thought(targets, reason, sizes, _said(forecast))

    def _sizes(self, demand: Demand, limits: Mapping[Role, Limits]) -> dict[Role, Sized]:
        sizes = {
            role: sized(demand, role, self._engine(role, limits), self.settings)
            for role in self.allowance.roles
        }
        for role, size in sizes.items():
            self.exact[role] = size.exact or 0.0
            if size.spare is not None:
                self.spare[role] = max(size.spare, self.allowance.minimums[role])
        if all(size.replicas is None for size in sizes.values()):
            return sizes
        cold = any(size.replicas is None for size in sizes.values())
        return {role: _beside_cold(size) if cold else size for role, size in sizes.items()}

    def _engine(self, role: Role, limits: Mapping[Role, Limits]) -> Engine:
        slo = Slo(self.settings.ttft_ms, self.settings.itl_ms)
        return Engine(self._models[role], limits[role], slo, self.settings.mode == "agg")

    def _target(
        self, sizes: Mapping[Role, Sized], ready: Mapping[Role, int]
    ) -> tuple[dict[Role, int] | None, Reason]:
        """Steps, minima, the ceiling; then a floor for load, or a proposal of its own."""
        cold = any(size.replicas is None for size in sizes.values())
        step = self.settings.max_throughput_scaling_replicas
        bounded = {}
        for role, size in sizes.items():
            here = ready[role]
            wanted = here if cold or size.replicas is None else size.replicas
            wanted = max(wanted, self.allowance.minimums[role])
            bounded[role] = min(max(wanted, here - step), here + step)
        bounded = self.allowance.with_minimums(bounded)
        fitted = self.allowance.under_ceiling(ready, bounded)
        held = fitted == ready and bounded != ready
        if load_on(self.settings):
            self.floors = fitted
            return None, _first(cold, Reason.GPU_BUDGET_HOLD if held else Reason.SET_LOWER_BOUND)
        allowed = self.allowance.step(ready, fitted)
        if allowed.counts == ready:
            hold = Reason.GPU_BUDGET_HOLD if held else Reason.NO_CHANGE
            return None if cold else dict(ready), _first(cold, allowed.reason or hold)
        return allowed.counts, _first(cold, Reason.SCALE)

    def _learn_misses(
        self, traffic: Traffic, ready: Mapping[Role, int], limits: Mapping[Role, Limits]
    ) -> None:
        """What callers measured, against what sizing says of the same window."""
        role = self.allowance.roles[0]
        serves = role is Role.PREFILL or self.settings.mode == "agg"
        if self.settings.sizing != "queue" or traffic.ttft_met is None or not serves:
            return
        if not traffic.requests or not traffic.isl or traffic.duration_s <= 0.0:
            return
        shape = Shape(traffic.isl, traffic.osl or 1.0, traffic.kv_hit_rate or 0.0)
        rate = traffic.requests / traffic.duration_s
        demand = Demand(rate, shape, traffic, self.settings.attainment)
        expected = attained(demand, ready[role], self._engine(role, limits))
        if expected is None:
            return
        met = traffic.ttft_met
        if self.settings.mode == "agg" and traffic.itl_met is not None:
            met *= traffic.itl_met
        reachable = expected.reachable
        self.correction.observe(max(-0.01, reachable - met), max(0.0, reachable - expected.kept))

    def check_invariants(self) -> None:
        """For tests."""
        self.correction.check_invariants()
        assert self.unknown >= 0
        assert all(floor >= 0 for floor in self.floors.values())


def _whole(traffic: Traffic, settings: Settings) -> Traffic:
    """As if the window were a whole interval: points have to be of equal times."""
    interval_s = settings.throughput_adjustment_interval_seconds
    if traffic.requests is None or traffic.duration_s <= 0.0 or traffic.duration_s == interval_s:
        return traffic
    return replace(traffic, requests=traffic.requests * interval_s / traffic.duration_s)


def _beside_cold(size: Sized) -> Sized:
    """Of a role that must wait for the other one."""
    if size.replicas is None:
        return size
    return structs.replace(size, reason=Reason.PARTNER_NOT_READY)


def _first(cold: bool, reason: Reason) -> Reason:
    return Reason.MODEL_NOT_READY if cold else reason


def _said(forecast: Forecast) -> Said:
    return Said(
        requests=forecast.requests,
        isl=forecast.isl,
        osl=forecast.osl,
        demand_requests=forecast.demand_requests,
        kv_hit_rate=forecast.kv_hit_rate,
        accept_length=forecast.accept_length,
        predictor=forecast.predictor,
        error=forecast.error,
    )
