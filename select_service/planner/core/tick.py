"""Tick of a deployment: (TickInput, state) -> Effects.

Stages OBSERVE, PREDICT, PROPOSE, RECONCILE, CONSTRAIN, EXECUTE, without a clock: equal inputs lead
to equal state and equal effects.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from select_service.planner.core.diagnostics import TickDiagnostics
from select_service.planner.core.final_counts import (
    CountSettler,
    DesiredScale,
    FinalCounts,
    settle_without_stabiliser,
)
from select_service.planner.core.forecast_contracts import Forecaster
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.plugin_contracts import PluginContext, without_foreign_roles
from select_service.planner.core.prediction import apply_predictions
from select_service.planner.core.proposers.early_check import count_checks
from select_service.planner.core.proposers.load_loop import LoadLoop, LoadProposal, TrafficMetadata
from select_service.planner.core.proposers.throughput_loop import ThroughputLoop, ThroughputProposal
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import (
    BoundType,
    Proposal,
    ReconciledCounts,
    reconcile_proposals,
)
from select_service.planner.core.replicas.replica_counts import ReplicaCounts, ReplicaInventory
from select_service.planner.core.schedule import DueLoops, NextTick, TickSchedule
from select_service.planner.core.settings import (
    DeploymentSettings,
    is_load_enabled,
    is_throughput_enabled,
    replica_gpus,
    scaled_roles,
    with_reported_gpus,
    with_reserved_gpus,
)
from select_service.planner.core.stages import Stage
from select_service.planner.core.tick_input import (
    Role,
    TickInput,
    TrafficWindow,
    reported_gpus,
    usable_hit_rate,
)
from select_service.planner.core.tick_plan import (
    StageAnswers,
    StageRun,
    TickPlan,
    end_stages,
    find_pair_reasons,
    find_plugin_reasons,
    lower_to_floor,
    make_context,
    make_proposal,
    record_answers,
)
from select_service.planner.core.tick_recorder import TickRecorder

_Settings = TypeVar("_Settings", bound=DeploymentSettings)


class TickEffects(Struct, frozen=True, kw_only=True):
    """Effects of a tick.

    scale_to: replicas of roles that shall change, including lost replicas; None means no change
    wished:   the same, also in advisory mode
    replace:  lost workers to be replaced in their place
    """

    scale_to: dict[Role, int] | None
    wished: dict[Role, int] | None
    next_tick: NextTick
    diagnostics: TickDiagnostics
    replace: tuple[int, ...] = ()


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
        self.lost_gpus = 0
        """GPUs of lost replicas, which no other replica can use yet."""
        self._recorder = TickRecorder(models, self._inventory, self._throughput)
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

    def run_tick(self, tick_input: TickInput, *, acts: bool = True) -> TickEffects:
        """Run a tick with the recorded answers of plugins; times of ticks must not decrease.

        acts: as in `run_stages`
        """
        return self.finish_tick(end_stages(self.run_stages(tick_input, acts=acts)), None)

    def run_stages(
        self, tick_input: TickInput, asked: frozenset[Stage] = frozenset(), *, acts: bool = True
    ) -> StageRun:
        """Run the stages up to the cluster's budget.

        asked: stages at which the run pauses, yields a context and receives answers
        acts:  whether the decision will be carried out, so that a replacement counts as begun
        """
        plan = self._observe(tick_input, acts)
        counts_now = plan.counts_now
        if counts_now is None:
            return plan
        if plan.due.throughput:
            forecast = self._throughput.predict(tick_input.traffic, self._inventory.startup_s)
            if forecast is not None:
                plan = plan._replace(forecast=forecast)
                plan = yield from self._ask_plugins(Stage.PREDICT, plan, asked)
                forecast = apply_predictions(forecast, plan.tick_input.predictions)
                plan = plan._replace(forecast=forecast)
        plan = self._propose(plan, counts_now)
        plan = yield from self._ask_plugins(Stage.PROPOSE, plan, asked)
        plan = plan._replace(reconciled=self._reconcile(plan, counts_now))
        # After a rejection nothing is carried out, so there is nothing to constrain.
        if plan.reconciled.rejected is None:
            plan = yield from self._ask_plugins(Stage.CONSTRAIN, plan, asked)
            plan = plan._replace(reconciled=self._bound_counts(plan))
        return plan._replace(settled=self._constrain(plan, counts_now))

    def _ask_plugins(
        self, stage: Stage, plan: TickPlan, asked: frozenset[Stage]
    ) -> Generator[PluginContext, StageAnswers, TickPlan]:
        """Return the plan with the answers of plugins in its input."""
        if stage not in asked:
            return plan
        given = yield make_context(stage, plan, self.settings, self._inventory)
        return plan._replace(tick_input=record_answers(plan.tick_input, stage, given))

    def _observe(self, tick_input: TickInput, acts: bool) -> TickPlan:
        """Run OBSERVE: update replicas, GPUs, models and metadata."""
        due = self._schedule.due_loops(tick_input.now_s)
        # Replicas, GPUs and models are updated in every tick, even if no decision follows, so that
        # a later decision has no gap in its data.
        counts_now = self._inventory.observe_replicas(tick_input)
        quickest_s = min(map(self._inventory.startup_seconds_of, self.roles))
        self._schedule.checks = count_checks(self.settings, quickest_s)
        replaced: tuple[int, ...] = ()
        if counts_now is not None and acts and not self.settings.advisory:
            counts_now, replaced = self._replace_lost(tick_input.now_s, counts_now)
        self._count_gpus(tick_input, counts_now)
        self._update_models(tick_input, due)
        return TickPlan(tick_input, due, counts_now, replace=replaced)

    def _propose(self, plan: TickPlan, counts_now: ReplicaCounts) -> TickPlan:
        """Run PROPOSE: the builtin loops that are due."""
        if plan.due.throughput:
            plan = plan._replace(throughput=self._propose_throughput(plan, counts_now))
        elif plan.due.check:
            found = self._throughput.check_demand(
                plan.tick_input.traffic, self._compared_counts(counts_now), self._inventory.limits
            )
            plan = plan._replace(throughput=found)
        if plan.due.load:
            plan = plan._replace(load=self._propose_load(plan.tick_input, counts_now))
        return plan._replace(proposals=tuple(self._builtin_proposals(plan, counts_now)))

    def _replace_lost(
        self, now_s: float, standing: ReplicaCounts
    ) -> tuple[ReplicaCounts, tuple[int, ...]]:
        """Choose lost workers to replace; return the counts with their new replicas starting."""
        losses = self._inventory.losses
        roles = {w.worker_id: role for role, workers in losses.lost.items() for w in workers}
        # Replicas on the move may replace an earlier replica.
        may = {
            role: now.lost > 0 and not standing.is_changing for role, now in standing.roles.items()
        }
        replaced = losses.choose_replacement(now_s, may)
        return self._inventory.without_replaced(standing, replaced, roles), replaced

    def undo_replacement(self, worker_ids: Iterable[int]) -> None:
        """Count workers as lost again, as the platform did not begin to replace them."""
        self._inventory.losses.undo_replacement(worker_ids)

    def finish_tick(self, plan: TickPlan, counts: Mapping[Role, int] | None) -> TickEffects:
        """Run EXECUTE: return the effects of a tick.

        counts: replicas granted by the cluster; None means all as planned
        """
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
            diagnostics=self._recorder.record_tick(
                plan, final, self._tick_reasons(plan, cut), self.settings
            ),
            replace=() if self.settings.advisory else plan.replace,
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

    def _count_gpus(self, tick_input: TickInput, standing: ReplicaCounts | None) -> None:
        """Update the GPUs of replicas; a role without replicas keeps its last known number."""
        self._reported_gpus |= reported_gpus(tick_input.replicas)
        settings = self.complete_settings(self._given_settings)
        before = self.lost_gpus
        if standing is not None:
            lost = standing.lost
            self.lost_gpus = sum(lost[role] * replica_gpus(settings, role) for role in self.roles)
        if settings != self.settings or before != self.lost_gpus:
            self._apply_settings(settings)

    def _apply_settings(self, settings: DeploymentSettings) -> None:
        """Apply settings to all stages; GPUs of lost replicas are missing in the budget."""
        self.settings = settings
        budgeted = with_reserved_gpus(settings, self.lost_gpus)
        for part in (self._throughput, self._load, self._settler):
            part.settings = budgeted
            part.allowance = type(part.allowance)(budgeted)

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

    def _propose_throughput(self, plan: TickPlan, counts_now: ReplicaCounts) -> ThroughputProposal:
        """Run the throughput loop."""
        return self._throughput.propose(
            plan.tick_input.traffic,
            plan.forecast,
            self._compared_counts(counts_now),
            self._inventory.limits,
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

    def _builtin_proposals(self, plan: TickPlan, counts_now: ReplicaCounts) -> Iterator[Proposal]:
        """Yield the proposals of the builtin loops."""
        if plan.load.targets is not None:
            yield make_proposal("load", BoundType.SET, plan.load.targets)
        if plan.throughput.targets is not None:
            yield make_proposal("throughput", BoundType.SET, plan.throughput.targets)
        # Repeated in every tick: without it a tick without a load proposal would forget the
        # forecast.
        if self._has_floor:
            yield make_proposal("throughput", BoundType.AT_LEAST, self._throughput.floors)
        # As a proposal, not as an exception, so that constraints of plugins still apply.
        if waking := dict.fromkeys(self._roles_to_wake(plan.tick_input, counts_now), 1):
            yield make_proposal("throughput", BoundType.AT_LEAST, waking)

    def _reconcile(self, plan: TickPlan, counts_now: ReplicaCounts) -> ReconciledCounts:
        """Run RECONCILE: one count for each role; without a proposal the replicas stay."""
        given = without_foreign_roles(plan.tick_input.proposals, self.roles)
        baseline = {str(role): n for role, n in self._compared_counts(counts_now).items()}
        return reconcile_proposals([*given, *plan.proposals], baseline)

    def _bound_counts(self, plan: TickPlan) -> ReconciledCounts:
        """Return the reconciled counts within the constraints of plugins, which only bound them."""
        reconciled = plan.reconciled
        given = list(without_foreign_roles(plan.tick_input.constraints, self.roles))
        if not given:
            return reconciled
        upstream = {name: n for name, n in reconciled.targets.items() if n is not None}
        bounded = reconcile_proposals(given, upstream, set_allowed=False)
        return bounded.with_earlier(reconciled)

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

    def _constrain(self, plan: TickPlan, counts_now: ReplicaCounts) -> FinalCounts:
        """Run CONSTRAIN after the plugins: stabiliser, minimums and budgets."""
        tick_input, load, reconciled = plan.tick_input, plan.load, plan.reconciled
        why = self._why_held(reconciled)
        # A refused request is a certain observation, even if the totals of the window are unknown.
        if why is Reason.OBSERVATION_STALE and self._roles_to_wake(tick_input, counts_now):
            why = None
        targets = {Role(name): n for name, n in reconciled.targets.items() if n is not None}
        if why is not None:
            if self.settings.stabilise and targets:
                wish = self._desired_scale(plan, counts_now, targets)
                self._settler.note_desired(tick_input.now_s, wish, counts_now)
            return FinalCounts(self._compared_counts(counts_now), (why,), {})
        # Dynamo's planner compares with ready replicas, the stabiliser with running and starting.
        if not self.settings.stabilise:
            allowance = self._settler.allowance
            if given := plan.plugin_roles:
                # The builtin loops keep the minimums by themselves, plugins need not.
                lifted = allowance.with_minimums(self._compared_counts(counts_now) | targets)
                targets |= {role: lifted[role] for role in given}
            plainly = settle_without_stabiliser(allowance, targets, counts_now)
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
        spoken |= plan.plugin_roles
        if plan.throughput.reason is Reason.NO_TRAFFIC_DATA:
            spoken |= set(self.roles)  # without traffic, all replicas may be needed
        floors = plan.plugin_floors
        wished = dict(targets)
        if self._has_floor:
            least = {r: max(n, floors.get(r, 0)) for r, n in self._throughput.floors.items()}
            wished |= lower_to_floor(targets, counts_now, plan.load, least)
        exact, spare = dict(self._throughput.exact), dict(self._throughput.spare)
        restored = dict(self._inventory.losses.floors)
        # What the forecast needs must not keep up a count that a plugin has lowered.
        for role in plan.plugin_roles:
            exact[role] = min(exact[role], targets[role])
            spare[role] = min(spare[role], targets[role])
            restored[role] = min(restored.get(role, 0), targets[role])
        return DesiredScale(
            {role: n for role, n in wished.items() if role in spoken} or None,
            spare,
            exact,
            self._why_unknown(plan.tick_input),
            floors,
            restored,
        )

    def _why_held(self, reconciled: ReconciledCounts) -> Reason | None:
        """Return why the counts must not change, or None.

        Reported GPUs can make minimums infeasible.
        """
        if reconciled.rejected is not None:
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
        # The platform's number includes the lost replicas, which still have their places.
        lost = plan.counts_now.lost
        changed = {role: n + lost[role] for role, n in final.items() if n != now[role]}
        return changed or None, final

    def _tick_reasons(self, plan: TickPlan, cut: bool) -> tuple[Reason, ...]:
        """Return the reasons of a tick, in the order of the stages.

        cut: whether the cluster granted less than planned
        """
        reasons = () if plan.settled is None else plan.settled.reasons
        if plan.counts_now is None:
            reasons = (Reason.REPLICAS_UNKNOWN,)
        elif self._roles_to_wake(plan.tick_input, plan.counts_now):
            reasons = (Reason.WAKE_UP, *reasons)
        if plan.counts_now is not None and any(plan.counts_now.lost.values()):
            reasons = tuple(dict.fromkeys((Reason.CAPACITY_LOST, *reasons)))
        if plan.replace:
            reasons = (Reason.REPLACE, *reasons)
        reasons = (*find_plugin_reasons(plan, self.roles), *reasons)
        if cut:
            reasons = (*reasons, Reason.CLUSTER_BUDGET)
        reasons = (*reasons, *find_pair_reasons(plan, self.settings))
        if self.settings.advisory:
            reasons = (*reasons, Reason.ADVISORY)
        return reasons
