"""Plan of a tick between its stages, and what the pipeline exchanges with plugins."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.final_counts import FinalCounts
from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.plugin_contracts import (
    PluginContext,
    RoleContext,
    shown_engines,
    shown_traffic,
)
from select_service.planner.core.proposers.load_loop import LoadProposal
from select_service.planner.core.proposers.throughput_loop import ThroughputProposal
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import (
    LOAD_PRIORITY,
    THROUGHPUT_PRIORITY,
    BoundType,
    Proposal,
    ProposedCount,
    ReconciledCounts,
)
from select_service.planner.core.replicas.replica_counts import ReplicaCounts, ReplicaInventory
from select_service.planner.core.schedule import DueLoops
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.stages import (
    PluginCall,
    SourcedPrediction,
    Stage,
)
from select_service.planner.core.tick_input import Role, TickInput

_ANSWER_FIELDS = {
    Stage.PREDICT: "predictions",
    Stage.PROPOSE: "proposals",
    Stage.CONSTRAIN: "constraints",
}
"""Map from the stages with plugins to the fields of the input that record their answers."""


class StageAnswers(NamedTuple):
    """Answers of all plugins to a stage, and the records of their calls."""

    answers: tuple[SourcedPrediction, ...] | tuple[Proposal, ...] = ()
    calls: tuple[PluginCall, ...] = ()


class TickPlan(NamedTuple):
    """Plan of a deployment before the cluster's budget is applied.

    counts_now, settled: None if the replicas are unknown
    forecast:            prediction including the answers of plugins
    proposals:           proposals of the builtin loops
    """

    tick_input: TickInput
    due: DueLoops
    counts_now: ReplicaCounts | None = None
    forecast: ExpectedTraffic | None = None
    throughput: ThroughputProposal = ThroughputProposal()
    load: LoadProposal = LoadProposal()
    proposals: tuple[Proposal, ...] = ()
    reconciled: ReconciledCounts = ReconciledCounts(targets={})
    settled: FinalCounts | None = None
    replace: tuple[int, ...] = ()

    @property
    def plugin_roles(self) -> set[Role]:
        """Roles with a count from a plugin."""
        return set(map(Role, self.reconciled.decided_by_plugins))

    @property
    def plugin_floors(self) -> dict[Role, int]:
        """Counts that plugins require at least."""
        return {Role(name): n for name, n in self.reconciled.floors.items()}


StageRun = Generator[PluginContext, StageAnswers, TickPlan]
"""Run of the stages from OBSERVE to CONSTRAIN, which pauses where plugins answer."""


def record_answers(tick_input: TickInput, stage: Stage, given: StageAnswers) -> TickInput:
    """Return the input with the answers to a stage."""
    field = _ANSWER_FIELDS[stage]
    changes = {
        field: (*getattr(tick_input, field), *given.answers),
        "plugin_calls": (*tick_input.plugin_calls, *given.calls),
    }
    return replace(tick_input, **changes)


def end_stages(run: StageRun) -> TickPlan:
    """Run stages that pause nowhere, and return their plan."""
    try:
        next(run)
    except StopIteration as end:
        plan: TickPlan = end.value
        return plan
    raise AssertionError("the run has paused")


def make_context(
    stage: Stage, plan: TickPlan, settings: DeploymentSettings, inventory: ReplicaInventory
) -> PluginContext:
    """Return the context that plugins receive at a stage."""
    assert plan.counts_now is not None
    budget = RoleBudget(settings)
    tick_input = plan.tick_input
    engines, left_out = shown_engines(tick_input.passes)
    counts = plan.reconciled.targets if stage is Stage.CONSTRAIN else {}
    return PluginContext(
        stage=stage,
        now_s=tick_input.now_s,
        settings=settings,
        roles={
            role: RoleContext(
                ready=now.ready,
                starting=now.starting,
                is_changing=now.moving,
                min_endpoint=budget.minimums[role],
                num_gpu=budget.gpus[role],
                startup_s=inventory.startup_seconds_of(role),
                limits=inventory.limits[role],
            )
            for role, now in plan.counts_now.roles.items()
        },
        traffic=shown_traffic(tick_input.traffic),
        engines=engines,
        engines_left_out=left_out,
        prediction=None if plan.forecast is None else plan.forecast.to_record(),
        sizes=dict(plan.throughput.sizes),
        proposals=(*plan.proposals, *tick_input.proposals),
        reconciled={Role(name): n for name, n in counts.items() if n is not None},
    )


def find_plugin_reasons(plan: TickPlan, roles: Iterable[Role]) -> Iterator[Reason]:
    """Yield the reasons of a tick that come from plugins. roles: roles of the mode"""
    if plan.reconciled.final_from is not None:
        yield Reason.OVERRIDDEN
    if plan.reconciled.decided_by_plugins:
        yield Reason.PLUGIN_DECIDED
    if not all(call.is_good for call in plan.tick_input.plugin_calls):
        yield Reason.PLUGIN_FAILED
    # Running plugins cannot: their answers are invalid then. Recorded ones may.
    given = (*plan.tick_input.proposals, *plan.tick_input.constraints)
    named = {target.component for proposal in given for target in proposal.targets or ()}
    if not named <= set(map(str, roles)):
        yield Reason.ROLE_OUTSIDE_MODE


def make_proposal(source: str, kind: BoundType, counts: Mapping[Role, int]) -> Proposal:
    """Return a builtin proposal. source: `load` or `throughput`"""
    return Proposal(
        source=source,
        priority=LOAD_PRIORITY if source == "load" else THROUGHPUT_PRIORITY,
        targets=tuple(ProposedCount(str(role), kind, n) for role, n in counts.items()),
    )


def find_pair_reasons(plan: TickPlan, settings: DeploymentSettings) -> Iterator[Reason]:
    """Yield what pairs add to the reasons of a tick."""
    traffic = plan.tick_input.traffic
    pairs = None if traffic is None else traffic.pairs
    if pairs is not None and pairs.is_link_bound:
        yield Reason.LINKS_BUSY
    if pairs is not None and pairs.local and settings.mode == "decode":
        yield Reason.LOCAL_PREFILL_UNKNOWN


def lower_to_floor(
    targets: Mapping[Role, int],
    counts_now: ReplicaCounts,
    load: LoadProposal,
    floors: Mapping[Role, int],
) -> dict[Role, int]:
    """Return the load loop's steps down to the floor: load steps by one replica only."""
    have = counts_now.running_or_starting
    # As separate targets, each step of one replica would restart the scale-down window.
    return {
        role: min(said, floors[role])
        for role, said in (load.targets or {}).items()
        if targets.get(role) == said < have[role]
    }
