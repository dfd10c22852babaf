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
from select_service.planner.core.proposers.early_check import raise_forecast
from select_service.planner.core.proposers.queue_sizing import MissCorrection
from select_service.planner.core.proposers.throughput_proposer import (
    RoleEngine,
    SizedDemand,
    make_demand,
    predict_attainment,
    size_role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings, is_load_enabled, wanted_spares
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
        self._recent: TrafficWindow | None = None
        """Last known window with the distributions of the recent windows."""
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

    def predict(self, traffic: TrafficWindow | None, lead_s: float) -> ExpectedTraffic | None:
        """Return the builtin prediction, or None if the window is unknown.

        Called once an interval, before `propose`.
        """
        # An unknown window must not look like a drop to zero, so the forecaster gets a gap.
        if traffic is None or traffic.requests is None:
            self.unknown_windows += 1
            self._forecaster.skip()
            return None
        self.unknown_windows = 0
        self._recent = self._distributions.add_window(traffic)
        self._forecaster.add(_whole_interval(self._recent, self.settings))
        return self._forecaster.predict(lead_s if self.settings.lead else 0.0)

    def propose(
        self,
        traffic: TrafficWindow | None,
        forecast: ExpectedTraffic | None,
        ready: Mapping[Role, int],
        limits: Mapping[Role, EngineLimits],
        moving: bool,
    ) -> ThroughputProposal:
        """Return the proposal; called once an interval, after `predict`.

        forecast: prediction including the answers of plugins; None if the window is unknown
        moving:   whether a change is under way
        """
        if traffic is None or forecast is None or self._recent is None:
            return ThroughputProposal(None, Reason.NO_TRAFFIC_DATA)
        self.forecast = forecast
        # The prediction assumes a constant number of replicas over the whole window.
        if not moving and self._last == ready:
            self._learn_misses(traffic, ready, limits)
        self._last = None if moving else dict(ready)
        demand = make_demand(forecast, self._recent, self.settings, self.correction.miss_ratio)
        self.is_idle = demand is not None and demand.rate <= 0.0
        if demand is None:
            return ThroughputProposal(None, Reason.NO_TRAFFIC_DATA, forecast=forecast.to_record())
        sizes = self._size_roles(demand, limits)
        targets, reason = self._bounded_targets(sizes, ready)
        return ThroughputProposal(targets, reason, sizes, forecast.to_record())

    def check_demand(
        self,
        traffic: TrafficWindow | None,
        ready: Mapping[Role, int],
        limits: Mapping[Role, EngineLimits],
    ) -> ThroughputProposal:
        """Return the proposal for a demand above the forecast, before the interval ends.

        It never lowers a number; without an excess there is no opinion.
        """
        last, interval_s = self._recent, self.settings.throughput_adjustment_interval_seconds
        if traffic is None or self.forecast is None or last is None:
            return ThroughputProposal()
        raised = raise_forecast(self.forecast, traffic, interval_s)
        demand = None
        if raised is not None:
            demand = make_demand(raised, last, self.settings, self.correction.miss_ratio)
        if raised is None or demand is None:
            return ThroughputProposal()
        floors = self.floors
        sizes = self._size_roles(demand, limits)
        targets, reason = self._bounded_targets(sizes, ready)
        self.floors = {role: max(floors[role], self.floors[role]) for role in floors}
        higher = {role: n for role, n in (targets or {}).items() if n > ready[role]}
        return ThroughputProposal(higher or None, reason, sizes, raised.to_record())

    def _size_roles(
        self, demand: SizedDemand, limits: Mapping[Role, EngineLimits]
    ) -> dict[Role, SizingRecord]:
        """Size all roles; while a role's model is not ready the other keeps its count.

        Unknown answers do not hold prefill, which does not depend on them.
        """
        sizes = {
            role: size_role(demand, role, self._role_engine(role, limits), self.settings)
            for role in self.allowance.roles
        }
        for role, size in sizes.items():
            self.exact[role] = size.exact or 0.0
            if size.spare is not None:
                self.spare[role] = max(size.spare, self.allowance.minimums[role])
        if not any(map(_holds_partner, sizes.values())):
            return sizes
        return {
            role: size if size.replicas is None else replace(size, reason=Reason.PARTNER_NOT_READY)
            for role, size in sizes.items()
        }

    def _role_engine(self, role: Role, limits: Mapping[Role, EngineLimits]) -> RoleEngine:
        """Return the engine of a role."""
        slo = LatencyTargets(self.settings.ttft_ms, self.settings.itl_ms)
        prefill = self._models.get(Role.PREFILL) if self.settings.mode == "disagg" else None
        both = self.settings.mode == "agg"
        return RoleEngine(self._models[role], limits[role], slo, both, prefill)

    def _bounded_targets(
        self, sizes: Mapping[Role, SizingRecord], ready: Mapping[Role, int]
    ) -> tuple[dict[Role, int] | None, Reason]:
        """Limit steps, apply minimums and ceiling.

        The result is a floor for load, or a proposal.
        """
        unsized = [size for size in sizes.values() if size.replicas is None]
        # The reason of the role that holds all, else of a role that holds only itself.
        why = next((each.reason for each in (*filter(_holds_partner, unsized), *unsized)), None)
        cold = any(map(_holds_partner, unsized)) or len(unsized) == len(sizes)
        step = self.settings.max_throughput_scaling_replicas
        bounded = {}
        for role, size in sizes.items():
            here = ready[role]
            wanted = here if cold or size.replicas is None else size.replicas
            wanted += 0 if cold else wanted_spares(self.settings, wanted)
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
            reason = Reason.GPU_BUDGET_HOLD if held else Reason.SET_LOWER_BOUND
            return None, why if cold and why is not None else reason
        allowed = self.allowance.fit_step(ready, fitted)
        if allowed.counts == ready:
            hold = Reason.GPU_BUDGET_HOLD if held else Reason.NO_CHANGE
            targets = None if cold else _sized_targets(sizes, ready, ready)
            return targets, why or allowed.reason or hold
        return _sized_targets(sizes, ready, allowed.counts), (why if cold else None) or Reason.SCALE

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
        # First tokens that wait for links teach nothing about the number of replicas.
        if traffic.pairs is not None and traffic.pairs.is_link_bound:
            return
        shape = MeanRequest(traffic.isl, traffic.osl or 1.0, traffic.kv_hit_rate or 0.0)
        rate = traffic.requests / traffic.duration_s
        demand = SizedDemand(rate, shape, traffic, self.settings.attainment)
        if role is Role.PREFILL:
            demand = demand.of_prefill_ranks()
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


def _holds_partner(size: SizingRecord) -> bool:
    """Return whether a role that cannot be sized also holds the other role."""
    return size.replicas is None and size.reason is not Reason.NO_OUTPUT_LENGTHS


def _sized_targets(
    sizes: Mapping[Role, SizingRecord], ready: Mapping[Role, int], counts: Mapping[Role, int]
) -> dict[Role, int]:
    """Return the counts of sized roles; others only if minimum or budget change them.

    A role without a size has no opinion, which differs from the wish to keep its count.
    """
    sized = any(size.replicas is not None for size in sizes.values())
    return {
        role: count
        for role, count in counts.items()
        if not sized or sizes[role].replicas is not None or count != ready[role]
    }
