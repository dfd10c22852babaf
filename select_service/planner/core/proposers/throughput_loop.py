"""Throughput loop of a deployment: forecast, sizes, floors and the proposal."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.diagnostics import SizingRecord
from select_service.planner.core.forecast_contracts import (
    ExpectedTraffic,
    Forecaster,
    ForecastRecord,
    LatencyTargets,
    MeanRequest,
)
from select_service.planner.core.forecasting.length_distributions import RecentDistributions
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers.queue_sizing import MissCorrection
from select_service.planner.core.proposers.throughput_proposer import (
    RoleEngine,
    SizedDemand,
    make_demand,
    predict_attainment,
    size_role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings, is_load_enabled
from select_service.planner.core.tick_input import EngineLimits, Role, TrafficWindow

STALE_WINDOWS = 3
"""Throughput intervals without a reading after which no count changes."""


class ThroughputProposal(NamedTuple):
    """Result of the throughput loop. targets None means no opinion, or only a floor."""

    targets: dict[Role, int] | None = None
    reason: Reason | None = None
    sizes: Mapping[Role, SizingRecord] = {}
    forecast: ForecastRecord | None = None


class ThroughputLoop:
    """Throughput loop of a deployment.

    State: forecaster, floors, correction, recent distributions.
    """

    def __init__(
        self,
        settings: DeploymentSettings,
        models: Mapping[Role, EngineModel],
        forecaster: Forecaster,
    ) -> None:
        self.settings = settings
        self.allowance = RoleBudget(settings)
        self.correction = MissCorrection()
        self._distributions = RecentDistributions(settings.throughput_adjustment_interval_seconds)
        self.floors = dict.fromkeys(self.allowance.roles, 1)
        self.spare = dict.fromkeys(self.allowance.roles, 0)
        """Replicas that a step down must leave, by role."""
        self.exact = dict.fromkeys(self.allowance.roles, 0.0)
        """Replicas before rounding, by role."""
        self.forecast: ExpectedTraffic | None = None
        self.is_idle = False
        """Whether the last forecast expects no demand at all."""
        self.unknown_windows = 0
        """Number of consecutive windows without a reading."""
        self._last: dict[Role, int] | None = None
        """Ready replicas at the end of the last window; None if the number was changing."""
        self._models = models
        self._forecaster = forecaster

    @property
    def is_stale(self) -> bool:
        """Whether too many windows had no reading."""
        return self.unknown_windows >= STALE_WINDOWS

    def propose(
        self,
        traffic: TrafficWindow | None,
        ready: Mapping[Role, int],
        limits: Mapping[Role, EngineLimits],
        lead_s: float,
        moving: bool,
    ) -> ThroughputProposal:
        """Return the proposal; called once an interval. moving: whether a change is under way"""
        # An unknown window must not look like a drop to zero, so the forecaster gets a gap.
        if traffic is None or traffic.requests is None:
            self.unknown_windows += 1
            self._forecaster.skip()
            return ThroughputProposal(None, Reason.NO_TRAFFIC_DATA)
        self.unknown_windows = 0
        recent = self._distributions.add_window(traffic)
        self._forecaster.add(_whole_interval(recent, self.settings))
        forecast = self._forecaster.predict(lead_s if self.settings.lead else 0.0)
        self.forecast = forecast
        # The prediction assumes a constant number of replicas over the whole window.
        if not moving and self._last == ready:
            self._learn_misses(traffic, ready, limits)
        self._last = None if moving else dict(ready)
        demand = make_demand(forecast, recent, self.settings, self.correction.miss_ratio)
        self.is_idle = demand is not None and demand.rate <= 0.0
        if demand is None:
            return ThroughputProposal(None, Reason.NO_TRAFFIC_DATA, forecast=forecast.to_record())
        sizes = self._size_roles(demand, limits)
        targets, reason = self._bounded_targets(sizes, ready)
        return ThroughputProposal(targets, reason, sizes, forecast.to_record())

    def _size_roles(
        self, demand: SizedDemand, limits: Mapping[Role, EngineLimits]
    ) -> dict[Role, SizingRecord]:
        """Size all roles; while a role's model is not ready the other keeps its count."""
        sizes = {
            role: size_role(demand, role, self._role_engine(role, limits), self.settings)
            for role in self.allowance.roles
        }
        for role, size in sizes.items():
            self.exact[role] = size.exact or 0.0
            if size.spare is not None:
                self.spare[role] = max(size.spare, self.allowance.minimums[role])
        if all(size.replicas is not None for size in sizes.values()):
            return sizes
        return {
            role: size if size.replicas is None else replace(size, reason=Reason.PARTNER_NOT_READY)
            for role, size in sizes.items()
        }

    def _role_engine(self, role: Role, limits: Mapping[Role, EngineLimits]) -> RoleEngine:
        """Return the engine of a role."""
        slo = LatencyTargets(self.settings.ttft_ms, self.settings.itl_ms)
        return RoleEngine(self._models[role], limits[role], slo, self.settings.mode == "agg")

    def _bounded_targets(
        self, sizes: Mapping[Role, SizingRecord], ready: Mapping[Role, int]
    ) -> tuple[dict[Role, int] | None, Reason]:
        """Limit steps, apply minimums and ceiling.

        The result is a floor for load, or a proposal.
        """
        cold = any(size.replicas is None for size in sizes.values())
        step = self.settings.max_throughput_scaling_replicas
        bounded = {}
        for role, size in sizes.items():
            here = ready[role]
            wanted = here if cold or size.replicas is None else size.replicas
            wanted = max(wanted, self.allowance.minimums[role])
            # The step limit comes before the budget, so that a wrong forecast costs at most one
            # step.
            bounded[role] = min(max(wanted, here - step), here + step)
        bounded = self.allowance.with_minimums(bounded)
        fitted = self.allowance.fit_under_ceiling(ready, bounded)
        held = fitted == ready and bounded != ready
        # With the load loop on, the forecast only sets a floor, as the load loop sees sooner and
        # closer.
        if is_load_enabled(self.settings):
            self.floors = fitted
            return None, _reason_or_not_ready(
                cold, Reason.GPU_BUDGET_HOLD if held else Reason.SET_LOWER_BOUND
            )
        allowed = self.allowance.fit_step(ready, fitted)
        if allowed.counts == ready:
            hold = Reason.GPU_BUDGET_HOLD if held else Reason.NO_CHANGE
            return None if cold else dict(ready), _reason_or_not_ready(cold, allowed.reason or hold)
        return allowed.counts, _reason_or_not_ready(cold, Reason.SCALE)

    def _learn_misses(
        self, traffic: TrafficWindow, ready: Mapping[Role, int], limits: Mapping[Role, EngineLimits]
    ) -> None:
        """Compare the attainment measured by callers with the prediction for the same window."""
        role = self.allowance.roles[0]
        serves = role is Role.PREFILL or self.settings.mode == "agg"
        if self.settings.sizing != "queue" or traffic.ttft_met is None or not serves:
            return
        if not traffic.requests or not traffic.isl or traffic.duration_s <= 0.0:
            return
        shape = MeanRequest(traffic.isl, traffic.osl or 1.0, traffic.kv_hit_rate or 0.0)
        rate = traffic.requests / traffic.duration_s
        demand = SizedDemand(rate, shape, traffic, self.settings.attainment)
        expected = predict_attainment(demand, ready[role], self._role_engine(role, limits))
        if expected is None:
            return
        met = traffic.ttft_met
        if self.settings.mode == "agg" and traffic.itl_met is not None:
            met *= traffic.itl_met
        reachable = expected.reachable
        # Bounded, so that the ratio of misses never becomes negative: the correction adds 0.01 to
        # both.
        self.correction.observe_window(
            max(-0.01, reachable - met), max(0.0, reachable - expected.kept)
        )


def _whole_interval(traffic: TrafficWindow, settings: DeploymentSettings) -> TrafficWindow:
    """Scale a window's requests to a whole interval: points must cover equal times."""
    interval_s = settings.throughput_adjustment_interval_seconds
    if traffic.requests is None or traffic.duration_s <= 0.0 or traffic.duration_s == interval_s:
        return traffic
    return replace(traffic, requests=traffic.requests * interval_s / traffic.duration_s)


def _reason_or_not_ready(cold: bool, reason: Reason) -> Reason:
    """Return the reason, or that a model is not ready."""
    return Reason.MODEL_NOT_READY if cold else reason
