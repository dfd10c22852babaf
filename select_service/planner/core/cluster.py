"""Cluster of deployments that share GPUs, decided together in one tick."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.plugin_contracts import PluginContext
from select_service.planner.core.stages import Stage
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import Role, TickInput
from select_service.planner.core.tick_plan import (
    StageAnswers,
    StageRun,
    TickPlan,
    record_answers,
)


class GpuClaim(NamedTuple):
    """Claim of a deployment on the cluster's GPUs.

    priority: rank in the order of grants, smaller first
    lost:     attainment lost for each GPU that is refused
    least:    GPUs of the minimums
    now:      GPUs of replicas that run or start
    wanted:   GPUs of the target
    """

    priority: int
    lost: float
    least: int
    now: int
    wanted: int


class _PlannedReplicas(NamedTuple):
    """Replicas of a deployment by role: planned, and running or starting."""

    wanted: dict[Role, int]
    have: dict[Role, int]


def divide_gpus(claims: Sequence[GpuClaim], gpus: int) -> list[int]:
    """Return the GPUs of each claim: minimums always, the rest in order of priority.

    Within a priority, GPUs that are in use and still needed come first, and growth goes by loss.
    Otherwise a satisfied deployment would be cut for a peer, and the peer for it in the next tick.

    GPUs that another deployment still uses are granted only after release. So the sum of running
    and requested GPUs stays within `gpus` if the sum was within before.
    """
    order = sorted(range(len(claims)), key=lambda at: (claims[at].priority, -claims[at].lost, at))
    # Never more than the target, even if the minimum is higher.
    given = [min(claim.least, claim.wanted) for claim in claims]
    left = gpus - sum(given)
    for priority in dict.fromkeys(claims[at].priority for at in order):
        equals = [at for at in order if claims[at].priority == priority]
        # First round: keep GPUs in use. Second round: grow by the loss of attainment.
        for keeps in (True, False):
            for at in equals:
                goal = min(claims[at].now, claims[at].wanted) if keeps else claims[at].wanted
                more = min(max(0, goal - given[at]), max(0, left))
                given[at] += more
                left -= more
    # GPUs of a shrinking deployment stay in use until its replicas have ended, so the growth of
    # others is limited by the larger of use and grant.
    free = gpus - sum(max(claim.now, got) for claim, got in zip(claims, given, strict=True))
    for at in reversed(order):
        beyond = given[at] - max(claims[at].now, min(claims[at].least, claims[at].wanted))
        if free >= 0 or beyond <= 0:
            continue
        back = min(beyond, -free)
        given[at] -= back
        free += back
    return given


def _grant_claims(claims: Mapping[str, GpuClaim], gpus: int) -> dict[str, int]:
    """Return the shares by name; empty if every target fits."""
    if sum(max(claim.now, claim.wanted) for claim in claims.values()) <= gpus:
        return {}
    return dict(zip(claims, divide_gpus(list(claims.values()), gpus), strict=True))


class ClusterPlanner:
    """Arbiter of the cluster's GPUs.

    It also remembers the GPUs of deployments that are not due.
    """

    def __init__(
        self,
        deployments: Mapping[str, PlannedDeployment],
        priorities: Mapping[str, int],
        cluster_gpus: int | None,
    ) -> None:
        self.deployments = deployments
        self._priorities = priorities
        self._gpus = cluster_gpus
        self._gpus_taken: dict[str, int] = {}
        """GPUs that each deployment had or was promised at its last reading."""
        self.paused: set[str] = set()
        """Names of deployments with decisions that are recorded and not carried out."""

    def tick(self, inputs: Mapping[str, TickInput]) -> dict[str, TickEffects]:
        """Decide the deployments that are due, with the recorded answers of plugins.

        The others keep their GPUs. Advisory and paused deployments get the decision they would get,
        and take nothing from others.
        """
        tick = self.begin_tick(inputs, {})
        tick.advance()
        return tick.finish()

    def begin_tick(
        self, inputs: Mapping[str, TickInput], asked: Mapping[str, frozenset[Stage]]
    ) -> "ClusterTick":
        """Begin a tick. asked: stages at which plugins of a deployment answer"""
        return ClusterTick(self, inputs, asked)

    def finish_tick(self, plans: Mapping[str, TickPlan]) -> dict[str, TickEffects]:
        """Divide the GPUs and return the effects of all plans."""
        counts = self._divide_cluster(plans)
        self._store_gpus_taken(plans, counts)
        return {
            name: self.deployments[name].finish_tick(plan, counts.get(name))
            for name, plan in plans.items()
        }

    def _store_gpus_taken(
        self, plans: Mapping[str, TickPlan], counts: Mapping[str, Mapping[Role, int]]
    ) -> None:
        """Store the GPUs in use or promised, for the ticks of other deployments."""
        for name, plan in plans.items():
            if plan.settled is not None and plan.counts_now is not None:
                allowance = RoleBudget(self.deployments[name].settings)
                wished = allowance.total_gpus(counts.get(name, plan.settled.counts))
                have = allowance.total_gpus(plan.counts_now.running_or_starting)
                taken = max(wished, have) if self.is_acting(name) else have
                self._gpus_taken[name] = taken + self.deployments[name].lost_gpus

    def is_acting(self, name: str) -> bool:
        """Return whether the decisions of this deployment are carried out."""
        return not (self.deployments[name].settings.advisory or name in self.paused)

    def _divide_cluster(self, plans: Mapping[str, TickPlan]) -> dict[str, dict[Role, int]]:
        """Return the reduced targets; empty if no deployment has to give way."""
        known = {
            name: _PlannedReplicas(plan.settled.counts, plan.counts_now.running_or_starting)
            for name, plan in sorted(plans.items())
            if plan.settled is not None and plan.counts_now is not None
        }
        if self._gpus is None or not known:
            return {}
        claims = {name: self._make_claim(name, of) for name, of in known.items()}
        others = [self._gpus_taken.get(name) for name in self.deployments if name not in known]
        # A deployment that was never read may use any number of GPUs, so the others must not grow.
        if None in others:
            got = {name: min(claim.now, claim.wanted) for name, claim in claims.items()}
            return {name: self._cut_to_share(name, of, got[name]) for name, of in known.items()}
        free = self._gpus - sum(gpus for gpus in others if gpus is not None)
        free -= sum(self.deployments[name].lost_gpus for name in known)
        # Real grants are computed as if advisory deployments kept their GPUs, and the advice as if
        # all acted: advice must not take GPUs from a deployment that acts.
        calm = {
            name: claim
            if self.is_acting(name)
            else claim._replace(wanted=claim.now, least=claim.now)
            for name, claim in claims.items()
        }
        real, advised = _grant_claims(calm, free), _grant_claims(claims, free)
        granted = {name: real if self.is_acting(name) else advised for name in known}
        return {
            name: self._cut_to_share(name, of, granted[name][name])
            for name, of in known.items()
            if name in granted[name]
        }

    def _make_claim(self, name: str, of: _PlannedReplicas) -> GpuClaim:
        """Return the claim of a planned deployment."""
        allowance = RoleBudget(self.deployments[name].settings)
        wanted, have = of
        now = allowance.total_gpus(have)
        gpus = allowance.total_gpus(wanted)
        # The scarcer role limits the service, so its shortage counts.
        short = max(1.0 - have[role] / n if n else 0.0 for role, n in wanted.items())
        lost = short / max(1, gpus - now)
        return GpuClaim(
            self._priorities[name], lost, allowance.total_gpus(allowance.minimums), now, gpus
        )

    def _cut_to_share(self, name: str, of: _PlannedReplicas, gpus: int) -> dict[Role, int]:
        """Return the target under a share of GPUs, without reversing a movement.

        Below the GPUs in use the cut is in proportion. Infeasible minimums end no running replica.
        """
        wanted, have = of
        allowance = RoleBudget(self.deployments[name].settings, gpus)
        if allowance.total_gpus(wanted) <= gpus:
            return wanted
        # Growth is refused, and running replicas stay, although the minimums do not fit into the
        # share.
        if not allowance.budget.is_feasible:
            return {role: min(have[role], n) for role, n in wanted.items()}
        if allowance.total_gpus(have) <= gpus:
            return allowance.fit_under_ceiling(have, wanted)
        return allowance.clamp_counts(wanted)


class ClusterTick:
    """Tick of the deployments that are due, which pauses where plugins answer."""

    def __init__(
        self,
        cluster: ClusterPlanner,
        inputs: Mapping[str, TickInput],
        asked: Mapping[str, frozenset[Stage]],
    ) -> None:
        self._cluster = cluster
        self._runs: dict[str, StageRun] = {
            name: cluster.deployments[name].run_stages(
                tick, asked.get(name, frozenset()), acts=cluster.is_acting(name)
            )
            for name, tick in inputs.items()
        }
        self._stages: dict[str, Stage] = {}
        """Stage at which each deployment pauses."""
        self._plans: dict[str, TickPlan] = {}
        self.inputs = dict(inputs)
        """Inputs, with the answers of plugins as far as given."""

    def advance(self, answers: Mapping[str, StageAnswers] = {}) -> dict[str, PluginContext]:
        """Run every deployment to its next pause; return the contexts, none after the last stage.

        answers: answers to the last contexts, by deployment
        """
        contexts: dict[str, PluginContext] = {}
        for name, run in self._runs.items():
            if name in self._plans:
                continue
            try:
                if name in answers:
                    given, stage = answers[name], self._stages[name]
                    self.inputs[name] = record_answers(self.inputs[name], stage, given)
                    contexts[name] = run.send(given)
                else:
                    contexts[name] = next(run)
                self._stages[name] = contexts[name].stage
            except StopIteration as end:
                self._plans[name] = end.value
        return contexts

    def finish(self) -> dict[str, TickEffects]:
        """Return the effects of all deployments."""
        return self._cluster.finish_tick(self._plans)
