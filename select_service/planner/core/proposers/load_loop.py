"""Load loop of a deployment: reports, verdicts on the roles, floors and budgets."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.diagnostics import LoadRecord
from select_service.planner.core.performance.engine_model import EngineModel
from select_service.planner.core.proposers.engine_estimates import RankPasses, group_by_worker
from select_service.planner.core.proposers.load_proposer import RoleLoadProposer, ScaleContext
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.replica_counts import ReplicaCounts
from select_service.planner.core.schedule import TIME_TOLERANCE_S
from select_service.planner.core.settings import (
    DeploymentSettings,
    is_load_enabled,
    is_throughput_enabled,
)
from select_service.planner.core.tick_input import EngineLimits, Role, TickInput

_REASON_WEIGHTS = {
    Reason.NO_CHANGE: 1,
    Reason.SCALE_DOWN: 2,
    Reason.SCALE_DOWN_CAPPED: 3,
    Reason.SCALE_UP: 4,
}


class TrafficMetadata(NamedTuple):
    """Last known metadata of the traffic."""

    hit_rate: float
    accept_length: float
    forecast_known: bool


class LoadProposal(NamedTuple):
    """Result of the load loop. targets None means no opinion.

    partial: whether the targets only withdraw start-ups
    """

    targets: dict[Role, int] | None = None
    reason: Reason | None = None
    roles: Mapping[Role, LoadRecord] = {}
    partial: bool = False


class LoadLoop:
    """Load loop of a deployment. State: the roles, and since when start-ups exceed the need."""

    def __init__(self, settings: DeploymentSettings, models: Mapping[Role, EngineModel]) -> None:
        self.settings = settings
        self.allowance = RoleBudget(settings)
        self._roles = {
            role: RoleLoadProposer(settings, role, models[role]) for role in self.allowance.roles
        }
        self._too_many_since: dict[Role, float] = {}
        self._awake_since: float | None = -inf
        """Time at which replicas became ready after there were none; None while there are none."""

    def propose(
        self,
        tick_input: TickInput,
        counts_now: ReplicaCounts,
        floors: Mapping[Role, int],
        limits: Mapping[Role, EngineLimits],
        metadata: TrafficMetadata,
    ) -> LoadProposal:
        """Return the proposal of the load loop; called once a load interval."""
        if not is_load_enabled(self.settings):
            return LoadProposal(None, Reason.DISABLED)
        found = {
            role: load.complete_engines(group_by_worker(passes))
            for role, load in self._roles.items()
            if (passes := (tick_input.passes or {}).get(role))
        }
        waits = self._has_selector_queue(tick_input, counts_now)
        why = self._why_unjudged(found, counts_now)
        if why is Reason.NO_FPM_DATA and _is_asleep(tick_input, counts_now):
            why = Reason.IDLE
        # The history needs consecutive ticks, so any gap starts it again.
        for role, load in self._roles.items():
            if why is not None or role not in found:
                load.clear_history()
        if why is not None:
            self._too_many_since.clear()
            return LoadProposal(None, why, {role: LoadRecord(reason=why) for role in self._roles})
        judged = {
            role: self._judge_role(role, found[role], counts_now, limits, metadata)
            for role in found
        }
        # While replicas start, verdicts are about a fleet that is about to change: only a
        # withdrawal of start-ups is possible.
        if counts_now.is_changing:
            return self._withdraw_start_ups(tick_input.now_s, judged, counts_now, floors)
        if waits:
            judged = self._raise_for_queue(judged, counts_now)
        if self.settings.load_guards and _is_idle(tick_input):
            judged = self._lower_without_demand(judged, counts_now)
        return self._apply_bounds(judged, counts_now, floors, metadata)

    def _why_unjudged(
        self, found: Mapping[Role, Mapping[str, RankPasses]], counts_now: ReplicaCounts
    ) -> Reason | None:
        """Return why no verdict is possible, or None.

        The order of the checks is that of Dynamo's planner.
        """
        alone = self.settings.mode in ("prefill", "decode")
        # With the stabiliser start-ups are never withdrawn here: it compares with running and
        # starting replicas together.
        cancellable = counts_now.is_only_starting and not self.settings.stabilise
        busy = counts_now.is_changing and not cancellable
        if alone and busy:
            return Reason.SCALING_IN_PROGRESS
        if not found:
            return Reason.NO_FPM_DATA
        if busy:
            return Reason.SCALING_IN_PROGRESS
        for role, of_role in found.items():
            now = counts_now.roles[role]
            if self._roles[role].has_count_mismatch(of_role, now.ready - now.spares):
                return Reason.WORKER_COUNT_MISMATCH
        return None

    def _judge_role(
        self,
        role: Role,
        found: dict[str, RankPasses],
        counts_now: ReplicaCounts,
        limits: Mapping[Role, EngineLimits],
        metadata: TrafficMetadata,
    ) -> LoadRecord:
        """Return the verdict on a role."""
        now = counts_now.roles[role]
        cancels = counts_now.is_changing and now.starting > 0
        ground = ScaleContext(now.ready, self.allowance.minimums[role], limits[role], cancels)
        return self._roles[role].judge_role(
            found, ground, metadata.hit_rate, metadata.accept_length
        )

    def _has_selector_queue(self, tick_input: TickInput, counts_now: ReplicaCounts) -> bool:
        """Return whether requests queue for the first role of a request.

        A window that began before replicas were ready is ignored: its refusals do not show that the
        new replicas are too few.
        """
        first, traffic = self.allowance.roles[0], tick_input.traffic
        if not counts_now.roles[first].ready:
            self._awake_since = None
        elif self._awake_since is None:
            self._awake_since = tick_input.now_s
        since = self._awake_since
        # Right after a wake-up, refusals of the window still come from the time without replicas.
        if traffic is not None and (since is None or tick_input.now_s - traffic.duration_s < since):
            traffic = None
        return self._roles[first].has_selector_queue(traffic)

    def _raise_for_queue(
        self, judged: Mapping[Role, LoadRecord], counts_now: ReplicaCounts
    ) -> dict[Role, LoadRecord]:
        """Add a replica of the first role because of the queue at the selector."""
        first = self.allowance.roles[0]
        ready = counts_now.roles[first].ready
        mine = judged.get(first, LoadRecord())
        # The load of the engines already demands more.
        if mine.target is not None and mine.target > ready:
            return dict(judged)
        notes = (*mine.notes, Reason.SELECTOR_QUEUE)
        return {**judged, first: replace(mine, target=ready + 1, reason=None, notes=notes)}

    def _lower_without_demand(
        self, judged: Mapping[Role, LoadRecord], counts_now: ReplicaCounts
    ) -> dict[Role, LoadRecord]:
        """Take one replica of every role that may go down to nothing; no model is needed for it."""
        found = dict(judged)
        for role, least in self.allowance.minimums.items():
            ready = counts_now.roles[role].ready
            if ready and not least:
                mine = judged.get(role, LoadRecord())
                found[role] = replace(mine, target=ready - 1, reason=None)
        return found

    def _withdraw_start_ups(
        self,
        now_s: float,
        judged: Mapping[Role, LoadRecord],
        counts_now: ReplicaCounts,
        floors: Mapping[Role, int],
    ) -> LoadProposal:
        """Withdraw start-ups that were superfluous for two ticks.

        Nothing else may be under way.
        """
        wanted: dict[Role, int] = {}
        for role, one in judged.items():
            now, target = counts_now.roles[role], one.target
            if target is None or target > now.ready or target >= now.running_or_starting:
                continue
            kept = max(target, self._forecast_floor(role, floors), self.allowance.minimums[role])
            if kept <= now.ready and kept < now.running_or_starting:
                wanted[role] = kept
        wanted = self._keep_gpu_floor(wanted, counts_now)
        for role in self._roles:
            if role in wanted:
                self._too_many_since.setdefault(role, now_s)
            else:
                self._too_many_since.pop(role, None)
        # One interval apart means two consecutive ticks.
        least = self.settings.load_adjustment_interval_seconds - TIME_TOLERANCE_S
        sure = {
            role: kept
            for role, kept in wanted.items()
            if now_s - self._too_many_since[role] >= least
        }
        reason = Reason.SCALE_DOWN if wanted else None
        return LoadProposal(sure or None, reason, self._load_records(judged), partial=True)

    def _keep_gpu_floor(
        self, targets: dict[Role, int], counts_now: ReplicaCounts
    ) -> dict[Role, int]:
        """Keep enough start-ups for the GPU floor; the other role counts with all its start-ups."""
        have = counts_now.running_or_starting
        counts = {**have, **targets}
        least = self.allowance.budget.min_gpus
        for role in targets:
            # Withdrawn start-ups must not bring the deployment below its GPU floor.
            while self.allowance.total_gpus(counts) < least and counts[role] < have[role]:
                counts[role] += 1
        return {role: counts[role] for role in targets if counts[role] < have[role]}

    def _apply_bounds(
        self,
        judged: Mapping[Role, LoadRecord],
        counts_now: ReplicaCounts,
        floors: Mapping[Role, int],
        metadata: TrafficMetadata,
    ) -> LoadProposal:
        """Apply floors, minimums and the budget to the verdicts."""
        ready = counts_now.ready
        judged = self._hold_before_forecast(judged, ready, metadata)
        if self._has_no_verdict(judged):
            reason = next(iter(judged.values())).reason
            return LoadProposal(None, reason, self._load_records(judged))
        targets = {role: one.target for role, one in judged.items() if one.target is not None}
        said = {role: targets.get(role, ready[role]) for role in self._roles}
        lifted = {role: max(said[role], self._forecast_floor(role, floors)) for role in self._roles}
        proposed = self.allowance.with_minimums(lifted)
        # The floor may lift one role and so exceed the ceiling together with the other role's
        # verdict.
        if len(self._roles) > 1 and lifted != said:
            proposed = self.allowance.fit_under_ceiling(ready, proposed)
        counts, budget_reason = self.allowance.fit_step(ready, proposed)
        capped = {role: lifted[role] > said[role] < ready[role] for role in self._roles}
        reasons = {
            role: self._final_reason(counts[role], ready[role], capped[role]) for role in said
        }
        reason = max(reasons.values(), key=lambda one: _REASON_WEIGHTS[one])
        if budget_reason is not None:
            reason = budget_reason
        elif counts == ready:
            reason = _first_specific_reason(judged, reason)
        loaded = self._load_records(judged, counts, reasons, keep=counts == ready)
        return LoadProposal(counts, reason, loaded)

    def _hold_before_forecast(
        self,
        judged: Mapping[Role, LoadRecord],
        ready: Mapping[Role, int],
        metadata: TrafficMetadata,
    ) -> Mapping[Role, LoadRecord]:
        """Drop steps down until the first forecast is available."""
        if metadata.forecast_known or not self.settings.load_guards:
            return judged
        if not is_throughput_enabled(self.settings):
            return judged
        return {
            role: replace(one, target=None, reason=Reason.NO_FORECAST_YET)
            if one.target is not None and one.target < ready[role]
            else one
            for role, one in judged.items()
        }

    def _has_no_verdict(self, judged: Mapping[Role, LoadRecord]) -> bool:
        """Return whether no role has a verdict.

        Dynamo's planner then ignores the floor of a single role.
        """
        if self.settings.load_guards or not self._is_plain():
            return False
        return all(one.target is None for one in judged.values())

    def _is_plain(self) -> bool:
        """Return whether the mode has a single role, or both roles in an easy mode."""
        easy = self.settings.optimization_target != "sla"
        return self.settings.mode in ("prefill", "decode") or (self.settings.mode == "agg" and easy)

    def _forecast_floor(self, role: Role, floors: Mapping[Role, int]) -> int:
        """Return the forecast's floor of a role; 0 without throughput scaling."""
        return floors[role] if is_throughput_enabled(self.settings) else 0

    def _final_reason(self, count: int, ready: int, capped: bool) -> Reason:
        """Return the reason of a final count."""
        if count > ready:
            return Reason.SCALE_UP
        if capped and (count < ready or not self._is_plain()):
            return Reason.SCALE_DOWN_CAPPED
        return Reason.SCALE_DOWN if count < ready else Reason.NO_CHANGE

    def _load_records(
        self,
        judged: Mapping[Role, LoadRecord],
        counts: Mapping[Role, int] | None = None,
        reasons: Mapping[Role, Reason] | None = None,
        *,
        keep: bool = True,
    ) -> dict[Role, LoadRecord]:
        """Return the diagnostics by role. keep: whether the verdict's own reason has precedence"""
        found = {}
        for role in self._roles:
            one = judged.get(role, LoadRecord(reason=Reason.NO_FPM_DATA))
            own = one.reason
            after = None if reasons is None else reasons[role]
            keeps_own = after is None or (keep and own not in (None, Reason.NO_CHANGE))
            found[role] = replace(
                one,
                reason=own if keeps_own else after,
                target=None if counts is None else counts[role],
            )
        return found


def _is_idle(tick_input: TickInput) -> bool:
    """Return whether certainly no request arrived, queues or runs."""
    passes = (tick_input.passes or {}).values()
    is_calm = all(each.is_idle for of_role in passes for each in of_role)
    return tick_input.traffic is not None and tick_input.traffic.is_idle and is_calm


def _is_asleep(tick_input: TickInput, counts_now: ReplicaCounts) -> bool:
    """Return whether there is no replica and no demand."""
    return (
        not any(counts_now.running_or_starting.values())
        and tick_input.traffic is not None
        and tick_input.traffic.is_idle
    )


def _first_specific_reason(judged: Mapping[Role, LoadRecord], otherwise: Reason) -> Reason:
    """Return the first specific reason of a role, prefill first; else the given reason."""
    for role in (Role.PREFILL, Role.DECODE):
        reason = judged[role].reason if role in judged else None
        if reason not in (None, Reason.NO_CHANGE):
            return reason
    return otherwise
