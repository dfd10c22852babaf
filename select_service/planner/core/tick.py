"""One tick of one deployment: (TickInput, state) -> Effects.

OBSERVE, PREDICT, PROPOSE, RECONCILE, CONSTRAIN, EXECUTE, without a clock: a deployment that is told
the same inputs again is in the same state again, and says the same.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.contracts import Forecaster
from select_service.planner.core.diagnostics import (
    Diagnostics,
    Loaded,
    RoleDiagnostics,
)
from select_service.planner.core.inputs import (
    Role,
    TickInput,
    Traffic,
    gpus_said,
    hit_rate_used,
)
from select_service.planner.core.load_stage import Heard, LoadStage, Opinion
from select_service.planner.core.merge import (
    LOAD_PRIORITY,
    THROUGHPUT_PRIORITY,
    Bound,
    Merged,
    Proposal,
    Target,
    merge,
)
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.reasons import Reason
from select_service.planner.core.schedule import (
    Due,
    NextTick,
    Schedule,
    load_on,
    throughput_on,
)
from select_service.planner.core.settings import Settings, gpus_of, roles_of, with_gpus
from select_service.planner.core.settle import Settled, Settler, Wish, settle_plainly
from select_service.planner.core.standing import Inventory, Standing
from select_service.planner.core.throughput_stage import Thought, ThroughputStage

_Settings = TypeVar("_Settings", bound=Settings)


class Effects(Struct, frozen=True, kw_only=True):
    """scale_to: replicas of roles that shall change; None: nothing is scaled.

    wished: the same whether or not the deployment is only advised
    """

    scale_to: dict[Role, int] | None
    wished: dict[Role, int] | None
    next_tick: NextTick
    diagnostics: Diagnostics


class Plan(NamedTuple):
    """What a deployment would do, before others are asked. counts: all roles; standing: now"""

    told: TickInput
    due: Due
    standing: Standing | None
    thought: Thought | None
    opinion: Opinion | None
    merged: Merged | None
    settled: Settled | None


class Deployment:
    """All that outlives a tick. Not to be shared between threads."""

    def __init__(
        self,
        settings: Settings,
        models: Mapping[Role, EngineModel],
        forecaster: Forecaster,
        start_s: float,
    ) -> None:
        """models: of every role of the mode"""
        self.settings = settings
        """As given, with the GPUs of replicas that the platform has said."""
        self._given = settings
        self._gpus_said: dict[Role, int] = {}
        self.roles = roles_of(settings)
        self._models = models
        self._schedule = Schedule(settings, start_s)
        self._inventory = Inventory(settings)
        self._throughput = ThroughputStage(settings, models, forecaster)
        self._load = LoadStage(settings, models)
        self._settler = Settler(settings)
        self._hit_rate = 0.0
        self._accept_length = 1.0

    @property
    def next_tick(self) -> NextTick:
        """The first one, before any."""
        return self._schedule.next_after(self._schedule.last_s)

    @property
    def last_s(self) -> float:
        """Of the last tick; before the first one where its schedule begins."""
        return self._schedule.last_s

    def needs(self, now_s: float) -> NextTick:
        """What a tick that runs now has to be told."""
        return self._schedule.needs(now_s)

    def tick(self, told: TickInput) -> Effects:
        """Times of ticks never go back."""
        return self.finish(self.plan(told), None)

    def plan(self, told: TickInput) -> Plan:
        """Everything but the share of a cluster."""
        due = self._schedule.due(told.now_s)
        standing = self._inventory.observe(told)
        self._count_gpus(told)
        self._learn(told, due)
        if standing is None:
            return Plan(told, due, None, None, None, None, None)
        thought = self._think(told, standing) if due.throughput else None
        opinion = self._listen(told, standing) if due.load else None
        merged = self._merged(told, standing, thought, opinion)
        settled = self._settled(told, standing, merged, thought, opinion)
        return Plan(told, due, standing, thought, opinion, merged, settled)

    def finish(self, plan: Plan, counts: Mapping[Role, int] | None) -> Effects:
        """counts: what the cluster leaves of what was planned; None: all of it."""
        wished, final = self._wished(plan, counts)
        cut = counts is not None and plan.settled is not None and counts != plan.settled.counts
        due = plan.due
        if plan.standing is None:  # the forecast's turn is not used up
            due = Due(load=due.load, throughput=False)
        is_asleep = plan.standing is not None and plan.standing.is_asleep
        next_tick = self._schedule.ran(plan.told.now_s, due, is_asleep=is_asleep)
        return Effects(
            scale_to=None if self.settings.advisory else wished,
            wished=wished,
            next_tick=next_tick,
            diagnostics=self._diagnostics(plan, final, cut),
        )

    def reconfigure(self, settings: Settings) -> None:
        """Bounds and switches of the same mode; what was learnt stays.

        Raises ValueError for another mode, and changes nothing.
        """
        if roles_of(settings) != self.roles or settings.mode != self.settings.mode:
            raise ValueError(f"mode {self.settings.mode} cannot become {settings.mode}")
        self._given = settings
        self._use(self.completed(settings))

    def completed(self, settings: _Settings) -> _Settings:
        """With the GPUs of replicas that the platform has said."""
        return with_gpus(settings, self._gpus_said)

    def _count_gpus(self, told: TickInput) -> None:
        """A role without replicas may say nothing: what it said before counts."""
        self._gpus_said |= gpus_said(told.replicas)
        settings = self.completed(self._given)
        if settings != self.settings:
            self._use(settings)

    def _use(self, settings: Settings) -> None:
        self.settings = settings
        for part in (self._throughput, self._load, self._settler):
            part.settings = settings
            part.allowance = type(part.allowance)(settings)

    def _learn(self, told: TickInput, due: Due) -> None:
        """Models and metadata, also while nothing may be proposed."""
        if due.load and self.settings.optimization_target == "sla":
            for role in self.roles:
                passes = [each for each in (told.passes or {}).get(role, ()) if not each.booked]
                if passes:
                    self._models[role].observe(passes, told.now_s)
        if told.traffic is None or not (due.throughput or not throughput_on(self.settings)):
            return
        if self.settings.optimization_target == "sla":
            for role in self.roles:
                self._models[role].observe_traffic(told.traffic, told.now_s)
        self._hear(told.traffic)

    def _hear(self, traffic: Traffic) -> None:
        if traffic.kv_hit_rate is not None:
            self._hit_rate = hit_rate_used(traffic.kv_hit_rate)
        if traffic.accept_length is not None:
            most = self.settings.speculative_nextn + 1.0
            self._accept_length = min(max(traffic.accept_length, 1.0), most)

    def _think(self, told: TickInput, standing: Standing) -> Thought:
        current = standing.have if self.settings.stabilise else standing.ready
        return self._throughput.think(
            told.traffic,
            current,
            self._inventory.limits,
            self._inventory.startup_s,
            standing.moving,
        )

    def _listen(self, told: TickInput, standing: Standing) -> Opinion:
        heard = Heard(self._hit_rate, self._accept_length, self._throughput.forecast is not None)
        return self._load.think(
            told, standing, self._throughput.floors, self._inventory.limits, heard
        )

    def _merged(
        self,
        told: TickInput,
        standing: Standing,
        thought: Thought | None,
        opinion: Opinion | None,
    ) -> Merged:
        """What is there, where nobody has an opinion."""
        baseline = standing.have if self.settings.stabilise else standing.ready
        proposals = list(told.proposals)
        if opinion is not None and opinion.targets is not None:
            proposals.append(_proposal("load", LOAD_PRIORITY, opinion.targets))
        if thought is not None and thought.targets is not None:
            proposals.append(_proposal("throughput", THROUGHPUT_PRIORITY, thought.targets))
        if self._floor_stands:
            proposals.append(_floor(self._throughput.floors))
        if waking := self._waking(told, standing):
            proposals.append(_floor(dict.fromkeys(waking, 1)))
        merged = merge(proposals, {str(role): n for role, n in baseline.items()})
        if merged.rejected is not None or not told.constraints:
            return merged
        upstream = {name: n for name, n in merged.targets.items() if n is not None}
        bounded = merge(told.constraints, upstream, set_allowed=False)
        return replace(bounded, final_from=bounded.final_from or merged.final_from)

    def _waking(self, told: TickInput, standing: Standing) -> list[Role]:
        """Return the roles that must not stay at zero: somebody asks, and nothing is ready.

        Neither a model nor a whole window is needed: one refused request is certain.
        """
        traffic = told.traffic
        if not self.settings.load_guards or traffic is None:
            return []
        if not (traffic.requests or traffic.is_turned_away):
            return []
        minimums = self._settler.allowance.minimums
        return [r for r, now in standing.roles.items() if not now.ready and not minimums[r]]

    @property
    def _floor_stands(self) -> bool:
        """Also in ticks in which load has no opinion; the reference forgets it then."""
        known = self._throughput.forecast is not None
        return known and load_on(self.settings) and self.settings.load_guards

    def _settled(
        self,
        told: TickInput,
        standing: Standing,
        merged: Merged,
        thought: Thought | None,
        opinion: Opinion | None,
    ) -> Settled:
        why = self._held_because(merged)
        if why is Reason.OBSERVATION_STALE and self._waking(told, standing):
            why = None
        targets = {Role(name): n for name, n in merged.targets.items() if n is not None}
        if why is not None:
            held = standing.have if self.settings.stabilise else standing.ready
            if self.settings.stabilise and targets:
                wish = self._wish(told, standing, targets, thought, opinion)
                self._settler.note(told.now_s, wish, standing)
            return Settled(held, (why,), {})
        if not self.settings.stabilise:
            plainly = settle_plainly(self._settler.allowance, targets, standing)
            if opinion is not None and opinion.partial:
                kept = {**standing.ready, **(opinion.targets or {})}
                reasons = (Reason.STARTUP_DOWN,) if opinion.targets else ()
                return plainly._replace(counts=kept, reasons=reasons)
            return plainly
        wish = self._wish(told, standing, targets, thought, opinion)
        return self._settler.settle(told.now_s, wish, standing)

    def _wish(
        self,
        told: TickInput,
        standing: Standing,
        targets: Mapping[Role, int],
        thought: Thought | None,
        opinion: Opinion | None,
    ) -> Wish:
        """Of roles that somebody has spoken of."""
        spoken = {role for role, n in targets.items() if n != standing.have[role]}
        for of in (thought, opinion):
            spoken |= set(of.targets or ()) if of is not None else set()
        if thought is not None and thought.reason is Reason.NO_TRAFFIC_DATA:
            spoken |= set(self.roles)  # whatever is there may have been needed
        wished = self._beyond_steps(targets, standing, opinion)
        return Wish(
            {role: n for role, n in wished.items() if role in spoken} or None,
            self._throughput.spare,
            self._throughput.exact,
            self._unknown(told),
        )

    def _held_because(self, merged: Merged) -> Reason | None:
        """Whatever is wished.  Minima beyond the budget: the platform has said larger replicas."""
        if merged.rejected is not None:
            return Reason.REJECTED
        if self._throughput.stale:
            return Reason.OBSERVATION_STALE
        feasible = self._settler.allowance.budget.feasible
        return None if feasible else Reason.GPU_BUDGET_HOLD

    def _unknown(self, told: TickInput) -> Reason | None:
        """Traffic, as far as this tick has asked for it, and in the last window; or how far demand
        goes beyond its forecasts."""
        asked = self._schedule.needs(told.now_s).traffic_s is not None
        heard = told.traffic is not None and told.traffic.requests is not None
        if self._throughput.unknown or (asked and not heard):
            return Reason.NO_TRAFFIC_DATA
        forecast = self._throughput.forecast
        if forecast is None or forecast.proven or self._throughput.is_idle:
            return None
        return Reason.NO_FORECAST_YET

    def _beyond_steps(
        self, targets: Mapping[Role, int], standing: Standing, opinion: Opinion | None
    ) -> dict[Role, int]:
        """Load asks for one replica less and means: as few as the forecast allows.

        As a wish of its own each step would hold up the next one for a whole window.
        """
        found = dict(targets)
        if opinion is None or opinion.targets is None or not self._floor_stands:
            return found
        for role, said in opinion.targets.items():
            if found[role] == said < standing.have[role]:
                found[role] = min(said, self._throughput.floors[role])
        return found

    def _wished(
        self, plan: Plan, counts: Mapping[Role, int] | None
    ) -> tuple[dict[Role, int] | None, dict[Role, int]]:
        """What changes, and all of it."""
        if plan.settled is None or plan.standing is None:
            return None, {}
        final = dict(plan.settled.counts if counts is None else counts)
        standing = plan.standing
        if plan.opinion is not None and plan.opinion.partial and not self.settings.stabilise:
            return dict(plan.opinion.targets or {}) or None, final
        if not self.settings.stabilise:
            return (final if final != standing.ready else None), final
        changed = {role: n for role, n in final.items() if n != standing.have[role]}
        return changed or None, final

    def _diagnostics(self, plan: Plan, final: Mapping[Role, int], cut: bool) -> Diagnostics:
        thought, opinion, settled = plan.thought, plan.opinion, plan.settled
        reasons = () if settled is None else settled.reasons
        if plan.standing is None:
            reasons = (Reason.REPLICAS_UNKNOWN,)
        elif self._waking(plan.told, plan.standing):
            reasons = (Reason.WAKE_UP, *reasons)
        if plan.merged is not None and plan.merged.final_from is not None:
            reasons = (Reason.OVERRIDDEN, *reasons)
        if cut:
            reasons = (*reasons, Reason.CLUSTER_BUDGET)
        if self.settings.advisory:
            reasons = (*reasons, Reason.ADVISORY)
        sizes = {} if thought is None else thought.sizes
        traffic = plan.told.traffic
        return Diagnostics(
            now_s=plan.told.now_s,
            run_load=plan.due.load,
            run_throughput=plan.due.throughput,
            roles={role: self._role_diagnostics(role, plan, final) for role in self.roles},
            load_reason=None if opinion is None else opinion.reason,
            throughput_reason=None if thought is None else thought.reason,
            forecast=None if thought is None else thought.forecast,
            reasons=reasons,
            rejected=None if plan.merged is None else plan.merged.rejected,
            set_dropped=() if plan.merged is None else plan.merged.set_dropped,
            stale=self._throughput.stale,
            slo_out_of_reach=any(size.reason is Reason.SLO_OUT_OF_REACH for size in sizes.values()),
            miss_correction=self._throughput.correction.factor,
            ttft_met=None if traffic is None else traffic.ttft_met,
            itl_met=None if traffic is None else traffic.itl_met,
        )

    def _role_diagnostics(
        self, role: Role, plan: Plan, final: Mapping[Role, int]
    ) -> RoleDiagnostics:
        now = None if plan.standing is None else plan.standing.roles[role]
        thought, opinion, settled = plan.thought, plan.opinion, plan.settled
        load: Loaded | None = None if opinion is None else opinion.roles.get(role)
        return RoleDiagnostics(
            num_gpu=gpus_of(self.settings, role),
            ready=0 if now is None else now.ready,
            starting=0 if now is None else now.starting,
            floor=self._throughput.floors[role],
            model_source=self._models[role].source,
            sized=None if thought is None else thought.sizes.get(role),
            load=load,
            merged=None if plan.merged is None else plan.merged.targets.get(str(role)),
            stabilised=None if settled is None else settled.stabilised.get(role),
            final=final.get(role),
            pending_s=0.0 if now is None else now.waiting.pending_s,
            startup_s=self._inventory.startup_of(role),
        )

    def check_invariants(self) -> None:
        """For tests."""
        for part in (self._inventory, self._throughput, self._load, self._settler):
            part.check_invariants()


def _proposal(source: str, priority: int, targets: Mapping[Role, int]) -> Proposal:
    return Proposal(
        source=source,
        priority=priority,
        targets=tuple(Target(str(role), Bound.SET, n) for role, n in targets.items()),
    )


def _floor(floors: Mapping[Role, int]) -> Proposal:
    return Proposal(
        source="throughput",
        priority=THROUGHPUT_PRIORITY,
        targets=tuple(Target(str(role), Bound.AT_LEAST, n) for role, n in floors.items()),
    )
