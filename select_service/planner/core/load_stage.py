"""The load loop of a deployment: who spoke, verdicts of the roles, floors and budgets."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from select_service.planner.core.allowance import Allowance
from select_service.planner.core.diagnostics import Loaded
from select_service.planner.core.engine_views import Group, groups
from select_service.planner.core.inputs import Limits, Role, TickInput
from select_service.planner.core.load import Verdict
from select_service.planner.core.load_proposer import Judged, RoleLoad, RoleState
from select_service.planner.core.perf.model import EngineModel
from select_service.planner.core.reasons import Reason
from select_service.planner.core.schedule import load_on, throughput_on
from select_service.planner.core.settings import Settings
from select_service.planner.core.standing import Standing

_SUSTAINED_S = 1e-9
"""Sums of intervals are not exact."""
_INTEREST = {
    Reason.NO_CHANGE: 1,
    Reason.SCALE_DOWN: 2,
    Reason.SCALE_DOWN_CAPPED: 3,
    Reason.SCALE_UP: 4,
}


class Heard(NamedTuple):
    """Metadata of the traffic, last values."""

    hit_rate: float
    accept_length: float
    forecast_known: bool


class Opinion(NamedTuple):
    """targets None: no opinion.  partial: start-ups that are taken back, and nothing else"""

    targets: dict[Role, int] | None
    reason: Reason | None
    roles: Mapping[Role, Loaded] = {}
    partial: bool = False


class LoadStage:
    """Everything that it remembers is in the roles, and since when start-ups seem too many."""

    def __init__(self, settings: Settings, models: Mapping[Role, EngineModel]) -> None:
        self.settings = settings
        self.allowance = Allowance(settings)
        self._roles = {
            role: RoleLoad(settings, role, models[role]) for role in self.allowance.roles
        }
        self._too_many_since: dict[Role, float] = {}
        self._awake_since: float | None = -inf
        """When replicas became ready after there were none; None: there are none."""

    def think(
        self,
        told: TickInput,
        standing: Standing,
        floors: Mapping[Role, int],
        limits: Mapping[Role, Limits],
        heard: Heard,
    ) -> Opinion:
        """Once a load interval."""
        if not load_on(self.settings):
            return Opinion(None, Reason.DISABLED)
        found = {
            role: load.heard(groups(passes))
            for role, load in self._roles.items()
            if (passes := (told.passes or {}).get(role))
        }
        waits = self._selector_waits(told, standing)
        why = self._unheard(found, standing)
        if why is Reason.NO_FPM_DATA and _sleeps(told, standing):
            why = Reason.IDLE
        for role, load in self._roles.items():
            if why is not None or role not in found:
                load.forget()
        if why is not None:
            self._too_many_since.clear()
            return Opinion(None, why, {role: Loaded(reason=why) for role in self._roles})
        judged = {role: self._judge(role, found[role], standing, limits, heard) for role in found}
        if standing.moving:
            return self._starting(told.now_s, judged, standing, floors)
        if waits:
            judged = self._with_queue(judged, standing)
        if self.settings.load_guards and _is_idle(told):
            judged = self._without_demand(judged, standing)
        return self._settled(judged, standing, floors, heard)

    def _unheard(
        self, found: Mapping[Role, Mapping[str, Group]], standing: Standing
    ) -> Reason | None:
        """Why nothing can be said; in the order of the reference."""
        alone = self.settings.mode in ("prefill", "decode")
        cancellable = standing.only_starting and not self.settings.stabilise
        busy = standing.moving and not cancellable
        if alone and busy:
            return Reason.SCALING_IN_PROGRESS
        if not found:
            return Reason.NO_FPM_DATA
        if busy:
            return Reason.SCALING_IN_PROGRESS
        for role, of_role in found.items():
            if self._roles[role].mismatched(of_role, standing.roles[role].ready):
                return Reason.WORKER_COUNT_MISMATCH
        return None

    def _judge(
        self,
        role: Role,
        found: dict[str, Group],
        standing: Standing,
        limits: Mapping[Role, Limits],
        heard: Heard,
    ) -> Judged:
        now = standing.roles[role]
        cancels = standing.moving and now.starting > 0
        state = RoleState(now.ready, self.allowance.minimums[role], limits[role], cancels)
        return self._roles[role].judge(found, state, heard.hit_rate, heard.accept_length)

    def _selector_waits(self, told: TickInput, standing: Standing) -> bool:
        """Of the role that requests meet first.

        Requests that met nothing at all do not say that what has come since is too little.
        """
        first, traffic = self.allowance.roles[0], told.traffic
        if not standing.roles[first].ready:
            self._awake_since = None
        elif self._awake_since is None:
            self._awake_since = told.now_s
        since = self._awake_since
        if traffic is not None and (since is None or told.now_s - traffic.duration_s < since):
            traffic = None
        return self._roles[first].selector_waits(traffic)

    def _with_queue(self, judged: Mapping[Role, Judged], standing: Standing) -> dict[Role, Judged]:
        first = self.allowance.roles[0]
        ready = standing.roles[first].ready
        mine = judged.get(first, Judged(Verdict(None), 0))
        target = mine.verdict.target
        if target is not None and target > ready:
            return dict(judged)
        notes = (*mine.verdict.notes, Reason.SELECTOR_QUEUE)
        up = mine.verdict._replace(target=ready + 1, reason=None, notes=notes)
        return {**judged, first: mine._replace(verdict=up)}

    def _without_demand(
        self, judged: Mapping[Role, Judged], standing: Standing
    ) -> dict[Role, Judged]:
        """Take one replica of every role that may go down to nothing; no model is needed for it."""
        found = dict(judged)
        for role, least in self.allowance.minimums.items():
            ready = standing.roles[role].ready
            if least or not ready:
                continue
            mine = judged.get(role, Judged(Verdict(None), 0))
            down = mine.verdict._replace(target=ready - 1, reason=None)
            found[role] = mine._replace(verdict=down)
        return found

    def _starting(
        self,
        now_s: float,
        judged: Mapping[Role, Judged],
        standing: Standing,
        floors: Mapping[Role, int],
    ) -> Opinion:
        """Only start-ups are under way: they may be taken back, after two ticks that say so."""
        wanted: dict[Role, int] = {}
        for role, one in judged.items():
            now, target = standing.roles[role], one.verdict.target
            if target is None or target > now.ready or target >= now.have:
                continue
            kept = max(target, self._floor(role, floors), self.allowance.minimums[role])
            if kept <= now.ready and kept < now.have:
                wanted[role] = kept
        wanted = self._above_gpu_floor(wanted, standing)
        for role in self._roles:
            if role in wanted:
                self._too_many_since.setdefault(role, now_s)
            else:
                self._too_many_since.pop(role, None)
        least = self.settings.load_adjustment_interval_seconds - _SUSTAINED_S
        sure = {
            role: kept
            for role, kept in wanted.items()
            if now_s - self._too_many_since[role] >= least
        }
        reason = Reason.SCALE_DOWN if wanted else None
        return Opinion(sure or None, reason, self._loaded(judged), partial=True)

    def _above_gpu_floor(self, wanted: dict[Role, int], standing: Standing) -> dict[Role, int]:
        """Start-ups of the other role count with all that is on its way."""
        have = standing.have
        counts = {**have, **wanted}
        least = self.allowance.budget.min_gpus
        for role in wanted:
            while self.allowance.total(counts) < least and counts[role] < have[role]:
                counts[role] += 1
        return {role: counts[role] for role in wanted if counts[role] < have[role]}

    def _settled(
        self,
        judged: Mapping[Role, Judged],
        standing: Standing,
        floors: Mapping[Role, int],
        heard: Heard,
    ) -> Opinion:
        """Verdicts, then floors, minima and the budget."""
        ready = standing.ready
        judged = self._before_forecast(judged, ready, heard)
        if self._says_nothing(judged):
            reason = next(iter(judged.values())).verdict.reason
            return Opinion(None, reason, self._loaded(judged))
        said = {role: _target(judged.get(role), ready[role]) for role in self._roles}
        lifted = {role: max(said[role], self._floor(role, floors)) for role in self._roles}
        proposed = self.allowance.with_minimums(lifted)
        if len(self._roles) > 1 and lifted != said:
            proposed = self.allowance.under_ceiling(ready, proposed)
        counts, budget_reason = self.allowance.step(ready, proposed)
        capped = {role: lifted[role] > said[role] < ready[role] for role in self._roles}
        reasons = {role: self._reason(counts[role], ready[role], capped[role]) for role in said}
        reason = max(reasons.values(), key=lambda one: _INTEREST[one])
        if budget_reason is not None:
            reason = budget_reason
        elif counts == ready:
            reason = _first_told(judged, reason)
        loaded = self._loaded(judged, counts, reasons, keep=counts == ready)
        return Opinion(counts, reason, loaded)

    def _before_forecast(
        self, judged: Mapping[Role, Judged], ready: Mapping[Role, int], heard: Heard
    ) -> Mapping[Role, Judged]:
        """Nothing goes down before the forecast has said what is needed."""
        if heard.forecast_known or not self.settings.load_guards:
            return judged
        if not throughput_on(self.settings):
            return judged
        held = {}
        for role, one in judged.items():
            target = one.verdict.target
            if target is not None and target < ready[role]:
                verdict = one.verdict._replace(target=None, reason=Reason.NO_FORECAST_YET)
                one = one._replace(verdict=verdict)
            held[role] = one
        return held

    def _says_nothing(self, judged: Mapping[Role, Judged]) -> bool:
        """The reference does not look at the floor of a role alone without a verdict."""
        if self.settings.load_guards or not self._is_plain():
            return False
        return all(one.verdict.target is None for one in judged.values())

    def _is_plain(self) -> bool:
        easy = self.settings.optimization_target != "sla"
        return self.settings.mode in ("prefill", "decode") or (self.settings.mode == "agg" and easy)

    def _floor(self, role: Role, floors: Mapping[Role, int]) -> int:
        return floors[role] if throughput_on(self.settings) else 0

    def _reason(self, count: int, ready: int, capped: bool) -> Reason:
        if count > ready:
            return Reason.SCALE_UP
        if capped and (count < ready or not self._is_plain()):
            return Reason.SCALE_DOWN_CAPPED
        return Reason.SCALE_DOWN if count < ready else Reason.NO_CHANGE

    def _loaded(
        self,
        judged: Mapping[Role, Judged],
        counts: Mapping[Role, int] | None = None,
        reasons: Mapping[Role, Reason] | None = None,
        *,
        keep: bool = True,
    ) -> dict[Role, Loaded]:
        """keep: the verdict's own reason says more than that nothing changes"""
        found = {}
        for role in self._roles:
            one = judged.get(role, Judged(Verdict(None, Reason.NO_FPM_DATA), 0))
            own = one.verdict.reason
            after = None if reasons is None else reasons[role]
            told = keep and own not in (None, Reason.NO_CHANGE)
            found[role] = Loaded(
                reason=own if told or after is None else after,
                target=None if counts is None else counts[role],
                estimate_ms=one.verdict.estimate_ms,
                itl_ms=one.itl_ms,
                engines=one.engines,
                notes=one.verdict.notes,
            )
        return found

    def check_invariants(self) -> None:
        """For tests."""
        assert set(self._too_many_since) <= set(self._roles)
        for role in self._roles.values():
            role.check_invariants()


def _is_idle(told: TickInput) -> bool:
    """Return whether it is known that no request came, waits or runs."""
    passes = (told.passes or {}).values()
    is_calm = all(each.is_idle for of_role in passes for each in of_role)
    return told.traffic is not None and told.traffic.is_idle and is_calm


def _sleeps(told: TickInput, standing: Standing) -> bool:
    """Return whether there is no replica, and nobody asks for one."""
    return not any(standing.have.values()) and told.traffic is not None and told.traffic.is_idle


def _target(one: Judged | None, ready: int) -> int:
    return ready if one is None or one.verdict.target is None else one.verdict.target


def _first_told(judged: Mapping[Role, Judged], otherwise: Reason) -> Reason:
    """What a role said of itself, prefill first."""
    for role in (Role.PREFILL, Role.DECODE):
        reason = judged[role].verdict.reason if role in judged else None
        if reason not in (None, Reason.NO_CHANGE):
            return reason
    return otherwise
