"""Tick of a deployment: (TickInput, state) -> Effects.

Stages OBSERVE, PREDICT, PROPOSE, RECONCILE, CONSTRAIN, EXECUTE, without a clock: equal inputs lead
to equal state and equal effects.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.diagnostics import (
    RoleDiagnostics,
    TickDiagnostics,
)
from select_service.planner.core.final_counts import (
    CountSettler,
    DesiredScale,
    FinalCounts,
    settle_without_stabiliser,
)
from select_service.planner.core.forecast_contracts import Forecaster
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposal_merge import (
    LOAD_PRIORITY,
    THROUGHPUT_PRIORITY,
    BoundType,
    MergeResult,
    Proposal,
    ProposedCount,
    merge_proposals,
)
from select_service.planner.core.proposers.load_loop import LoadLoop, LoadProposal, TrafficMetadata
from select_service.planner.core.proposers.throughput_loop import ThroughputLoop, ThroughputProposal
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.replica_counts import ReplicaCounts, ReplicaInventory
from select_service.planner.core.schedule import DueLoops, NextTick, TickSchedule
from select_service.planner.core.settings import (
    DeploymentSettings,
    is_load_enabled,
    is_throughput_enabled,
    replica_gpus,
    scaled_roles,
    with_reported_gpus,
)
from select_service.planner.core.tick_input import (
    Role,
    TickInput,
    TrafficWindow,
    reported_gpus,
    usable_hit_rate,
)

_Settings = TypeVar("_Settings", bound=DeploymentSettings)


class TickEffects(Struct, frozen=True, kw_only=True):
    """Effects of a tick.

    scale_to: replicas of roles that shall change; None means no change
    wished:   the same, also in advisory mode
    """

    scale_to: dict[Role, int] | None
    wished: dict[Role, int] | None
    next_tick: NextTick
    diagnostics: TickDiagnostics


class TickPlan(NamedTuple):
    """Plan of a deployment before the cluster's budget is applied.

    counts_now, settled: None if the replicas are unknown
    """

    tick_input: TickInput
    due: DueLoops
    counts_now: ReplicaCounts | None = None
    throughput: ThroughputProposal = ThroughputProposal()
    load: LoadProposal = LoadProposal()
    merged: MergeResult = MergeResult(targets={})
    settled: FinalCounts | None = None


class PlannedDeployment:
    """State of a deployment that outlives a tick. Not thread-safe."""

    def __init__(
        self,
        settings: DeploymentSettings,
        models: Mapping[Role, EngineModel],
        forecaster: Forecaster,
        start_s: float,
    ) -> None:
        """Create the stages. models: performance models of every role of the mode"""
        self.settings = settings
        """Settings as given, completed by the platform's GPUs of replicas."""
        self._given_settings = settings
        self._reported_gpus: dict[Role, int] = {}
        self.roles = scaled_roles(settings)
        self._models = models
        self._schedule = TickSchedule(settings, start_s)
        self._inventory = ReplicaInventory(settings)
        self._throughput = ThroughputLoop(settings, models, forecaster)
        self._load = LoadLoop(settings, models)
        self._settler = CountSettler(settings)
        self._hit_rate = 0.0
        self._accept_length = 1.0

    @property
    def next_tick(self) -> NextTick:
        """Next tick, also before the first."""
        return self._schedule.next_after(self._schedule.last_s)

    @property
    def last_s(self) -> float:
        """Time of the last tick; before the first the start of the schedule."""
        return self._schedule.last_s

    def tick_needs(self, now_s: float) -> NextTick:
        """Return the inputs that a tick at this time needs."""
        return self._schedule.tick_needs(now_s)

    def run_tick(self, tick_input: TickInput) -> TickEffects:
        """Run a tick; times of ticks must not decrease."""
        return self.finish_tick(self.plan_tick(tick_input), None)

    def plan_tick(self, tick_input: TickInput) -> TickPlan:
        """Run a tick up to the cluster's budget."""
        due = self._schedule.due_loops(tick_input.now_s)
        # Replicas, GPUs and models are updated in every tick, even if no decision follows, so that
        # a later decision has no gap in its data.
        standing = self._inventory.observe_replicas(tick_input)
        self._count_gpus(tick_input)
        self._update_models(tick_input, due)
        if standing is None:
            return TickPlan(tick_input, due)
        plan = TickPlan(tick_input, due, standing)
        if due.throughput:
            plan = plan._replace(throughput=self._propose_throughput(tick_input, standing))
        if due.load:
            plan = plan._replace(load=self._propose_load(tick_input, standing))
        plan = plan._replace(merged=self._merge_proposals(plan, standing))
        return plan._replace(settled=self._settle_counts(plan, standing))

    def finish_tick(self, plan: TickPlan, counts: Mapping[Role, int] | None) -> TickEffects:
        """Complete a tick. counts: replicas granted by the cluster; None means all as planned"""
        wished, final = self._changed_counts(plan, counts)
        cut = counts is not None and plan.settled is not None and counts != plan.settled.counts
        due = plan.due
        if plan.counts_now is None:  # the throughput loop stays due
            due = DueLoops(load=due.load, throughput=False)
        is_asleep = plan.counts_now is not None and plan.counts_now.is_asleep
        next_tick = self._schedule.record_tick(plan.tick_input.now_s, due, is_asleep=is_asleep)
        return TickEffects(
            scale_to=None if self.settings.advisory else wished,
            wished=wished,
            next_tick=next_tick,
            diagnostics=self._tick_diagnostics(plan, final, cut),
        )

    def reconfigure(self, settings: DeploymentSettings) -> None:
        """Change bounds and switches of the same mode; learnt state is kept.

        Raises ValueError for another mode, and then changes nothing.
        """
        if scaled_roles(settings) != self.roles or settings.mode != self.settings.mode:
            raise ValueError(f"mode {self.settings.mode} cannot become {settings.mode}")
        self._given_settings = settings
        self._apply_settings(self.complete_settings(settings))

    def complete_settings(self, settings: _Settings) -> _Settings:
        """Return the settings completed by the platform's GPUs of replicas."""
        return with_reported_gpus(settings, self._reported_gpus)

    def _count_gpus(self, tick_input: TickInput) -> None:
        """Update the GPUs of replicas; a role without replicas keeps its last known number."""
        self._reported_gpus |= reported_gpus(tick_input.replicas)
        settings = self.complete_settings(self._given_settings)
        if settings != self.settings:
            self._apply_settings(settings)

    def _apply_settings(self, settings: DeploymentSettings) -> None:
        """Apply settings to all stages."""
        self.settings = settings
        for part in (self._throughput, self._load, self._settler):
            part.settings = settings
            part.allowance = type(part.allowance)(settings)

    def _update_models(self, tick_input: TickInput, due: DueLoops) -> None:
        """Update models and metadata, also while no proposal is possible."""
        if due.load and self.settings.optimization_target == "sla":
            for role in self.roles:
                passes = [
                    each for each in (tick_input.passes or {}).get(role, ()) if not each.booked
                ]
                if passes:
                    self._models[role].observe_passes(passes, tick_input.now_s)
        if tick_input.traffic is None or not (
            due.throughput or not is_throughput_enabled(self.settings)
        ):
            return
        if self.settings.optimization_target == "sla":
            for role in self.roles:
                self._models[role].observe_traffic(tick_input.traffic, tick_input.now_s)
        self._update_metadata(tick_input.traffic)

    def _update_metadata(self, traffic: TrafficWindow) -> None:
        """Update the last known hit rate and accept length."""
        if traffic.kv_hit_rate is not None:
            self._hit_rate = usable_hit_rate(traffic.kv_hit_rate)
        if traffic.accept_length is not None:
            most = self.settings.speculative_nextn + 1.0
            self._accept_length = min(max(traffic.accept_length, 1.0), most)

    def _compared_counts(self, counts_now: ReplicaCounts) -> dict[Role, int]:
        """Return the replicas that proposals are compared with.

        The reference takes ready replicas, the stabiliser those that run or start.
        """
        return counts_now.running_or_starting if self.settings.stabilise else counts_now.ready

    def _propose_throughput(
        self, tick_input: TickInput, counts_now: ReplicaCounts
    ) -> ThroughputProposal:
        """Run the throughput loop."""
        return self._throughput.propose(
            tick_input.traffic,
            self._compared_counts(counts_now),
            self._inventory.limits,
            self._inventory.startup_s,
            counts_now.is_changing,
        )

    def _propose_load(self, tick_input: TickInput, counts_now: ReplicaCounts) -> LoadProposal:
        """Run the load loop."""
        heard = TrafficMetadata(
            self._hit_rate, self._accept_length, self._throughput.forecast is not None
        )
        return self._load.propose(
            tick_input, counts_now, self._throughput.floors, self._inventory.limits, heard
        )

    def _merge_proposals(self, plan: TickPlan, counts_now: ReplicaCounts) -> MergeResult:
        """Merge all proposals; roles without a proposal keep their replicas."""
        tick_input, baseline = plan.tick_input, self._compared_counts(counts_now)
        proposals = list(tick_input.proposals)
        if plan.load.targets is not None:
            proposals.append(_make_proposal("load", BoundType.SET, plan.load.targets))
        if plan.throughput.targets is not None:
            proposals.append(_make_proposal("throughput", BoundType.SET, plan.throughput.targets))
        # Repeated in every tick: without it a tick without a load proposal would forget the
        # forecast.
        if self._has_floor:
            floors = self._throughput.floors
            proposals.append(_make_proposal("throughput", BoundType.AT_LEAST, floors))
        # As a proposal, not as an exception, so that external constraints still apply.
        if waking := dict.fromkeys(self._roles_to_wake(tick_input, counts_now), 1):
            proposals.append(_make_proposal("throughput", BoundType.AT_LEAST, waking))
        merged = merge_proposals(proposals, {str(role): n for role, n in baseline.items()})
        if merged.rejected is not None or not tick_input.constraints:
            return merged
        upstream = {name: n for name, n in merged.targets.items() if n is not None}
        # Constraints see the merged result of all proposals, and may only bound it.
        bounded = merge_proposals(tick_input.constraints, upstream, set_allowed=False)
        return replace(bounded, final_from=bounded.final_from or merged.final_from)

    def _roles_to_wake(self, tick_input: TickInput, counts_now: ReplicaCounts) -> list[Role]:
        """Return the roles that must not stay at zero: requests arrive and no replica is ready.

        Neither a model nor a whole window is needed: one refused request is certain.
        """
        traffic = tick_input.traffic
        if not self.settings.load_guards or traffic is None:
            return []
        if not (traffic.requests or traffic.has_refusals_or_queue):
            return []
        minimums = self._settler.allowance.minimums
        return [r for r, now in counts_now.roles.items() if not now.ready and not minimums[r]]

    @property
    def _has_floor(self) -> bool:
        """Whether the floor counts without an opinion of load.

        Dynamo's planner drops the floor then.
        """
        known = self._throughput.forecast is not None
        return known and is_load_enabled(self.settings) and self.settings.load_guards

    def _settle_counts(self, plan: TickPlan, counts_now: ReplicaCounts) -> FinalCounts:
        """Return the final counts of a tick."""
        tick_input, load, merged = plan.tick_input, plan.load, plan.merged
        why = self._why_held(merged)
        # A refused request is a certain observation, even if the totals of the window are unknown.
        if why is Reason.OBSERVATION_STALE and self._roles_to_wake(tick_input, counts_now):
            why = None
        targets = {Role(name): n for name, n in merged.targets.items() if n is not None}
        if why is not None:
            if self.settings.stabilise and targets:
                wish = self._desired_scale(plan, counts_now, targets)
                self._settler.note_desired(tick_input.now_s, wish, counts_now)
            return FinalCounts(self._compared_counts(counts_now), (why,), {})
        # Dynamo's planner compares with ready replicas, the stabiliser with running and starting.
        if not self.settings.stabilise:
            plainly = settle_without_stabiliser(self._settler.allowance, targets, counts_now)
            if load.partial:
                kept = {**counts_now.ready, **(load.targets or {})}
                reasons = (Reason.STARTUP_DOWN,) if load.targets else ()
                return plainly._replace(counts=kept, reasons=reasons)
            return plainly
        wish = self._desired_scale(plan, counts_now, targets)
        return self._settler.settle_counts(tick_input.now_s, wish, counts_now)

    def _desired_scale(
        self, plan: TickPlan, counts_now: ReplicaCounts, targets: Mapping[Role, int]
    ) -> DesiredScale:
        """Return the desired scale of roles with an opinion."""
        # A role without any opinion must not enter the stabiliser: "no opinion" would count as a
        # need for the present number, and hold up steps down for a whole window.
        spoken = {role for role, n in targets.items() if n != counts_now.running_or_starting[role]}
        spoken |= set(plan.throughput.targets or ()) | set(plan.load.targets or ())
        if plan.throughput.reason is Reason.NO_TRAFFIC_DATA:
            spoken |= set(self.roles)  # without traffic, all replicas may be needed
        wished = self._lower_to_floor(targets, counts_now, plan.load)
        return DesiredScale(
            {role: n for role, n in wished.items() if role in spoken} or None,
            self._throughput.spare,
            self._throughput.exact,
            self._why_unknown(plan.tick_input),
        )

    def _why_held(self, merged: MergeResult) -> Reason | None:
        """Return why the counts must not change, or None.

        Reported GPUs can make minimums infeasible.
        """
        if merged.rejected is not None:
            return Reason.REJECTED
        if self._throughput.is_stale:
            return Reason.OBSERVATION_STALE
        feasible = self._settler.allowance.budget.is_feasible
        return None if feasible else Reason.GPU_BUDGET_HOLD

    def _why_unknown(self, tick_input: TickInput) -> Reason | None:
        """Return why demand is unknown, or None.

        Unknown is traffic that was requested and not read, and an unmeasured excess over forecasts.
        """
        # A tick that did not request traffic has none, which is not a failure.
        asked = self._schedule.tick_needs(tick_input.now_s).traffic_s is not None
        heard = tick_input.traffic is not None and tick_input.traffic.requests is not None
        if self._throughput.unknown_windows or (asked and not heard):
            return Reason.NO_TRAFFIC_DATA
        forecast = self._throughput.forecast
        if forecast is None or forecast.proven or self._throughput.is_idle:
            return None
        return Reason.NO_FORECAST_YET

    def _lower_to_floor(
        self, targets: Mapping[Role, int], counts_now: ReplicaCounts, load: LoadProposal
    ) -> dict[Role, int]:
        """Lower the load loop's targets to the forecast's floor, as load steps by one replica only.

        As separate targets, each step would restart the scale-down window.
        """
        found = dict(targets)
        if load.targets is None or not self._has_floor:
            return found
        for role, said in load.targets.items():
            if found[role] == said < counts_now.running_or_starting[role]:
                # As separate targets, each step of one replica would restart the scale-down window.
                found[role] = min(said, self._throughput.floors[role])
        return found

    def _changed_counts(
        self, plan: TickPlan, counts: Mapping[Role, int] | None
    ) -> tuple[dict[Role, int] | None, dict[Role, int]]:
        """Return the changed counts, and all counts."""
        if plan.settled is None or plan.counts_now is None:
            return None, {}
        final = dict(plan.settled.counts if counts is None else counts)
        now = self._compared_counts(plan.counts_now)
        if not self.settings.stabilise:
            if plan.load.partial:
                return dict(plan.load.targets or {}) or None, final
            return (final if final != now else None), final
        changed = {role: n for role, n in final.items() if n != now[role]}
        return changed or None, final

    def _tick_diagnostics(
        self, plan: TickPlan, final: Mapping[Role, int], cut: bool
    ) -> TickDiagnostics:
        """Return the diagnostics of a tick."""
        reasons = () if plan.settled is None else plan.settled.reasons
        if plan.counts_now is None:
            reasons = (Reason.REPLICAS_UNKNOWN,)
        elif self._roles_to_wake(plan.tick_input, plan.counts_now):
            reasons = (Reason.WAKE_UP, *reasons)
        if plan.merged.final_from is not None:
            reasons = (Reason.OVERRIDDEN, *reasons)
        if cut:
            reasons = (*reasons, Reason.CLUSTER_BUDGET)
        if self.settings.advisory:
            reasons = (*reasons, Reason.ADVISORY)
        sizes = plan.throughput.sizes.values()
        traffic = plan.tick_input.traffic
        return TickDiagnostics(
            now_s=plan.tick_input.now_s,
            run_load=plan.due.load,
            run_throughput=plan.due.throughput,
            roles={role: self._role_diagnostics(role, plan, final) for role in self.roles},
            load_reason=plan.load.reason,
            throughput_reason=plan.throughput.reason,
            forecast=plan.throughput.forecast,
            reasons=reasons,
            rejected=plan.merged.rejected,
            set_dropped=plan.merged.set_dropped,
            stale=self._throughput.is_stale,
            slo_out_of_reach=any(size.reason is Reason.SLO_OUT_OF_REACH for size in sizes),
            miss_correction=self._throughput.correction.miss_ratio,
            ttft_met=None if traffic is None else traffic.ttft_met,
            itl_met=None if traffic is None else traffic.itl_met,
        )

    def _role_diagnostics(
        self, role: Role, plan: TickPlan, final: Mapping[Role, int]
    ) -> RoleDiagnostics:
        """Return the diagnostics of a role."""
        now = None if plan.counts_now is None else plan.counts_now.roles[role]
        return RoleDiagnostics(
            num_gpu=replica_gpus(self.settings, role),
            ready=0 if now is None else now.ready,
            starting=0 if now is None else now.starting,
            floor=self._throughput.floors[role],
            model_source=self._models[role].source,
            sized=plan.throughput.sizes.get(role),
            load=plan.load.roles.get(role),
            merged=plan.merged.targets.get(str(role)),
            stabilised=None if plan.settled is None else plan.settled.stabilised.get(role),
            final=final.get(role),
            pending_s=0.0 if now is None else now.waiting.pending_s,
            startup_s=self._inventory.startup_seconds_of(role),
        )


def _make_proposal(source: str, kind: BoundType, counts: Mapping[Role, int]) -> Proposal:
    """Return a builtin proposal. source: `load` or `throughput`"""
    return Proposal(
        source=source,
        priority=LOAD_PRIORITY if source == "load" else THROUGHPUT_PRIORITY,
        targets=tuple(ProposedCount(str(role), kind, n) for role, n in counts.items()),
    )
