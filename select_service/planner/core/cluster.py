"""Several deployments on the GPUs of one cluster, decided in one place in one tick."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from select_service.planner.core.allowance import Allowance
from select_service.planner.core.inputs import Role, TickInput
from select_service.planner.core.tick import Deployment, Effects, Plan


class Claim(NamedTuple):
    """Of one deployment, in GPUs.

    priority: a smaller one goes first
    lost:     attainment that is lost for each GPU it does not get
    least:    of its minima;  now: of what is there or on its way;  wanted: of what it wishes
    """

    priority: int
    lost: float
    least: int
    now: int
    wanted: int


def shares(claims: Sequence[Claim], gpus: int) -> list[int]:
    """GPUs of each claim: minima always, then in order of priority.

    Among those of one priority what each has and still wants comes first, and growth goes by loss:
    who has enough must not be cut for a peer, which would be cut for it the next time.

    What somebody else still has is not given away before it is free, so that the sum of what runs
    and what is asked for stays within `gpus` as long as it was.
    """
    order = sorted(range(len(claims)), key=lambda at: (claims[at].priority, -claims[at].lost, at))
    given = [min(claim.least, claim.wanted) for claim in claims]
    left = gpus - sum(given)
    for priority in dict.fromkeys(claims[at].priority for at in order):
        equals = [at for at in order if claims[at].priority == priority]
        for keeps in (True, False):
            for at in equals:
                goal = min(claims[at].now, claims[at].wanted) if keeps else claims[at].wanted
                more = min(max(0, goal - given[at]), max(0, left))
                given[at] += more
                left -= more
    free = gpus - sum(max(claim.now, got) for claim, got in zip(claims, given, strict=True))
    for at in reversed(order):
        beyond = given[at] - max(claims[at].now, min(claims[at].least, claims[at].wanted))
        if free >= 0 or beyond <= 0:
            continue
        back = min(beyond, -free)
        given[at] -= back
        free += back
    return given


def _granted(claims: Mapping[str, Claim], gpus: int) -> dict[str, int]:
    """Shares by name; nothing where all can have what they want."""
    if sum(max(claim.now, claim.wanted) for claim in claims.values()) <= gpus:
        return {}
    return dict(zip(claims, shares(list(claims.values()), gpus), strict=True))


class Cluster:
    """Belongs to whoever owns the deployments. Remembers what those have that are not due."""

    def __init__(
        self,
        deployments: Mapping[str, Deployment],
        priorities: Mapping[str, int],
        cluster_gpus: int | None,
    ) -> None:
        self.deployments = deployments
        self._priorities = priorities
        self._gpus = cluster_gpus
        self._taken: dict[str, int] = {}
        """GPUs that each has or was promised when it was last read."""
        self.paused: set[str] = set()
        """Names of those of which nothing is carried out, whatever they decide."""

    def tick(self, told: Mapping[str, TickInput]) -> dict[str, Effects]:
        """Of deployments that are due. Those that are not keep what they have.

        One that is advised only, or paused, is told what it would get, and takes nothing from
        others.
        """
        plans = {name: self.deployments[name].plan(tick) for name, tick in told.items()}
        counts = self._shared(plans)
        self._remember(plans, counts)
        return {
            name: self.deployments[name].finish(plan, counts.get(name))
            for name, plan in plans.items()
        }

    def _remember(
        self, plans: Mapping[str, Plan], counts: Mapping[str, Mapping[Role, int]]
    ) -> None:
        for name, plan in plans.items():
            if plan.settled is None or plan.standing is None:
                continue
            allowance = Allowance(self.deployments[name].settings)
            wished = allowance.total(counts.get(name, plan.settled.counts))
            have = allowance.total(plan.standing.have)
            self._taken[name] = max(wished, have) if self._acts(name) else have

    def _acts(self, name: str) -> bool:
        return not (self.deployments[name].settings.advisory or name in self.paused)

    def _shared(self, plans: Mapping[str, Plan]) -> dict[str, dict[Role, int]]:
        """What is left of the wishes; nothing where no deployment has to give way."""
        known = {
            name: plan
            for name, plan in sorted(plans.items())
            if plan.settled is not None and plan.standing is not None
        }
        if self._gpus is None or not known:
            return {}
        claims = {name: self._claim(name, plan) for name, plan in known.items()}
        others = [self._taken.get(name) for name in self.deployments if name not in known]
        if None in others:  # nobody grows into what another one may hold
            got = {name: min(claim.now, claim.wanted) for name, claim in claims.items()}
            return {name: self._cut(name, plan, got[name]) for name, plan in known.items()}
        free = self._gpus - sum(gpus for gpus in others if gpus is not None)
        calm = {
            name: claim if self._acts(name) else claim._replace(wanted=claim.now, least=claim.now)
            for name, claim in claims.items()
        }
        real, advised = _granted(calm, free), _granted(claims, free)
        granted = {name: real if self._acts(name) else advised for name in known}
        return {
            name: self._cut(name, plan, granted[name][name])
            for name, plan in known.items()
            if name in granted[name]
        }

    def _claim(self, name: str, plan: Plan) -> Claim:
        assert plan.settled is not None
        assert plan.standing is not None
        allowance = Allowance(self.deployments[name].settings)
        wanted, have = plan.settled.counts, plan.standing.have
        now = allowance.total(have)
        gpus = allowance.total(wanted)
        short = max(1.0 - have[role] / n if n else 0.0 for role, n in wanted.items())
        lost = short / max(1, gpus - now)
        return Claim(self._priorities[name], lost, allowance.total(allowance.minimums), now, gpus)

    def _cut(self, name: str, plan: Plan, gpus: int) -> dict[Role, int]:
        """The wish under a share, which turns no movement round: as near to it as what is there
        allows. Less than that is in proportion, and minima that do not fit are no reason to end
        what runs."""
        assert plan.settled is not None
        assert plan.standing is not None
        wanted, have = plan.settled.counts, plan.standing.have
        allowance = Allowance(self.deployments[name].settings, gpus)
        if allowance.total(wanted) <= gpus:
            return wanted
        if not allowance.budget.feasible:
            return {role: min(have[role], n) for role, n in wanted.items()}
        if allowance.total(have) <= gpus:
            return allowance.under_ceiling(have, wanted)
        return allowance.clamped(wanted)
